"""Trusted, pure: read the exception that a rank reported, and describe it as a `Failure`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradsync.ranks.failures import import_errors
from gradsync.ranks.protocol import events
from gradsync.records import Diagnosis, Failure, Status
from gradsync.text import full_stop, ranks_text

MAX_MESSAGE = 2_000  # characters of an exception's message that a report shows
ARGUMENTS = re.compile(r"positional argument|keyword argument|takes no arguments|multiple values")
EXERCISE = re.compile(r"phase\d+/\w+")
TO_A_RANK = re.compile(r"\b(i?send|i?recv|P2POp)\(")  # a source line
ASKS_THE_GROUP = re.compile(r"\bget_(rank|world_size)\(")  # a source line
FILE_LINE = re.compile(r"\.py:\d+$")  # a line in a notebook's cell does not match
# Exceptions of a test that uses None, or another value of the wrong type.
UNUSABLE = ("TypeError", "AttributeError", "KeyError", "IndexError", "ValueError")
UNUSABLE_HINTS = {  # a part of the error message -> what to do next
    "NoneType": " Does every path through the function end with a return?",
    "non-iterator": " `__iter__` must use `yield` or return an iterator, such as `iter(list)`.",
}
PROBES = {  # an exception of a test's own code -> the code of the mistake, and the text
    "ForbiddenShortcut": ("forbidden-shortcut", "{message}"),  # support.probes.ready_made
    "WrongReturn": ("wrong-signature", "{who}: {message}"),  # support.probes.returned
}
HINTS = {  # a message of Python or torch that does not help a beginner -> what to do next
    "^BdbQuit": "Remove breakpoint(): a rank has no terminal for a debugger. To debug a rank, use "
    "run_ranks(..., debug=RANK) or `pytest --ranks-pdb RANK`.",
    "^EOFError(?!: input)": "Remove input(): a rank has no terminal to read from.",
    "'get_ipython' is not": "Ranks run plain Python. Use IPython in a cell without %%ranks.",
    "^NotImplementedError$": "Is the name of a method misspelt, such as __iter__ or forward?",
    "default process group twice": "A process group is already running: use it instead of "
    "starting another.",
    "NCCL built in|supported with GPUs": "There is no GPU: use the gloo backend.",
    "_cuda_setDevice|with CUDA|NVIDIA driver|No CUDA GPUs": ""
    "There is no GPU: use one only if `torch.cuda.is_available()`, and else the CPU.",
    r"Pair is not connected .*\[none\]": "A rank can't send to itself or receive from itself: "
    "check the rank that you pass to this call.",
    "no attribute 'set_epoch'": "Not every sampler has `set_epoch`: check before you call it.",
    "attempting to assign a gradient with dtype": "A gradient has the dtype of its parameter. A "
    "tensor that holds the gradients of several parameters, such as a bucket, has one dtype: put "
    "only parameters of this dtype into it.",
    "'(builtin_function_or_)?(method|function)'": "Are the parentheses of a call missing?",
}
OWN_HINTS = {  # the same outside the course, where a program may start its own group
    "default process group twice": "A process group is already running: use it, or pass "
    "`process_group=False` to run_ranks.",
}
SIGNATURES = {  # a part of Python's message on arguments -> what to do next
    r"takes no arguments": "Is __init__ misspelt?",
    r"\w\.\w+\(\) takes": "Add `self` if it is missing, or restore the template's parameters.",
    "": "Restore the template's parameters.",
}
REPEATS = 4  # if so many of the 20 reported frames belong to one function, it is a recursion
NO_GROUP = "process group has not been initialized"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as a rank reported it, with every field checked."""

    type: str
    message: str
    code: str | None
    missing: str | None
    frames: tuple[tuple[str, str, str], ...]  # place, function, source line; innermost last
    in_collective: bool
    out_of_memory: bool
    by_user: bool = False  # a line in the user's files raised it
    module: str = ""  # the file that lacks a name
    defined: tuple[str, ...] = ()  # the names that this file defines
    marked: tuple[str, int] | None = None  # the source line of a syntax error, and the column
    in_course: bool = True  # the rank runs files of the course, which are imported first

    @classmethod
    def read(cls, header: dict[str, Any]) -> Raised:
        """Read a rank's `raised` frame; the rank is not trusted, so each field is checked."""
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
            in_course=header.get("in_course") is not False,
        )

    @property
    def where(self) -> str | None:
        return self.frames[-1][0] if self.frames else None

    @property
    def is_stub(self) -> bool:
        """Return whether the template's `raise` line raised it, with an exercise's id."""
        return self.type == "NotImplementedError" and bool(EXERCISE.fullmatch(self.message))

    @property
    def unwritten(self) -> str:
        """Return the id of the exercise, or the name of the function, that is not written yet."""
        if self.is_stub:
            return self.message
        if self.type != "NotImplementedError":
            return ""
        return self.frames[-1][1] if self.by_user and self.frames else ""

    @property
    def said(self) -> str:
        """The type and the message, as Python prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def traceback(self) -> str:
        if self.marked is not None and self.type in import_errors.SYNTAX:
            return import_errors.marked_line(*self.marked)
        lines = []
        for (place, name, source), same in groupby(self.frames):
            times = len(list(same))
            lines.append(f"{place} in {name}" + (f": {source}" if source else ""))
            lines += [f"(repeated {times - 1} more times)"] if times > 1 else []
        return "\n".join(lines)

    @property
    def endless_call(self) -> str | None:
        """The function that most frames belong to, if it occurs at least `REPEATS` times."""
        for name, count in Counter(name for _, name, _ in self.frames).most_common(1):
            return name if count >= REPEATS else None
        return None

    @property
    def imported_at(self) -> str | None:
        """Return the line outside functions that was running on import, or None."""
        lines = [place for place, name, _ in self.frames if name == import_errors.MODULE]
        return lines[-1] if self.in_course and lines and FILE_LINE.search(lines[-1]) else None

    def alike(self, other: Raised) -> bool:
        """Return whether two ranks raised the same type of exception at the same line."""
        return (self.type, self.where, self.missing) == (other.type, other.where, other.missing)


def first_of(errors: Mapping[int, Raised]) -> Failure:
    """Return the failure of the first of these ranks, and of others that raised the same exception.

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
    """Return the failure of ranks that raised this exception, even if a file was being imported."""
    if error.imported_at and not error.is_stub:
        return _failed_import(error, ranks)
    status, code, text, where = _classify(error, ranks)
    return Failure(
        status=status,
        diagnosis=Diagnosis(code, ranks, text, where),
        exception=error.type,
        detail=error.unwritten or error.message,
        traceback=error.traceback,
    )


