"""The data loader's file as a program: its shares and its verdict, in any wording."""

import pytest

from support.probes.scripts import run_with_samplers
from support.rules.scripts import prints_no_shares, prints_no_verdict, raises

SAMPLER = """
class Sampler:
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True):
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        assert len(self) > 0

    def __iter__(self):
        share = len(self)
        return iter([k % 10 for k in range(self.rank * share, (self.rank + 1) * share)])

    def __len__(self):
        return -(-len(self.dataset) // self.num_replicas)
"""
SHARES = """
shares = [list(Sampler(range(10), 4, rank)) for rank in range(4)]
for rank, share in enumerate(shares):
    print({shown})
"""
VERDICT = """
together = sum(shares, [])
right = len(set(map(len, shares))) == 1 and len(set(together)) == 10 and len(together) == 12
print("fair" if right else "unfair")
"""
CHECKS = """
assert len(set(map(len, shares))) == 1, "unequal"
assert len(set(sum(shares, []))) == 10, "not all"
print("all is well")
"""


def runs_of(tmp_path, program):
    program = "".join(f"\n    {line}" for line in program.splitlines())
    path = tmp_path / "loader.py"
    path.write_text(f'{SAMPLER}\nif __name__ == "__main__":{program}\n')
    namespace = {}
    exec(SAMPLER, namespace)
    return run_with_samplers(str(path), namespace["Sampler"])


@pytest.mark.parametrize("shown", ["rank, share", "*share", "f'{rank}:', tuple(share)"])
@pytest.mark.parametrize("verdict", [VERDICT, CHECKS])
def test_shares_and_a_verdict_in_any_wording_are_right(tmp_path, shown, verdict):
    runs = runs_of(tmp_path, SHARES.format(shown=shown) + verdict)

    assert raises(runs) is None
    assert prints_no_shares(runs) is None
    assert prints_no_verdict(runs) is None


@pytest.mark.parametrize(
    ("last", "code", "text"),
    [
        ("1 / 0", "exception", "at loader.py:19: ZeroDivisionError: division by zero. It should"),
        ("import torch.distributed as dist; dist.get_rank()", "group-not-initialised", "torchrun"),
    ],
)
def test_an_exception_is_reported_with_its_line(tmp_path, last, code, text):
    found = raises(runs_of(tmp_path, f"{SHARES.format(shown='share')}{last}"))

    assert (found.code, found.where) == (code, "loader.py:19")
    assert text in found.explanation


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("pass", "prints nothing"),
        (SHARES.format(shown="rank, len(share)") + VERDICT, "does not print the share of rank 0"),
        ("print(list(Sampler(range(10), 4, 0)))", "does not print the share of rank 1"),
        ("print(list(range(12)))", "does not print the share of rank 0"),
    ],
)
def test_missing_shares_are_reported(tmp_path, program, what):
    found = prints_no_shares(runs_of(tmp_path, program))

    assert found.code == "wrong-output"
    assert what in found.explanation


@pytest.mark.parametrize("verdict", ["", "print('fair')", "print('12 of 12 indices')"])
def test_a_verdict_that_never_changes_is_reported(tmp_path, verdict):
    runs = runs_of(tmp_path, f"{SHARES.format(shown='share')}\n{verdict}")

    assert prints_no_shares(runs) is None
    assert "in which the last rank gets fewer" in prints_no_verdict(runs).explanation


def test_a_sampler_that_is_not_written_yet_raises_not_implemented(tmp_path):
    with pytest.raises(NotImplementedError):
        runs_of(tmp_path, "raise NotImplementedError")
