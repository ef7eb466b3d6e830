"""Test suites of other projects, with their own harness and with gradsync in its place.

The clones are in the folder `$GRADSYNC_CLONES`, at the commits below, beside a folder `packages`
with what they import. A port in `benchmarks/ports` is a plugin of pytest that replaces the suite's
harness; the tests are unchanged.
"""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.figure import Figure, seconds, shown

TURNS = 3
LIMIT = 900.0  # seconds of one run of a suite
PORTS = Path(__file__).parent / "ports"
VARIABLE = "GRADSYNC_CLONES"
NO_SETTINGS = ("-p", "no:cacheprovider", "-o", "addopts=", "-q")


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of another project, and the functions that its port replaces."""

    url: str
    commit: str
    port: str
    path: tuple[str, ...]  # folders to import from
    packages: str  # that it imports, beside torch and pytest
    tests: tuple[str, ...]
    harness: str  # a file
    replaced: tuple[str, ...]  # functions of this file

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


SUITES = (
    Suite(
        url="https://github.com/huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        port="port_accelerate",
        path=("src",),
        packages="huggingface_hub safetensors psutil pyyaml parameterized",
        tests=("tests/test_cpu.py", "tests/test_grad_sync.py", "tests/test_scheduler.py"),
        harness="src/accelerate/launchers.py",
        replaced=("debug_launcher",),
    ),
    Suite(
        url="https://github.com/allenai/OLMo-core",
        commit="fa6c5014c9f6e9ee789da2d9c20d5126fee8df0d",
        port="port_olmo_core",
        path=("src",),
        packages="cached-path dataclass-extensions safetensors importlib_resources bettermap "
        "pandas",
        tests=("src/test/distributed/checkpoint_test.py",),
        harness="src/olmo_core/testing/distributed.py",
        replaced=("_init_process", "run_distributed_test"),
    ),
    Suite(
        url="https://github.com/Lightning-AI/torchmetrics",
        commit="dab033394560ab3ce05e3d14c13f32e4cde6b351",
        port="port_torchmetrics",
        path=("src", "tests"),
        packages="lightning-utilities cachier scikit-learn",
        tests=("tests/unittests/bases/test_ddp.py",),
        harness="tests/unittests/conftest.py",
        replaced=("setup_ddp", "pytest_sessionstart", "pytest_sessionfinish"),
    ),
)


def figures() -> Iterator[Figure]:
    """Run each suite unchanged and ported in turns, and compare the outcomes of all tests."""
    for suite in SUITES:
        missing = _missing(suite)
        if missing:
            print(f"  {suite.name} is not measured. {missing}", flush=True)
            yield Figure(f"{suite.name}'s suite", "not measured", missing, None, "", None)
        else:
            yield _measured(suite)


def _measured(suite: Suite) -> Figure:
    turns = [(_run(suite, ported=True), _run(suite, ported=False)) for _ in range(TURNS)]
    outcomes = [one for turn in turns for _, one in turn]
    ported, unchanged = (
        statistics.median(took for took, _ in way) for way in zip(*turns, strict=True)
    )
    lines, replaced = _lines(suite)
    for other in outcomes[1:]:
        for test, outcome in sorted(set(outcomes[0].items()) ^ set(other.items())):
            print(f"  {suite.name}: {test} {outcome} in some runs only", flush=True)
    counts = {
        o: list(outcomes[0].values()).count(o) for o in ("passed", "skipped", "failure", "error")
    }
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return Figure(
        f"{suite.name}'s suite ({said}), a port of {lines} lines instead of {replaced}",
        shown(ported),
        f"unchanged: {shown(unchanged)}",
        unchanged / ported,
        "the same outcomes, no more lines",
        all(one == outcomes[0] for one in outcomes)
        and counts["passed"] > 0
        and not counts["failure"] + counts["error"]
        and lines <= replaced,
    )


def _missing(suite: Suite) -> str:
    """Return what must be done before the suite can run, or ""."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return f"Set {VARIABLE} to a folder for clones of the suites."
    clone = Path(folder) / suite.name
    if not clone.is_dir():
        return f"Run: git clone {suite.url} {clone} && git -C {clone} checkout {suite.commit}"
    if _output(["git", "rev-parse", "HEAD"], suite).stdout.strip() != suite.commit:
        return f"Run: git -C {clone} checkout {suite.commit}"
    seen = _output(
        [sys.executable, "-m", "pytest", "--collect-only", *NO_SETTINGS, *suite.tests], suite
    )
    if seen.returncode:
        print(seen.stdout[-2000:], seen.stderr[-2000:])
        install = f"pip install --target {clone.parent / 'packages'} {suite.packages}"
        return f"Its tests can't be imported, as shown above. They need: {install}"
    return ""


def _output(command: list[str], suite: Suite) -> subprocess.CompletedProcess[str]:
    """Run a command in the suite's clone, and keep what it prints."""
    return subprocess.run(
        command,
        cwd=Path(os.environ[VARIABLE]) / suite.name,
        env=_environ(suite),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def _environ(suite: Suite) -> dict[str, str]:
    clones = Path(os.environ[VARIABLE])
    path = [PORTS, *(clones / suite.name / part for part in suite.path), clones / "packages"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "USE_PYTEST_POOL": "1"}


def _run(suite: Suite, *, ported: bool) -> tuple[float, dict[str, str]]:
    """Run the suite; return the seconds, and the outcome of each test."""
    way = ["-p", suite.port] if ported else ["-p", "no:gradsync"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *NO_SETTINGS, f"--junitxml={report}", *way]
        took = seconds(lambda: _output([*command, *suite.tests], suite))
        cases = ElementTree.parse(report).iter("testcase")
        outcomes = {
            f"{case.get('classname')}.{case.get('name')}": next(
                (part.tag for part in case if part.tag in ("skipped", "failure", "error")), "passed"
            )
            for case in cases
        }
    print(f"  {suite.name} {'on gradsync' if ported else 'unchanged'}: {shown(took)}", flush=True)
    return took, outcomes


def _lines(suite: Suite) -> tuple[int, int]:
    """Return the lines of the port, and of the functions that it replaces."""
    harness = Path(os.environ[VARIABLE]) / suite.name / suite.harness
    functions = [
        node
        for node in ast.walk(ast.parse(harness.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in suite.replaced
    ]
    replaced = sum((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    return len((PORTS / f"{suite.port}.py").read_text().splitlines()), replaced