def _failed_import(error: Raised, ranks: tuple[int, ...]) -> Failure:
    """Return the failure of a file that raised while it was imported."""
    ends = error.type in ("SystemExit", "KeyboardInterrupt")
    if error.type in import_errors.SYNTAX:
        text = import_errors.syntax_error(error.message, error.imported_at)
    else:
        said = f"{error.type}({error.code})" if ends else error.said
        text = import_errors.failed_import(error.type, said, error.message, error.frames)
    code = "group-not-initialised" if NO_GROUP in error.message else "exception"
    return Failure(
        status="crashed" if ends else "error",
        diagnosis=Diagnosis(
            "rank-crashed" if ends else code,
            ranks,
            text,
            error.imported_at,
            guide=import_errors.GUIDE,
            whole_file=True,
        ),
        exception=error.type,
        detail=error.message,
        traceback=error.traceback,
    )


def on_import(failure: Failure, file: str) -> Failure:
    """Return the failure of a file's first import; it names no ranks: all tests need the file."""
    known = failure.diagnosis
    text = known.explanation
    if failure.status == "timeout":
        at = f" It is still at {known.where}." if known.where else ""
        text = f"{file} can't be imported: the import does not end.{at} {import_errors.GUARD}"
    elif not known.whole_file:
        text = f"{file} can't be imported. {text} {import_errors.GUARD}"
    found = replace(known, ranks=(), explanation=text, guide=import_errors.GUIDE, whole_file=True)
    return replace(failure, diagnosis=found)


