"""Format ranks, counts, sizes and lists for a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized

RANGE = 4  # with so many consecutive ranks, "0-3" is easier to read than "0, 1, 2 and 3"
FORGOTTEN = "Did you forget `return`?"
UNITS = ("KiB", "MiB", "GiB", "TiB")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return "1 rank" or "3 ranks"; pass the `plural` of an irregular noun."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(items: Iterable[object], last: str = "and") -> str:
    """Return "a", "a and b", "a, b and c" or "none"; `last` is the word before the last item."""
    *before, end = [*map(str, items)] or ["none"]
    return f"{', '.join(before)} {last} {end}" if before else end


def in_list(name: str) -> str:
    """Return a name for a list of names, in quotes if needed: "Müller, Anna" is one person."""
    return f'"{name}"' if "," in name else name


def ranks_text(ranks: Collection[int]) -> str:
    """Return "rank 1", "ranks 1 and 2", "ranks 0, 1 and 3" or "ranks 0-3".

    `ranks_text(ranks).capitalize()` begins a sentence.
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        part
        for run in runs
        for part in (run if len(run) < RANGE else [f"{run[0]}-{run[-1]}"])
    ]  # fmt: skip
    return f"{verb(ranks, 'rank', 'ranks')} {listed(parts)}" if runs else "no rank"


def verb(subjects: Sized, singular: str, plural: str) -> str:
    """Return the form of a verb, or of another word, that agrees with the number of subjects."""
    return singular if len(subjects) == 1 else plural


def no_float(function: str, kinds: Iterable[str]) -> str:
    """Return the message about a function that returns these types instead of a float."""
    kinds = sorted(set(kinds))
    names = [
        "None" if kind == "NoneType" else f"a{'n' * kind.startswith(tuple('aeiou'))} {kind}"
        for kind in kinds
    ]
    asked = f" {FORGOTTEN}" if "None" in names else ""
    asked += " Call `.item()` on the tensor." * ("Tensor" in kinds)
    return f"{function} returns {listed(names, 'or')}. It must return a float.{asked}"


def full_stop(text: str) -> str:
    """Return a text that ends with a full stop, unless another mark already ends it."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."


def size_text(size: int) -> str:
    """Return a number of bytes as "1 byte", "300 bytes", "256 KiB" or "1.5 MiB"."""
    if size < 2**10:
        return counted(size, "byte")
    power = min((size.bit_length() - 1) // 10, len(UNITS))
    number = f"{size / 2 ** (10 * power):.1f}".removesuffix(".0")
    return f"{number} {UNITS[power - 1]}"
