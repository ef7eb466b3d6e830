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
    """Return the groups of submissions with a file that is the same or almost the same.

    Args:
        prints: the digests of each submission's files, by its name.
    """
    files: dict[str, dict[str, CodePrint]] = defaultdict(dict)  # one of each digest
    holders: dict[tuple[str, str], list[str]] = defaultdict(list)  # of a path and a digest
    for name in sorted(prints):
        for each in prints[name]:
            if each.size >= FEWEST:
                files[each.path][each.digest] = each
                holders[each.path, each.digest].append(name)
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for (path, _), names in holders.items():
        if len(names) > 1:
            found[tuple(names)][path] = 1.0
    for path, each_once in files.items():
        for digests, share in _almost_the_same(list(each_once.values())):
            names = sorted(name for digest in digests for name in holders[path, digest])
            found[tuple(names)][path] = share
    return [Similar(names, tuple(sorted(of.items()))) for names, of in sorted(found.items())]


def _almost_the_same(prints: Sequence[CodePrint]) -> Iterable[tuple[set[str], float]]:
    """Yield the digests of files that are connected by pairs, and the least share of these."""
    groups: dict[str, tuple[set[str], float]] = {}
    for one, other, share in _pairs(prints):
        if one in groups and groups[one] is groups.get(other):
            continue
        mine, least = groups.get(one, ({one}, 1.0))
        others, its_least = groups.get(other, ({other}, 1.0))
        joined = (mine | others, min(least, its_least, share))
        groups.update(dict.fromkeys(joined[0], joined))
    return {min(digests): (digests, share) for digests, share in groups.values()}.values()


def _pairs(prints: Sequence[CodePrint]) -> Iterable[tuple[str, str, float]]:
    having: dict[int, list[int]] = defaultdict(list)
    for at, each in enumerate(prints):
        for value in each.hashes:
            having[value].append(at)
    common: Counter[tuple[int, int]] = Counter()
    for places in having.values():
        common.update(combinations(places, 2))
    for (a, b), count in sorted(common.items()):
        if count >= ALMOST * min(len(prints[a].hashes), len(prints[b].hashes)) / 2:
            share = _share(prints[a], prints[b])
            if share >= ALMOST:
                yield prints[a].digest, prints[b].digest, share


def _share(one: CodePrint, other: CodePrint) -> float:
    """Return an estimate of the share of sequences that two different files have in common."""
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