def _classify(error: Raised, ranks: tuple[int, ...]) -> tuple[Status, str, str, str | None]:
    """Return the status, the code, the explanation and the line."""
    who, said, where = ranks_text(ranks).capitalize(), full_stop(error.said), error.where
    at = f" at {where}" if where else ""
    if error.unwritten:
        return "unfinished", "unfinished", f"{error.unwritten} is not written yet.", where
    if error.type in PROBES:
        code, text = PROBES[error.type]
        text = full_stop(text.format(who=who, message=error.message))
        called = f" It is called{at}." if at and code == "forbidden-shortcut" else ""
        return "failed", code, text + called, where
    if error.missing and not error.frames:
        text = import_errors.missing_name(error.missing, error.module or "the file", error.defined)
        return "missing", "missing-name", text, None
    if error.type == "TypeError" and not error.frames and ARGUMENTS.search(error.message):
        advice = next(text for sign, text in SIGNATURES.items() if re.search(sign, error.message))
        return "error", "wrong-signature", f"{full_stop(error.message)} {advice}", None
    if error.type in ("SystemExit", "KeyboardInterrupt"):
        text = f"{who} exited with {error.type}({error.code}){at}."
        if error.type == "SystemExit" and error.in_course:
            text += " Every rank must reach the end of the code: remove the exit."
        return "crashed", "rank-crashed", text, error.where
    if error.out_of_memory or "DefaultCPUAllocator: can't allocate memory" in error.message:
        return "crashed", "out-of-memory", f"{who} ran out of memory{at}: {said}", where
    if NO_GROUP in error.message:
        return "error", "group-not-initialised", _without_group(error, who, at), where
    if not error.frames and error.type in UNUSABLE:
        hints = [hint for sign, hint in UNUSABLE_HINTS.items() if sign in error.message]
        what = f"it has no key {error.message}" if error.type == "KeyError" else error.said
        text = f"The returned value can't be used ({what}).{''.join(hints[:1])}"
        return "error", "wrong-signature", text, None
    return "error", "exception", f"{who} raised {_exception(error, at)}{_hint(error)}", where


def _without_group(error: Raised, who: str, at: str) -> str:
    """Return a text on a call that needs a group, or asks it for a number that may be known."""
    text = (
        f"{who} used the default process group{at}, but there is none: either it has not been "
        "started yet, or your code has already destroyed it."
    )
    if not error.frames or not ASKS_THE_GROUP.search(error.frames[-1][2]):
        return text
    return f"{text} A function with an argument `rank` or `world_size` need not ask the group."


def _exception(error: Raised, at: str) -> str:
    """Return "ValueError at trainer.py:3: no such batch."."""
    return full_stop(f"{error.type}{at}: {error.message}" if error.message else error.type + at)


def _hint(error: Raised) -> str:
    """Return a space and a sentence that suggests what to do next, or ""."""
    known = HINTS if error.in_course else {**HINTS, **OWN_HINTS}
    hints = [hint for sign, hint in known.items() if re.search(sign, error.said)]
    if hints:
        return f" {hints[0]}"
    if error.type == "IndexError" and error.frames and TO_A_RANK.search(error.frames[-1][2]):
        return " There is no such rank: ranks go from 0 to N - 1."
    if error.type == "RecursionError":
        return endless_text(error.endless_call)
    return import_errors.missing_module(error.message, error.where, in_course=error.in_course)


def endless_text(name: str | None) -> str:
    """Return a space and a sentence about the function that calls itself, or ""."""
    if name is None:
        return ""
    return (
        f" {name} calls itself in an endless recursion, either directly or through other functions."
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
