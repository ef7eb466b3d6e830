"""The file that is made of a notebook's definitions."""

from __future__ import annotations

import ast
import builtins
import time
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gradsync.notebook.definitions.file import Cell, Module, NotebookError, defined_in, module_of
from gradsync.submission.contents import MAX_FILE

ROOT = Path(__file__).parents[3]
SOLUTIONS = sorted((ROOT / "solutions").glob("phase*/*.py"))
EXPERIMENTS = [
    "print(1)",
    "%matplotlib inline\nmodel = make()\nfor step in range(10):\n    train_somehow(model)",
    "!ls -l\naverage_gradients?",
    "%%time\ntrain_step = 1",
    "def broken(:",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])",
]


def made(*sources: str, wanted: str = "f", **more) -> Module:
    cells = [Cell(f"In [{number}]", source) for number, source in enumerate(sources, 1)]
    return module_of(cells, wanted.split(), **more)


def kept(*sources: str, wanted: str = "f", **more) -> list[str]:
    """The lines of cells that a file got."""
    module = made(*sources, wanted=wanted, **more)
    pairs = zip(module.text.splitlines(), module.origins, strict=True)
    return [line for line, origin in pairs if origin is not None]


def ran(module: Module) -> dict:
    names: dict = {"__name__": "made"}
    exec(compile(module.text, "made", "exec"), names)
    return names


def test_a_definition_is_kept_and_experiments_are_not():
    lines = kept(
        "print(1)", "def f():\n    return 1\nf()", "x = f()", "for i in range(9):\n    f()"
    )

    assert lines == ["def f():", "    return 1"]


@pytest.mark.parametrize(
    ("helper", "user"),
    [
        ("import math", "def f():\n    return math.pi"),
        ("from math import pi", "def f():\n    return pi"),
        ("import math as m", "class f:\n    x = m.pi"),
        ("def g(): pass", "def f():\n    return g()"),
        ("async def g(): pass", "async def f():\n    await g()"),
        ("class B: pass", "class f(B): pass"),
        ("def d(f): return f", "@d\ndef f(): pass"),
        ("X = 1", "def f(x=X): pass"),
        ("T = int", "def f(x: T): pass"),
        ("T = int", "def f() -> T: pass"),
        ("X: int = 1", "f = lambda: X"),
        ("a, (b, *c) = 1, [2]", "def f(): return [c for _ in ()]"),
        ("try:\n    import x\nexcept ImportError:\n    x = None", "def f(): return x"),
        ("if 1:\n    y = 1\nelse:\n    y = 2", "def f(): return y"),
        ("with open('f') as file:\n    text = file.read()", "def f(): return text"),
        ("for i in range(2):\n    last = i", "def f(): return last"),
        ("X = 1", "def f():\n    class A:\n        def g(self): return X"),
        ("CACHE = {}", "def f():\n    global CACHE\n    CACHE = 1"),
    ],
)
def test_the_names_that_a_definition_needs_are_kept(helper, user):
    assert kept(helper, "unneeded = 1", user) == [*helper.split("\n"), *user.split("\n")]


def test_needs_are_followed_through_several_definitions():
    lines = kept("import a", "def g(): return a", "def h(): return g", "def f(): return h")

    assert lines == ["import a", "def g(): return a", "def h(): return g", "def f(): return h"]


def test_a_local_name_needs_nothing():
    lines = kept(
        "for i in range(9):\n    train(i)", "def f():\n    for i in range(2):\n        pass"
    )

    assert "    train(i)" not in lines


def test_functions_that_call_each_other_are_kept_once():
    assert kept("def f(): return g()", "def g(): return f()") == [
        "def f(): return g()",
        "def g(): return f()",
    ]


def test_the_latest_definition_wins():
    assert kept("def f(): return 1", "def f(): return 2") == ["def f(): return 2"]


def test_changes_after_the_latest_definition_are_kept():
    lines = kept("x = [0]", "x = [1]", "x += [2]", "x[0] = 3", "x.append(4)", "def f(): return x")

    assert lines == ["x = [1]", "x += [2]", "x[0] = 3", "def f(): return x"]


def test_an_attribute_that_is_set_is_kept():
    assert kept("def f(): return f.x", "f.x = 1", "g.x = 2")[-1] == "f.x = 1"


def test_a_name_that_is_read_as_a_statement_runs_is_kept_as_it_was_then():
    lines = kept("x = 1", "y = x + 1", "x = 5", "def f(): return y")

    assert lines == ["x = 1", "y = x + 1", "def f(): return y"]


def test_an_older_definition_is_kept_for_a_call_that_needed_it():
    cells = [
        "import math",
        "def g(): return math.pi",
        "X = g()",
        "import math",
        "def f(): return X",
    ]

    assert ran(made(*cells))["f"]() == pytest.approx(3.14159, rel=1e-5)


