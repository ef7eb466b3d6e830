"""Grade every attack: it gains no points, changes no other grade, and leaves nothing behind."""

import os
import re
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import leftovers
import pytest
from corpus import read_attacks
from quick_part import drawn

from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import reference
from gradsync.grading.grade import grade
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.ranks import get_launcher
from gradsync.reports import html, terminal

pytestmark = pytest.mark.usefixtures("needs_sandbox")
ROOT = Path(__file__).parents[3]
COURSE = find_course(ROOT)
ATTACKS = {f"{attack.group}: {attack.name}": attack for attack in read_attacks()}
MARK = f"hostile-{os.getpid()}-"
SECRET = "xyzzy-plugh-8129"
TIME_LIMIT = 1.0  # seconds, for attacks that only the time limit ends
IN_TIME = 60.0  # seconds, three times the limit of a run: far more than any attack needs
MAX_SHOWN = 2**20  # characters of a report, so that a person can read it
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")  # control characters of a terminal
NEIGHBOUR = "phase1/cleanup_distributed", "without_a_group"  # the fastest test


class Trap:
    """Services of the grader's machine that no rank may reach."""

    def __init__(self, stack):
        self.reached = []
        self.port = self._listen(stack.enter_context(socket.create_server(("127.0.0.1", 0))))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.abstract = f"\0{MARK}service"
        unix.bind(self.abstract)
        unix.listen()
        self._listen(unix)

    def _listen(self, server):
        threading.Thread(target=self._serve, args=[server], daemon=True).start()
        name = server.getsockname()
        return name[1] if isinstance(name, tuple) else name

    def _serve(self, server):
        while True:
            try:
                client, _ = server.accept()
            except OSError:  # the tests have ended
                return
            with client:
                client.sendall(SECRET.encode())
                self.reached.append(server.getsockname())


@pytest.fixture(scope="module")
def trap():
    with ExitStack() as stack:
        yield Trap(stack)


@pytest.fixture(scope="module")
def secrets():
    """Put a secret where graders have secrets, before any rank starts."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secrets-")))
        home = folder / "home"
        places = [folder / "grades.csv", home / ".netrc", home / "other" / "template_trainer.py"]
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(SECRET)
        patch.setenv("HOME", str(home))
        patch.setenv("GRADER_TOKEN", SECRET)
        own = folder / "tmp"
        own.mkdir()
        patch.setattr(tempfile, "tempdir", str(own))  # only the grader writes there
        stack.enter_context(leftovers.orphans_adopted())
        get_launcher("sandbox").close()  # it restarts, and could inherit the secret
        graded(reference(COURSE), *NEIGHBOUR)  # starts the processes that remain between runs
        yield [str(place) for place in places]


@pytest.fixture(scope="module")
def undisturbed(secrets):
    """Return the outcomes of a neighbour's grading without any attack."""
    return outcomes(graded(reference(COURSE), *NEIGHBOUR))


def outcomes(report):
    """Return the parts of a report that do not depend on time."""
    return [replace(verdict, seconds=0.0, events=()) for verdict in report.verdicts]


def graded(submission, exercise, test):
    return grade(
        submission,
        COURSE,
        phases=[exercise.partition("/")[0]],
        seed=1,
        exercises=[exercise],
        launcher="sandbox",
        pytest_options=["-k", test, "-W", "default"],  # as in grading, warnings are not errors
    )


@pytest.mark.parametrize(
    "name", drawn({name: (attack.group, attack.exercise) for name, attack in ATTACKS.items()})
)
def test_an_attack_gains_no_points_harms_no_grade_and_leaves_nothing(
    name, secrets, undisturbed, trap, monkeypatch
):
    attack = ATTACKS[name]
    submission = attack.submission(
        COURSE,
        MARK=MARK,
        SECRETS=secrets,
        COURSE=str(ROOT),
        PORT=trap.port,
        ABSTRACT=trap.abstract,
        GRADER=os.getpid(),
    )
    before = len(leftovers.descendants(os.getpid())), leftovers.open_files(), leftovers.segments()
    printed = sys.stdout, sys.stderr

    with monkeypatch.context() as patch:
        if attack.waits:
            patch.setitem(SuiteRanks.__call__.__kwdefaults__, "timeout", TIME_LIMIT)
            patch.setattr("gradsync.grading.suite.learner_files.TIME_LIMIT", TIME_LIMIT)
        report = graded(submission, attack.exercise, attack.test)
    neighbour = graded(reference(COURSE), *NEIGHBOUR)

    [verdict] = report.verdicts
    assert verdict.status in attack.ends.split(" or "), verdict.message
    assert attack.says in verdict.message
    whole = attack.on == "reference" and "passed" in attack.ends
    assert report.score == (report.max_score if whole else 0)
    assert report.seconds < IN_TIME
    assert outcomes(neighbour) == undisturbed
    assert neighbour.score == neighbour.max_score > 0
    shown = terminal.render(report, width=500) + html.render(report)
    assert len(shown) < MAX_SHOWN
    assert SECRET not in shown + repr(report)
    assert "<script>alert" not in html.render(report)
    assert not CONTROLS.search(shown)
    assert trap.reached == []
    assert leftovers.marked_files(MARK) == []
    assert (sys.stdout, sys.stderr) == printed
    after = len(leftovers.descendants(os.getpid())), leftovers.open_files(), leftovers.segments()
    assert after == before


def test_no_two_attacks_have_the_same_name():
    names = [attack.name for attack in read_attacks()]

    assert sorted(names) == sorted(set(names))
