"""Apply safe fixes with libcst, which does not change the rest of a file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from gradsync.review.findings import Rule
from gradsync.review.reviewing import review

Place = tuple[int, int]  # line from 1 and column from 0
FIXABLE = ("DDP003", "DDP005", "DDP013", "DDP021")


def fix(path: Path, rules: Sequence[Rule]) -> str:
    """Apply the safe fixes to a file, and return the changed lines; "" without a change.

    The file is replaced atomically.

    Raises:
        UnusableInput: if it can't be read, or is not Python code.
    """
    places: dict[str, set[Place]] = {code: set() for code in FIXABLE}
    for finding in review([path], [rule for rule in rules if rule.code in FIXABLE]).findings:
        if finding.path == str(path):
            places[finding.code].add((finding.line, finding.column - 1))
    if not any(places.values()):
        return ""
    before = cst.parse_module(path.read_bytes())
    after = MetadataWrapper(before).visit(_Fixes(places))
    if after.code == before.code:
        return ""
    beside = path.with_name(f"{path.name}.fixed")
    try:
        beside.write_bytes(after.bytes)
        beside.chmod(path.stat().st_mode)
        os.replace(beside, path)  # noqa: PTH105 - this is atomic
    finally:
        beside.unlink(missing_ok=True)
    lines = difflib.unified_diff(
        before.code.splitlines(), after.code.splitlines(), n=0, lineterm=""
    )
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


class _Fixes(cst.CSTTransformer):
    """A transformer that changes the calls at the places of findings."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, places: dict[str, set[Place]]) -> None:
        super().__init__()
        self._places = places

    def _found(self, node: cst.CSTNode, code: str) -> bool:
        start = self.get_metadata(PositionProvider, node).start
        return (start.line, start.column) in self._places[code]

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        if self._found(original_node, "DDP013"):
            location = cst.Arg(
                cst.SimpleString('"cpu"'),
                keyword=cst.Name("map_location"),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
            return updated_node.with_changes(args=[*updated_node.args, location])
        if self._found(original_node, "DDP003"):
            return updated_node.with_changes(args=_without(updated_node.args, "shuffle"))
        return updated_node

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.Assign):
            return updated_node
        target, value = original_node.body[0].targets[0].target, original_node.body[0].value
        if not isinstance(target, cst.Subscript) or not self._found(target, "DDP021"):
            return updated_node
        module = cst.Module([])
        environ = module.code_for_node(target.value)
        call = f'{environ}.setdefault("MASTER_PORT", {module.code_for_node(value)})'
        return updated_node.with_changes(body=[cst.Expr(cst.parse_expression(call))])

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=self._with_epochs(original_node, updated_node))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        return updated_node.with_changes(body=self._with_epochs(original_node, updated_node))

    def _with_epochs(
        self, before: cst.IndentedBlock | cst.Module, after: cst.IndentedBlock | cst.Module
    ) -> list[cst.BaseStatement]:
        """Insert `set_epoch` into the loops over epochs that follow a sampler in its block."""
        samplers = [name for statement in before.body if (name := self._sampler(statement))]
        return [
            _with_epoch(statement, samplers) if isinstance(statement, cst.For) else statement
            for statement in after.body
        ]

    def _sampler(self, statement: cst.CSTNode) -> str:
        """Return the name of a sampler whose `set_epoch` is never called; "" for other code."""
        if not isinstance(statement, cst.SimpleStatementLine):
            return ""
        only = statement.body[0]
        if not isinstance(only, cst.Assign) or not isinstance(only.value, cst.Call):
            return ""
        name = only.targets[0].target
        found = self._found(only.value, "DDP005")
        return name.value if found and isinstance(name, cst.Name) else ""


def _is_keyword(arg: cst.Arg, name: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == name


def _without(args: Sequence[cst.Arg], keyword: str) -> list[cst.Arg]:
    """Remove an argument; the new last argument ends like the old one, with or without a comma."""
    kept = [arg for arg in args if not _is_keyword(arg, keyword)]
    if kept and kept[-1] is not args[-1]:
        kept[-1] = kept[-1].with_changes(
            comma=args[-1].comma, whitespace_after_arg=args[-1].whitespace_after_arg
        )
    return kept


def _with_epoch(loop: cst.For, samplers: Sequence[str]) -> cst.For:
    epoch = loop.target.value if isinstance(loop.target, cst.Name) else ""
    if "epoch" not in epoch or not isinstance(loop.body, cst.IndentedBlock):
        return loop
    calls = [cst.parse_statement(f"{name}.set_epoch({epoch})") for name in samplers]
    return loop.with_changes(body=loop.body.with_changes(body=[*calls, *loop.body.body]))