def test_a_function_that_is_wrapped_under_its_own_name_keeps_its_original():
    assert kept("def f(): return 1", "f = staticmethod(f)") == [
        "def f(): return 1",
        "f = staticmethod(f)",
    ]


def test_an_overload_is_kept_with_the_function_that_it_belongs_to():
    overload = "@f.register\ndef _(x: int): return 2"
    source = "from functools import singledispatch\n@singledispatch\ndef f(x): return 1"

    assert ran(made(source, overload))["f"](3) == 2


def test_submodules_that_were_imported_apart_stay_imported():
    lines = kept("import os.path", "import os", "def f(): return os.path")

    assert lines == ["import os.path", "import os", "def f(): return os.path"]


def test_a_star_import_is_kept_if_a_name_has_no_other_origin():
    assert kept("from math import *", "def f(): return pi")[0] == "from math import *"
    assert kept("from math import *", "def f(): return 1") == ["def f(): return 1"]


def test_exact_lines_are_kept_with_decorators_and_comments():
    source = "@d  # one\n@e\ndef f(  # two\n    x,\n):\n    # three\n    return '''\n  a'''  # four"

    assert kept(source) == source.split("\n")


def test_statements_on_one_line_are_separated():
    assert kept("print(1); ä = 2; f = ä; print(3)") == ["ä = 2", "f = ä"]


def test_a_statement_that_a_backslash_joins_to_the_next_stands_alone():
    assert ran(made("f = 1; \\\n  x = 2"))["f"] == 1


def test_each_line_has_its_cell_and_its_line_number_there():
    module = made("import a\n\ndef g():\n    return a", "\n\ndef f(): return g")

    assert [origin for origin in module.origins if origin] == [
        ("In [1]", 1),
        ("In [1]", 3),
        ("In [1]", 4),
        ("In [2]", 3),
    ]
    assert len(module.origins) == module.text.count("\n")


def test_a_cell_without_a_label_is_ours():
    module = module_of([Cell("", "f = 1")], ["f"])

    assert set(module.origins) == {None}


def test_names_that_nobody_defines_are_absent():
    assert kept("def f(): pass", wanted="f g") == ["def f(): pass"]


def test_future_imports_come_first():
    text = made("x = 1", "from __future__ import annotations\ndef f(a: int): return x").text

    assert ran(Module(text, ()))["f"].__annotations__ == {"a": "int"}


@pytest.mark.parametrize(
    "magic",
    [
        "%time g()",
        "!ls 'it",
        "g??",
        "%timeit -n 1 \\\n  g()",
        "?g",
        "!echo {x} (",
        "%%bash is it not",
    ],
)
def test_lines_of_ipython_are_blank_and_keep_their_number(magic):
    module = made(f"x = 1\n{magic}\ndef f(): return x")

    assert module.origins[-1] == ("In [1]", 3 + magic.count("\n"))


def test_a_name_that_a_magic_is_assigned_to_is_none():
    assert ran(made("files = !ls | grep '(\nx = %sql select\ndef f(): return files, x"))["f"]() == (
        None,
        None,
    )


def test_code_that_only_looks_like_a_magic_is_kept():
    source = "%time\nx = '''\n%a\n!b\nc?\n'''\ny = (7\n  %4)\ndef f(): return x, y  # why?"

    assert ran(made(source))["f"]() == ("\n%a\n!b\nc?\n", 3)


def test_a_cell_magic_drops_its_cell():
    assert kept("def f(): return 1", "\n%%ranks 4\ndef f(): return 2") == ["def f(): return 1"]


def test_a_broken_cell_costs_its_own_names_alone_and_they_raise_its_error():
    module = made("def g(): return 7", "x = 1\ndef f(:\n    pass", wanted="f g")
    names = ran(module)

    assert names["g"]() == 7
    with pytest.raises(SyntaxError, match="invalid syntax") as error:
        names["f"](1, x=2)
    line = error.traceback[-1].lineno + 1
    assert module.origins[line - 1] == ("In [2]", 2)


def test_each_name_raises_the_error_of_the_cell_that_defines_it_last():
    names = ran(made("def f(:", "def g(): return", "def g(x", "def f(x) y", wanted="f g"))

    for name, said in (("f", "expected ':'"), ("g", "was never closed")):
        with pytest.raises(SyntaxError, match=said):
            names[name]()


@pytest.mark.parametrize("source", ["class f(", "f = (", "async def f(x) return", "f: int = ="])
def test_every_way_to_define_a_name_is_seen_in_a_broken_cell(source):
    with pytest.raises(SyntaxError):
        ran(made(source))["f"]()


def test_a_broken_cell_that_was_fixed_later_is_ignored():
    assert kept("def f(:", "def f(): pass") == ["def f(): pass"]


def test_a_broken_cell_about_something_else_is_ignored():
    assert kept("def f(): pass", "def g(: f()") == ["def f(): pass"]


