"""Trusted, pure: an exception as a rank described it, and the `Failure` that it makes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradsync.ranks import events, importing
from gradsync.ranks.wording import ranks_text
from gradsync.records import Diagnosis, Failure, Status

MAX_MESSAGE = 2_000  # characters of an exception's text that a report shows
ARGUMENTS = re.compile(r"positional argument|keyword argument|takes no arguments|multiple values")
EXERCISE = re.compile(r"phase\d/\w+")
FILE_LINE = re.compile(r"\.py:\d+$")  # of a notebook's cell there is none
UNUSABLE = ("TypeError", "AttributeError", "KeyError", "IndexError", "ValueError")  # as for None
UNUSABLE_HINTS = {  # by what the error says of what came back
    "NoneType": ": does every path end with a return?",
    "non-iterator": ": `__iter__` returns an iterator, which a list is not, or yields",
}
PROBES = {  # what a test's own code raises: the code of the mistake, and what is said of it
    "ForbiddenShortcut": ("forbidden-shortcut", "{message}. It is called"),  # .probes.ready_made
    "WrongReturn": ("wrong-signature", "{who}: {message}"),  # gradsync.probes.returned
}
HINTS = {  # by what Python or torch says, where that alone does not help a beginner
    "^BdbQuit": "Was breakpoint() left in? On a rank nobody can answer a debugger",
    "^EOFError(?!: input)": "On a rank nobody can answer input()",
    "'get_ipython' is not": "Ranks run plain Python: use IPython in a cell without %%ranks",
    "^NotImplementedError$": "Is the name of a method misspelt, such as __iter__ or forward?",
    "default process group twice": "A process group is running already: use it, and start none",
    "'(builtin_function_or_)?(method|function)'": "Are the brackets of a call missing?",
}
SIGNATURES = {  # by what Python says of arguments that don't fit
    r"takes no arguments": "is __init__ misspelt?",
    r"\w\.\w+\(\) takes": "is `self` missing, or was a parameter renamed, added or removed?",
    "": "was a parameter of it renamed, added or removed?",
}
REPEATS = 4  # frames of one function, of the 20 that a rank tells, that make a recursion
NO_GROUP = "process group has not been initialized"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as a rank described it, every field checked."""

    type: str
    message: str
    code: str | None
    missing: str | None
    frames: tuple[tuple[str, str, str], ...]  # place, function, source line; innermost last
    in_collective: bool
    out_of_memory: bool
    by_user: bool = False  # it was raised by a line of the user's own
    module: str = ""  # the file in which a name is missing
    defined: tuple[str, ...] = ()  # by that file
    marked: tuple[str, int] | None = None  # the line of a syntax error, and the column in it

    @classmethod
    def read(cls, header: dict[str, Any]) -> Raised:
        """Read a rank's `raised` frame, believing nothing of it."""
        rows = _list(header.get("frames"))
        return cls(
            type=_text(header.get("type"), "exception"),
            message=_text(header.get("message")),
            code=_code(header.get("code")),
            missing=None if header.get("missing") is None else _text(header["missing"]),
            frames=tuple(
                (_text(row[0]), _text(row[1]), _text(row[2]).strip())
                for row in rows[-20:]
                if isinstance(row, list) and len(row) == 3
            ),
            in_collective=header.get("in_collective") is True,
            out_of_memory=header.get("out_of_memory") is True,
            by_user=header.get("by_user") is True,
            module=_text(header.get("module")),
            defined=tuple(map(_text, _list(header.get("defined")))),
            marked=_marked(header.get("marked")),
        )

    @property
    def where(self) -> str | None:
        return self.frames[-1][0] if self.frames else None

    @property
    def is_stub(self) -> bool:
        """Tell whether a template's own line raised it, which names the exercise."""
        return self.type == "NotImplementedError" and bool(EXERCISE.fullmatch(self.message))

    @property
    def unwritten(self) -> str:
        """Return what is still to be written: an exercise's id, or a function's name."""
        if self.is_stub:
            return self.message
        if self.type != "NotImplementedError":
            return ""
        return self.frames[-1][1] if self.by_user and self.frames else ""

    @property
    def said(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def traceback(self) -> str:
        if self.marked is not None and self.type in importing.SYNTAX:
            return importing.marked_line(*self.marked)
        lines = []
        for (place, name, source), same in groupby(self.frames):
            times = len(list(same))
            lines.append(f"{place} in {name}" + (f": {source}" if source else ""))
            lines += [f"(the same {times - 1} times more)"] if times > 1 else []
        return "\n".join(lines)

    @property
    def endless_call(self) -> str | None:
        """The function that most frames are of, if it is there again and again."""
        for name, count in Counter(name for _, name, _ in self.frames).most_common(1):
            return name if count >= REPEATS else None
        return None

    @property
    def imported_at(self) -> str | None:
        """Return the line of a file's own that was run on import; None where none was."""
        lines = [place for place, name, _ in self.frames if name == importing.MODULE]
        return lines[-1] if lines and FILE_LINE.search(lines[-1]) else None

    def alike(self, other: Raised) -> bool:
        return (self.type, self.where, self.missing) == (other.type, other.where, other.missing)


def first_of(errors: Mapping[int, Raised]) -> Failure:
    """Return the failure of the first of these ranks, and of others that raised the like.

    Args:
        errors: by rank, at least one.
    """
    first = next(iter(errors.values()))
    alike = tuple(rank for rank, error in errors.items() if error.alike(first))
    together: dict[tuple[str, str], list[int]] = {}
    for rank, error in errors.items():
        together.setdefault((error.said, error.traceback), []).append(rank)
    several = [raised(errors[ranks[0]], tuple(ranks)) for ranks in together.values()]
    return replace(raised(first, alike), several=tuple(several) if len(several) > 1 else ())


def raised(error: Raised, ranks: tuple[int, ...]) -> Failure:
    """Return the failure of ranks that raised this exception; none for a file's first import."""
    if error.imported_at and not error.is_stub:
        return _failed_import(error, ranks)
    status, code, text, where = _classify(error, ranks)
    at = f" at {where}" if where and code not in ("unfinished", "wrong-signature") else ""
    hint = _hint(error) if code == "exception" else ""
    return Failure(
        status=status,
        diagnosis=Diagnosis(code, ranks, f"{text}{at}{hint}", where),
        exception=error.type,
        detail=error.unwritten or error.message,
        traceback=error.traceback,
    )


def _failed_import(error: Raised, ranks: tuple[int, ...]) -> Failure:
    """Return the failure of a file that raised while it was imported."""
    ends = error.type in ("SystemExit", "KeyboardInterrupt")
    if error.type in importing.SYNTAX:
        text = importing.syntax_error(error.message, error.imported_at)
    else:
        said = f"{error.type}({error.code})" if ends else error.said
        text = importing.failed_import(error.type, said, error.message, error.frames)
    code = "group-not-initialised" if NO_GROUP in error.message else "exception"
    return Failure(
        status="crashed" if ends else "error",
        diagnosis=Diagnosis(
            "rank-crashed" if ends else code,
            ranks,
            text,
            error.imported_at,
            guide=importing.GUIDE,
            whole_file=True,
        ),
        exception=error.type,
        detail=error.message,
        traceback=error.traceback,
    )


def on_import(failure: Failure, file: str) -> Failure:
    """Return the failure of a file that was imported for all tests, on a rank that is nobody's."""
    known = failure.diagnosis
    text = known.explanation
    if failure.status == "timeout":
        at = f", it is at {known.where}" if known.where else ""
        text = f"{file} can't be imported: the import does not end{at}. {importing.GUARD}"
    elif not known.whole_file:
        text = f"{file} can't be imported: {text}. {importing.GUARD}"
    told = replace(known, ranks=(), explanation=text, guide=importing.GUIDE, whole_file=True)
    return replace(failure, diagnosis=told)


def _classify(error: Raised, ranks: tuple[int, ...]) -> tuple[Status, str, str, str | None]:
    who, said = ranks_text(ranks), error.said
    if error.unwritten:
        return "unfinished", "unfinished", f"{error.unwritten} is not written yet", error.where
    if error.type in PROBES:
        code, text = PROBES[error.type]
        return "failed", code, text.format(who=who, message=error.message), error.where
    if error.missing and not error.frames:
        text = importing.missing_name(error.missing, error.module or "the file", error.defined)
        return "missing", "missing-name", text, None
    if error.type == "TypeError" and not error.frames and ARGUMENTS.search(error.message):
        asked = next(ask for sign, ask in SIGNATURES.items() if re.search(sign, error.message))
        text = f"{error.message}: {asked}"
        return "error", "wrong-signature", text, None
    if error.type in ("SystemExit", "KeyboardInterrupt"):
        text = f"{who} ended {_itself(ranks)} with {error.type}({error.code})"
        return "crashed", "rank-crashed", text, error.where
    if error.out_of_memory or "DefaultCPUAllocator: can't allocate memory" in error.message:
        return "crashed", "out-of-memory", f"{who} ran out of memory ({said})", error.where
    if NO_GROUP in error.message:
        text = (
            f"{who} used a collective where there is no process group: it has not been started "
            f"yet, or your own code has ended it ({said})"
        )
        return "error", "group-not-initialised", text, error.where
    if not error.frames and error.type in UNUSABLE:
        hints = [hint for sign, hint in UNUSABLE_HINTS.items() if sign in error.message]
        text = f"what came back can't be used ({said}){''.join(hints[:1])}"
        return "error", "wrong-signature", text, None
    return "error", "exception", f"{who} raised {said}", error.where


def _itself(ranks: tuple[int, ...]) -> str:
    return "itself" if len(ranks) == 1 else "themselves"


def _hint(error: Raised) -> str:
    hints = [hint for sign, hint in HINTS.items() if re.search(sign, error.said)]
    if hints:
        return f". {hints[0]}"
    if error.type == "RecursionError":
        return endless_text(error.endless_call)
    return importing.missing_module(error.message, error.where)


def endless_text(name: str | None) -> str:
    """Say which function calls itself, if one does."""
    if name is None:
        return ""
    return (
        f" in a deep recursion: {name} calls itself, directly or through other functions, without "
        "an end"
    )


def _code(value: Any) -> str | None:
    if type(value) is int:
        return str(value)
    return None if value is None else _text(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _marked(value: Any) -> tuple[str, int] | None:
    if isinstance(value, list) and [type(part) for part in value] == [str, int]:
        return _text(value[0]), value[1]
    return None


def _text(value: Any, default: str = "") -> str:
    return events.text(value, MAX_MESSAGE) if type(value) is str else default
