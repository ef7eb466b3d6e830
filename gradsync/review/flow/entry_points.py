"""Find the programs of a file: the script itself, then the functions that it never calls."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from gradsync.review.flow.interpreter import Interpreter
from gradsync.review.flow.program import Program
from gradsync.review.flow.project import Project, Source
from gradsync.review.flow.values import Code, Step, Value

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def programs(project: Project, source: Source) -> Iterator[Program]:
    """Yield the program of this file as a script, then a program for each unused definition."""
    interpreter = Interpreter(project)
    env = interpreter.load(source, as_main=True)
    yield _program(interpreter, source, entry=True)
    for node in _callers_first(source):
        if node in interpreter.times or _is_used(node, interpreter):
            continue
        value = env.get(node.name)
        if value is not None and value.code is not None and value.code.node is node:
            yield _fragment(interpreter, source, value.code)


def _program(interpreter: Interpreter, source: Source, *, entry: bool) -> Program:
    steps = interpreter.steps
    spawned = interpreter.spawned
    inside = [step for step in steps if spawned.intersection(step.stack)]
    if any(step.path == "torch.distributed.init_process_group" for step in inside):
        steps = inside  # the others run once, in the process that starts the ranks
    return Program(source, steps, entry, list(interpreter.modules), interpreter.departures)


def _fragment(interpreter: Interpreter, source: Source, code: Code) -> Program:
    """Follow a function or each method of a class, with unknown arguments."""
    interpreter.steps, interpreter.departures, interpreter.started = [], [], False
    interpreter.frame.env, interpreter.run = dict(interpreter.frame.env), 0
    call = ast.Call(ast.Name(code.node.name), [], [])  # type: ignore[union-attr]
    ast.copy_location(call, code.node)
    root = Step(-1, call, source, "", "", "", Value(), (), {}, (), (), (), ())
    value = interpreter.follow(code, root, (), {})
    if isinstance(code.node, ast.ClassDef):
        thing = next(iter(value.things))
        for node in code.node.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node in interpreter.times:
                    continue
                interpreter.run += 1
                method = interpreter.property_of(thing, node.name)
                if method is not None and method.code is not None:
                    interpreter.follow(method.code, root, (), {})
    return _program(interpreter, source, entry=False)


def _is_used(node: Definition, interpreter: Interpreter) -> bool:
    """Return whether a class has an instance; its unused methods are then not followed."""
    if not isinstance(node, ast.ClassDef):
        return False
    return any(inner in interpreter.times for inner in node.body)


def _callers_first(source: Source) -> list[Definition]:
    """Return the file's functions and classes; those that no other one mentions come first."""
    nodes = [node for node in source.tree.body if isinstance(node, Definition)]
    defined = {node.name for node in nodes}
    mentioned: Counter[str] = Counter()
    for node in nodes:
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        mentioned.update(names & defined - {node.name})
    return sorted(nodes, key=lambda node: node.name in mentioned)
