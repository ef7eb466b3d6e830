"""`make truth` grades correct answers together if none changes what another one does."""

from checks.groups import groups, joined
from gradsync.course.known_submissions import Right

TRAINER, LOADER = "phase1/template_trainer.py", "phase1/template_data_loader.py"


def answer(name, text, path=TRAINER):
    return Right(name, {path: text})


def names(found):
    return sorted([one.name for one in group] for group in found)


def test_answers_that_change_different_functions_are_together():
    first = answer("first", "def train(): ...")
    second = answer("second", "def evaluate(): ...")

    assert names(groups([first, second])) == [["first", "second"]]


def test_answers_that_define_the_same_name_are_apart():
    function = answer("function", "def train(): ...")
    other = answer("other", "def train(): ...")
    constant = answer("constant", "LIMIT = 1")
    annotated = answer("annotated", "LIMIT: int = 2")

    found = groups([function, other, constant, annotated])

    assert sorted(len(group) for group in found) == [2, 2]
    assert not any({"function", "other"} <= {one.name for one in group} for group in found)
    assert not any({"constant", "annotated"} <= {one.name for one in group} for group in found)


def test_the_same_name_in_another_file_is_not_a_conflict():
    trainer, loader = answer("trainer", "LIMIT = 1"), answer("loader", "LIMIT = 1", LOADER)

    assert names(groups([trainer, loader])) == [["trainer", "loader"]]


def test_answers_of_two_phases_are_apart():
    one, two = answer("one", "A = 1"), answer("two", "B = 1", "phase2/template_trainer.py")

    assert names(groups([one, two])) == [["one"], ["two"]]


def test_joined_answers_have_the_functions_of_all():
    group = [
        answer("first", "def train(): ..."),
        Right("second", {TRAINER: "def evaluate(): ...", LOADER: "LIMIT = 1"}),
    ]

    together = joined(group)

    assert together.definitions == {f"{TRAINER} train", f"{TRAINER} evaluate"}
    assert together.additions[LOADER] == "LIMIT = 1"
    assert not together.whole
