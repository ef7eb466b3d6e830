"""Find submissions with the same or almost the same code: pure functions on short digests.

A file is divided into words, without comments and blank space, and each sequence of a few words is
hashed. Sequences of the template do not count. The smallest hashes estimate how much of two files
is the same (MinHash), so files of a class are compared without reading them again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from gradsync.class_records import Similar
from gradsync.records import CodePrint

WORD = re.compile(r"\w+|[^\w\s]")
COMMENT = re.compile(r"#[^\n]*")
LENGTH = 6  # words of a sequence
KEPT = 96  # hashes of a file
FEWEST = 40  # sequences; shorter answers are often equal
ALMOST = 0.85  # share of equal sequences from which two files are reported


def code_print(path: str, source: bytes, template: bytes = b"") -> CodePrint:
    """Return the digests of a file, without what its template has."""
    words = _words(source)
    hashes = _hashes(words) - _hashes(_words(template))
    digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    return CodePrint(path, digest, len(hashes), tuple(sorted(hashes)[:KEPT]))


def similar(prints: Mapping[str, Sequence[CodePrint]]) -> list[Similar]:
    """Return the pairs of submissions with a file that is the same or almost the same.

    Args:
        prints: the digests of each submission's files, by its name.
    """
    files: dict[str, list[tuple[str, CodePrint]]] = defaultdict(list)
    for name in sorted(prints):
        for each in prints[name]:
            if each.size >= FEWEST:
                files[each.path].append((name, each))
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for path, members in files.items():
        for one, other, share in _pairs(members):
            found[one, other][path] = share
    return [Similar(one, other, tuple(sorted(of.items()))) for (one, other), of in found.items()]


def _pairs(members: Sequence[tuple[str, CodePrint]]) -> Iterable[tuple[str, str, float]]:
    holders: dict[int, list[int]] = defaultdict(list)
    for at, (_, each) in enumerate(members):
        for value in each.hashes:
            holders[value].append(at)
    common: Counter[tuple[int, int]] = Counter()
    for having in holders.values():
        common.update(combinations(having, 2))
    for (a, b), count in sorted(common.items()):
        if count >= ALMOST * min(len(members[a][1].hashes), len(members[b][1].hashes)) / 2:
            share = _share(members[a][1], members[b][1])
            if share >= ALMOST:
                yield members[a][0], members[b][0], share


def _share(one: CodePrint, other: CodePrint) -> float:
    """Return an estimate of the share of sequences that two files have in common."""
    if one.digest == other.digest:
        return 1.0
    union = sorted({*one.hashes, *other.hashes})[:KEPT]
    both = set(one.hashes) & set(other.hashes)
    return min(sum(value in both for value in union) / len(union), 0.99)


def _words(source: bytes) -> list[str]:
    return WORD.findall(COMMENT.sub("", source.decode("utf-8", "replace")))


def _hashes(words: Sequence[str]) -> set[int]:
    runs = (" ".join(words[at : at + LENGTH]) for at in range(len(words) - LENGTH + 1))
    return {
        int.from_bytes(hashlib.blake2b(run.encode(), digest_size=6).digest(), "big") for run in runs
    }
