"""Put correct answers that change different functions together, to grade them as one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradsync.course.known_submissions import Right


def groups(answers: Sequence[Right]) -> list[list[Right]]:
    """Divide correct answers into few groups; the answers of a group change different functions."""
    found: list[tuple[set[str], list[Right]]] = []
    named = [(_names(answer), answer) for answer in answers]
    for names, answer in sorted(named, key=lambda pair: -len(pair[0])):
        fitting = (
            (taken, group)
            for taken, group in found
            if group[0].phase == answer.phase and not taken & names
        )
        taken, group = next(fitting, (set[str](), list[Right]()))
        if not group:
            found.append((taken, group))
        taken |= names
        group.append(answer)
    return [group for _, group in found]


def joined(group: Sequence[Right]) -> Right:
    """Return the solution with the functions of all these answers replaced."""
    additions: dict[str, str] = {}
    for answer in group:
        for path, text in answer.additions.items():
            additions[path] = "\n\n".join(filter(None, (additions.get(path), text)))
    return Right(" and ".join(answer.name for answer in group), additions)


def _names(answer: Right) -> set[str]:
    """Return the top-level names of an answer, in the form "phase1/template_trainer.py NAME"."""
    return answer.definitions | {
        f"{path} {name}"
        for path, text in answer.additions.items()
        for node in ast.parse(text).body
        for name in _assigned(node)
    }


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
