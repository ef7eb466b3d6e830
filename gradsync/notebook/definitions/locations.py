"""Translate lines of a file that was made from cells to lines of these cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from gradsync.notebook.definitions.file import Module
from gradsync.records import Event, Report, Verdict


def relocate(report: Report, modules: Mapping[str, Module]) -> Report:
    """Return the report with "In [5], line 3" in place of "template_trainer.py:34" in all texts.

    Args:
        report: the report of a submission whose files were made from cells.
        modules: these files by name, such as "phase1/template_trainer.py". Lines of other files,
            and lines that are not from a cell, are not translated.
    """
    phases = {PurePosixPath(name).parts[0] for name in modules}
    texts = {phase: _Texts(phase, modules) for phase in phases}
    verdicts = tuple(
        _verdict(verdict, texts[verdict.phase]) if verdict.phase in texts else verdict
        for verdict in report.verdicts
    )
    return replace(report, verdicts=verdicts)


class _Texts:
    """Translates places in texts about one phase's files."""

    def __init__(self, phase: str, modules: Mapping[str, Module]) -> None:
        self._modules = {
            PurePosixPath(name).name: module
            for name, module in modules.items()
            if PurePosixPath(name).parts[0] == phase
        }
        names = "|".join(map(re.escape, self._modules))
        # The two forms: in texts of the ranks, and in the text of a SyntaxError.
        self._place = re.compile(rf"(?<![\w./])({names})(?::|, line )(\d{{1,9}})\b")

    def replaced(self, text: str) -> str:
        return self._place.sub(self._found, text)

    def _found(self, match: re.Match[str]) -> str:
        origins = self._modules[match[1]].origins
        line = int(match[2])
        if line == len(origins) + 1:  # an error at the end of a file is reported on the next line
            line = len(origins)
        origin = origins[line - 1] if 0 < line <= len(origins) else None
        if origin is None:
            return match[0]
        label, line = origin
        return f"{label}:{line}" if label.endswith(".py") else f"{label}, line {line}"


def _verdict(verdict: Verdict, texts: _Texts) -> Verdict:
    diagnosis = verdict.diagnosis
    if diagnosis is not None:
        where = None if diagnosis.where is None else texts.replaced(diagnosis.where)
        explanation = texts.replaced(diagnosis.explanation)
        diagnosis = replace(diagnosis, explanation=explanation, where=where)
    events = tuple(_event(event, texts) for event in verdict.events)
    message = texts.replaced(verdict.message)
    output = tuple(
        replace(block, lines=tuple(map(texts.replaced, block.lines))) for block in verdict.output
    )
    return replace(verdict, message=message, diagnosis=diagnosis, events=events, output=output)


def _event(event: Event, texts: _Texts) -> Event:
    if event.collective is None or event.collective.where is None:
        return event
    where = texts.replaced(event.collective.where)
    return replace(event, collective=replace(event.collective, where=where))
