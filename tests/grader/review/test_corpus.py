"""The measurement on public repositories compares findings with the verdicts."""

from checks.review_corpus import (
    VERDICTS,
    Place,
    by_rule,
    findings,
    recall,
    report,
    repositories,
    verdicts,
)

WRONG = """\
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.destroy_process_group()
"""


def test_each_verdict_belongs_to_a_repository_of_the_corpus():
    judged = verdicts()

    assert {place.repository for place in judged} <= set(repositories())
    assert set(judged.values()) == {*VERDICTS, "copy"}


def test_the_scripts_that_were_read_have_found_and_missed_mistakes():
    assert [run for run, _, _ in recall()] == ["1", "2", "3", "4", "5"]
    assert all(0 < found < every for _, found, every in recall())


def test_the_measure_of_a_rule_counts_each_verdict_but_copies():
    true, judged = by_rule()["DDP007"]

    assert (true, judged) == (3, 16)


def test_the_findings_of_a_repository_have_paths_inside_it(tmp_path):
    folder = tmp_path / "ada" / "training" / "src"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(WRONG)

    assert list(findings(tmp_path, "ada/training")) == [
        Place("ada/training", "src/train.py", 5, "DDP015")
    ]


def test_the_report_counts_verdicts_and_shows_what_changed():
    one, two, three, four = (Place("ada/training", "a.py", n, "DDP015") for n in (1, 2, 3, 4))

    text = report([one, two, four], {one: "true", two: "false", three: "true"})

    assert text.splitlines() == [
        "rule    true  debatable  false",
        "DDP015     1          0      1  50% true",
        "all        1          0      1  50% true",
        "new: ada/training a.py:4 DDP015",
        "gone: ada/training a.py:3 DDP015 (true)",
    ]
