"""The folder of grades: its records, its seed, and files that are written whole or not at all."""

import threading
from dataclasses import replace

import pytest
from report_samples import deadlock, report, verdict

from gradsync.class_records import Facts
from gradsync.grading.store import GradeStore, folder_name
from gradsync.records import CodePrint, Origin

ORIGIN = Origin("phase1", "files", "course", sandboxed=True)
GRADED = report(
    verdict(status="deadlock", events=deadlock(), world_size=4), origins=(ORIGIN,), command="again"
)


@pytest.fixture
def store(tmp_path):
    return GradeStore(tmp_path / "out")


def test_a_report_is_read_back_whole(store):
    store.save(GRADED, "the page")

    assert GradeStore(store.folder).report("ada") == GRADED
    assert store.page("ada").read_text() == "the page"


@pytest.mark.parametrize(
    ("origin", "seed"),
    [
        (replace(ORIGIN, submission="other"), 7),
        (replace(ORIGIN, course="other"), 7),
        (replace(ORIGIN, sandboxed=False), 7),
        (ORIGIN, 8),
    ],
)
def test_a_grade_of_another_origin_or_seed_is_not_reused(store, origin, seed):
    store.save(GRADED)

    assert store.reusable("ada", [origin], seed) is None


def test_a_failure_hides_the_grade_until_the_next_one(store):
    store.save(GRADED)
    store.save(replace(GRADED, verdicts=(), problem="out of memory"))
    hidden = store.reusable("ada", [ORIGIN], 7)
    problem = GradeStore(store.folder).records()["ada"].report.problem
    store.save(GRADED)

    assert (hidden, problem) == (None, "out of memory")
    assert GradeStore(store.folder).records()["ada"].report.problem == ""


def test_a_store_remembers_reports_without_what_only_their_pages_need(store):
    store.save(GRADED)

    [remembered] = store.records()["ada"].report.verdicts
    assert remembered == replace(GRADED.verdicts[0], events=())


def test_facts_are_kept_while_their_submission_waits_or_has_a_report(store):
    store.update_facts([Facts("ada", "ada"), Facts("bob", "bob")])
    store.save(GRADED)
    store.update_facts()
    graded = {name: facts.graded for name, facts in store.facts().items()}
    store.page("ada").parent.rename(store.folder / "elsewhere")
    GradeStore(store.folder).update_facts()

    assert graded == {"ada": True, "bob": False}
    assert list(store.facts()) == ["bob"]


def test_a_seed_is_drawn_once_even_by_programs_that_run_at_the_same_time(store):
    seeds = []

    def settle():
        mine = GradeStore(store.folder)
        with mine.locked(20):
            seeds.append(mine.settle_seed())

    threads = [threading.Thread(target=settle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seeds) == 4
    assert set(seeds) == {store.seed}


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a\nb", "a\\b", "", "x" * 500, "ü" * 200, "\n" * 90, "ünï", "a b"]
)
def test_any_name_becomes_one_folder(tmp_path, name):
    folder = tmp_path / folder_name(name)
    folder.mkdir()

    assert folder.resolve().parent == tmp_path.resolve()


def test_a_write_that_fails_leaves_the_previous_file(store):
    store.write("grade", "previous")

    with pytest.raises(UnicodeEncodeError):
        store.write("grade", "torn \ud800")
    assert (store.folder / "grade").read_text() == "previous"
    assert [p.name for p in store.folder.iterdir()] == ["grade"]


@pytest.mark.parametrize("names", ["a/b a%2Fb", "g %67", "x\n x", f"{'x' * 300} {'x' * 301}"])
def test_two_names_never_share_a_folder(names):
    one, other = names.split(" ")

    assert folder_name(one) != folder_name(other)


@pytest.mark.parametrize("name", ["gradebook.csv", "Class.html", "roster.csv", "overrides.csv"])
def test_no_submission_folder_has_the_name_of_a_file_of_the_class(name):
    assert folder_name(name) != name
    assert folder_name(f"{name}2") == f"{name}2"


def test_files_of_an_earlier_attempt_are_removed_and_those_of_other_phases_kept(store):
    store.save(GRADED, files={"phase1/a.py": b"1", "phase1/b.py": b"1", "phase2/a.py": b"1"})
    other = CodePrint("phase2/a.py", "", 0, ())
    store.save(replace(GRADED, prints=(other,)), files={"phase1/a.py": b"2"})

    assert store.sources("ada") == {"phase1/a.py": b"2", "phase2/a.py": b"1"}


def test_only_temporary_files_of_a_killed_grader_are_removed(store):
    store.save(GRADED, "the page")
    for name in (".grading.lock", "ada/.report.json.swp"):
        store.write(name, "")
    kept = set(store.folder.rglob("*"))
    for name in (
        ".gradebook.csv.0a1b2c3d",
        "ada/.report.json.0a1b2c3d",
        "ada/.report.html.01234567",
    ):
        (store.folder / name).touch()
    store.remove_leftovers()

    assert set(store.folder.rglob("*")) == kept
