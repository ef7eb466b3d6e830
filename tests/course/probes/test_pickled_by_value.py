import sys

import pytest

from gradsync.ranks import get_launcher
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from support.probes import Info, raised
from support.probes.sampling import random_states


def test_probes_are_sent_with_the_run_and_are_not_importable_before(tmp_path):
    def function(rank):
        known = [name for name in sys.modules if name.startswith("support.probes")]
        return [Info(rank, 2).rank, len(random_states()), known]

    seen = observe(Task(function, 2, roots=(tmp_path,)), get_launcher())

    assert list(seen) == [[0, 3, []], [1, 3, []]]


def test_not_implemented_is_raised_and_not_returned():
    def unwritten():
        raise NotImplementedError("phase1/train")

    with pytest.raises(NotImplementedError):
        raised(unwritten)


def test_the_exception_of_a_call_is_returned():
    assert isinstance(raised(lambda: int("one")), ValueError)
    assert raised(list) is None