def test_a_base_comes_first_and_its_main_block_last():
    base = Module.of_text(
        "phase1/a.py",
        '"""Doc."""\nfrom __future__ import annotations\n\ndef f(): return 1\n'
        'if __name__ == "__main__":\n    print(f())\nlast = 2\n',
    )

    module = made("def f(): return 2", base=base)

    assert module.text.rstrip().endswith('if __name__ == "__main__":\n    print(f())')
    assert module.text.index("return 1") < module.text.index("return 2")
    assert module.origins[-1] == ("phase1/a.py", 6)
    assert ran(module)["f"]() == 2


def test_a_base_that_is_not_valid_python_stays_as_it_is():
    base = Module.of_text("phase1/a.py", "def g(:\n")

    with pytest.raises(SyntaxError) as error:
        ran(made("f = 1", base=base))
    assert made("f = 1", base=base).origins[error.value.lineno - 1] == ("phase1/a.py", 1)


def test_imports_from_the_file_itself_count_as_nothing():
    lines = kept("from phase1.a import g, f", "def f(): return g", wanted="f", without=["a"])

    assert lines == ["def f(): return g"]


def test_no_comment_of_a_cell_declares_an_encoding():
    source = made("def f():\n    # coding: utf-7\n    return 'é+AG4-'").text.encode()

    names: dict = {}
    exec(compile(source, "made", "exec"), names)
    assert names["f"]() == "é+AG4-"


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_characters_that_no_file_can_contain_are_replaced(bad):
    module = made(f"def f(): return '{bad}'\r\n")

    assert ran(module)["f"]() == "\ufffd"
    module.text.encode()


def test_a_cell_that_is_too_large_raises_an_error_when_it_is_needed():
    huge = "f = 1\n" + "#" * MAX_FILE

    with pytest.raises(SyntaxError, match=r"In \[1\] has 1,048,582 characters"):
        ran(made(huge))["f"]()
    assert kept("#" * 3 * MAX_FILE, "f = 1") == ["f = 1"]


def test_a_notebook_that_is_too_large_is_refused():
    cell = "#" * (MAX_FILE - 1)

    with pytest.raises(NotebookError, match="more than 2,097,152 characters"):
        made(cell, cell, cell)


@pytest.mark.parametrize(
    "source",
    [
        "f = 1" + "+1" * 50_000,
        "f = a" + ".b" * 50_000,
        "f = " + "-" * 50_000 + "1",
        "f = " + "(" * 5_000 + ")" * 5_000,
        "f = " + "'" * 50_001,
        "x = 1\n%" + "[" * 100_000,
        "f = 1\n" + "f += g\n" * 5_000,
        ",".join(f"f{i}" for i in range(5_000)) + " = " + ",".join(f"g{i}" for i in range(5_000)),
        "\n".join(f"f{i} = f{i + 1} = g(f{i})" for i in range(5_000)),
        "def f(): return x\n" + "x = f()\n" * 5_000,
        "from a import *\n" * 2_000 + "\n".join(f"f = g{i}" for i in range(2_000)),
    ],
    ids=range(11),
)
def test_hostile_cells_take_linear_time(source):
    began = time.process_time()

    made(source, "def f0(): return f")

    assert time.process_time() - began < 5


@given(st.lists(st.text(alphabet="def f():\n\t=%!?'\"\\x,#[]\0\ud800é@;", max_size=60), max_size=4))
@settings(deadline=None, max_examples=200)
def test_any_text_gives_a_file_with_an_origin_for_each_line(sources):
    module = made(*sources, wanted="f x")

    assert len(module.origins) == module.text.count("\n")
    module.text.encode()


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
@given(data=st.data())
@settings(deadline=None, max_examples=15, phases=[Phase.explicit, Phase.generate])
def test_a_solution_in_cells_among_experiments_gives_its_definitions_back(path, data):
    text = path.read_text()
    nodes = [node for node in ast.parse(text).body if not isinstance(node, (ast.Expr, ast.If))]
    cells, group = [], []
    for node in nodes:
        group.append(whole(node, text))
        if data.draw(st.booleans()):
            cells += [Cell("In [1]", "\n".join(group)), Cell("In [2]", data.draw(EXPERIMENT))]
            group = []
    cells.append(Cell("In [3]", "\n".join(group)))
    wanted = {name for cell in cells[::2] for name in defined_in(cell) or ()}

    found = module_of(cells, wanted - set(dir(builtins)))

    assert definitions(found.text) == definitions(text)


EXPERIMENT = st.sampled_from(EXPERIMENTS)


def whole(node: ast.stmt, text: str) -> str:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def definitions(text: str) -> list[str]:
    return [
        ast.dump(node) for node in ast.parse(text).body if not isinstance(node, (ast.Expr, ast.If))
    ]


def test_defined_in_returns_the_names_of_a_cell():
    assert defined_in(Cell("", "import a.b\nx, y = 1, 2\ndef f(): z = 1")) == {"a", "x", "y", "f"}
    assert defined_in(Cell("", "def f(:")) is None
