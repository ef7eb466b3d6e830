"""The results of a class, read from its folder of grades."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from class_samples import outcome, result
from report_samples import SUM_NOT_MEAN, report, verdict
from small_course import write_course

from gradsync.class_records import Facts
from gradsync.course.catalogue import CourseError
from gradsync.grading.classes.results import read_class
from gradsync.grading.classes.tables import TableError
from gradsync.grading.store import GradeStore

DUE = datetime(2026, 10, 30, 12, tzinfo=timezone.utc)
DAY = 86_400


class Folder:
    """A folder of grades of the course with one exercise, phase1/double."""

    def __init__(self, root):
        self.course = write_course(root / "course")
        self.out = root / "out"
        self.out.mkdir()

    def grade(self, name, points=1.0, most=4.0, **changes):
        known = verdict(exercise="phase1/double", points=points, max_points=most, **changes)
        graded = report(known, submission=name, graded_at=DUE)
        GradeStore(self.out).save(graded)

    def write(self, name, *lines):
        (self.out / name).write_text("\n".join([*lines, ""]))

    def facts(self, *every):
        GradeStore(self.out).update_facts(every)

    def settings(self, *lines):
        (self.course.root / "course.toml").write_text("\n".join(lines))

    def read(self):
        return read_class(GradeStore(self.out), self.course)

    def results(self):
        return {result.submission: result for result in self.read().results}


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_a_result_has_the_points_of_each_exercise_and_the_first_mistake(folder):
    folder.grade("ada", status="failed", diagnosis=SUM_NOT_MEAN)

    [ada] = folder.read().results
    assert (ada.submission, ada.status, ada.score, ada.max_score) == ("ada", "graded", 1.0, 4.0)
    assert [(e.exercise, e.points, e.max_points) for e in ada.exercises] == [
        ("phase1/double", 1.0, 4.0)
    ]
    assert ada.first_code == "sum-not-mean"
    assert ada.folder == "ada"


def test_an_unwritten_part_is_the_first_mistake_only_without_another_one():
    todo = outcome("phase1/average_gradients", 0, 8, "unfinished", "unfinished")
    follower = outcome("phase1/train_step", 8, 8, "sum-not-mean", given=("average_gradients",))
    wrong = outcome("phase1/evaluate", 0, 8, "mean-of-means")

    assert result("ada", todo, follower, wrong).first_code == "mean-of-means"
    assert result("ada", todo, follower).first_code == "unfinished"


def test_the_class_has_the_exercises_of_the_course_that_were_graded(folder):
    folder.settings("[course]", 'title = "Doubling for all"')
    folder.grade("ada")

    seen = folder.read()
    assert seen.title == "Doubling for all"
    assert [(e.id, e.guide, e.max_points) for e in seen.exercises] == [
        ("phase1/double", "Doubling", 4.0)
    ]
    assert seen.graded_at == DUE


def test_an_override_replaces_the_points_of_an_exercise(folder):
    folder.grade("ada")
    folder.write(
        "overrides.csv", "submission,exercise,points,reason,by", "ada,double,3.5,appeal,Kim"
    )

    [ada] = folder.read().results
    assert (ada.score, ada.phases) == (3.5, {"phase1": 3.5})
    assert ada.exercises[0].override.reason == "appeal"


@pytest.mark.parametrize("who", ["17", "ada@x.org", "Lovelace, Ada", "ada LOVELACE"])
def test_an_override_may_name_the_person_as_the_roster_does(folder, who):
    folder.grade("ada")
    folder.write("roster.csv", "id,name,email", '17,"Lovelace, Ada",ada@x.org')
    folder.write("overrides.csv", "submission,exercise,points,reason,by", f'"{who}",double,3,x,Kim')

    assert folder.results()["ada"].score == 3.0


def test_a_warning_says_which_of_two_overrides_of_one_person_counts(folder):
    folder.grade("ada")
    folder.write("roster.csv", "id,name,email", "17,Ada Lovelace,ada@x.org")
    rows = ("ada,double,2,x,Kim", "17,double,3,x,Kim")
    folder.write("overrides.csv", "submission,exercise,points,reason,by", *rows)

    [seen] = folder.read().warnings
    assert folder.results()["ada"].score == 2.0
    assert "lines 2 and 3: both are about phase1/double of ada. Line 2 counts." in seen


def test_an_exercise_with_full_points_by_an_override_has_no_first_mistake(folder):
    folder.grade("ada", status="failed", diagnosis=SUM_NOT_MEAN)
    before = folder.results()["ada"].first_code
    folder.write("overrides.csv", "submission,exercise,points,reason,by", "ada,double,4,x,Kim")

    assert (bool(before), folder.results()["ada"].first_code) == (True, "")


def test_an_override_may_name_the_submission_as_the_gradebook_does(folder):
    folder.grade("=ada")
    folder.write("overrides.csv", "submission,exercise,points,reason,by", "'=ada,double,3,x,Kim")

    assert folder.results()["=ada"].score == 3.0


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("eve,double,3,x,Kim", "line 2: there is no submission 'eve'"),
        ("ada,triple,3,x,Kim", "line 2: the course has no exercise 'triple'"),
    ],
)
def test_an_override_without_effect_is_warned_of(folder, line, warning):
    folder.grade("ada")
    folder.write("overrides.csv", "submission,exercise,points,reason,by", line)

    [seen] = folder.read().warnings
    assert warning in seen
    assert folder.results()["ada"].score == 1.0


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["submission,points"], "no column 'exercise'"),
        (["submission,exercise,points,reason,by", "ada,double,many,x,Kim"], "line 2: points must"),
        (
            ["submission,exercise,points,reason,by", "ada,double,-1,x,Kim"],
            "line 2: points must not",
        ),
        (
            ["submission,exercise,points,reason,by", "ada,double,+1,x,Kim"],
            r"line 2: points replace .* write the sum, not \+1",
        ),
        (
            ["submission,exercise,points,reason,by", "ada,double,1,,Kim"],
            "line 2: the value of 'reason' is missing",
        ),
        (["submission,exercise,points,reason,by", *["ada,double,1,x,Kim"] * 2], "line 3"),
        (["submission,exercise,points,reason,by", "ada,double,1,x,Kim,y"], "has 6 cells"),
    ],
)
def test_a_bad_line_of_overrides_is_one_clear_error(folder, lines, problem):
    folder.grade("ada")
    folder.write("overrides.csv", *lines)

    with pytest.raises(TableError, match=problem):
        folder.read()


HEADER = "submission,exercise,points,reason,by"


def test_all_bad_lines_of_overrides_are_named_at_once(folder):
    folder.grade("ada")
    bad = ("ada,double,many,x,Kim", "ada,double,1,,", "ada,duoble,1,x,Kim", "eve,double,1,x,Kim")
    folder.write("overrides.csv", HEADER, *bad, "ada,double,500,x,Kim")

    with pytest.raises(TableError) as refused:
        folder.read()
    first, *lines = str(refused.value).splitlines()
    assert first.endswith("overrides.csv has 5 errors. Correct them and run again:")
    assert lines == [
        "  line 2: points must be a number, not 'many'.",
        "  line 3: the value of 'reason' and 'by' is missing.",
        "  line 4: the course has no exercise 'duoble'. Did you mean double? The line has no "
        "effect.",
        "  line 5: there is no submission 'eve'. Copy the name from gradebook.csv or roster.csv.",
        "  line 6: ada gets 500 points in phase1/double, whose maximum is 4.",
    ]


def test_staff_can_set_the_total_and_it_is_final(folder):
    folder.grade("ada", points=1.0, most=4.0)
    folder.settings("[late]", "due = 2026-01-01T00:00:00Z", 'per_day = "10%"')
    folder.facts(Facts("ada", "ada", handed_in=DUE))
    folder.write("overrides.csv", HEADER, "ada,total,3.5,oral exam,Kim")

    ada = folder.results()["ada"]
    assert (ada.score, ada.points_lost) == (3.5, 0.0)
    assert ada.overrides[0].reason == "oral exam"


def test_staff_can_set_the_points_of_a_single_test(folder):
    folder.grade("ada", points=1.0, most=4.0)
    [test] = folder.results()["ada"].tests
    folder.write("overrides.csv", HEADER, f"ada,{test.id},2,unclear,Kim")

    ada = folder.results()["ada"]
    assert (ada.score, ada.exercises[0].points) == (2.0, 2.0)


def test_a_line_without_points_is_a_comment(folder):
    folder.grade("ada", points=1.0, most=4.0)
    folder.write("overrides.csv", HEADER, "ada,double,,Well done!,Kim", "ada,total,,See me.,Kim")

    ada = folder.results()["ada"]
    assert (ada.score, ada.exercises[0].override) == (1.0, None)
    assert [each.reason for each in ada.overrides] == ["See me.", "Well done!"]


def test_criteria_that_staff_grade_by_hand_are_lines_of_their_own(folder):
    folder.grade("ada", points=1.0, most=4.0)
    folder.grade("bob", points=1.0, most=4.0)
    folder.grade("carl", points=1.0, most=4.0)
    folder.settings("[rubric]", "style = 5")
    folder.write("overrides.csv", HEADER, "ada,style,4,,Kim", "carl,total,7,oral,Kim")

    ada, bob, carl = (folder.results()[name] for name in ("ada", "bob", "carl"))
    assert (ada.score, ada.max_score, ada.exercises[-1].points) == (5.0, 9.0, 4.0)
    assert (bob.score, bob.max_score, bob.exercises[-1].is_waiting) == (1.0, 9.0, True)
    assert (carl.score, len(carl.exercises)) == (7.0, 1)  # a total settles the criteria, too
    assert (ada.is_changed, bob.is_changed) == (True, False)
    [warning] = folder.read().warnings
    assert warning.startswith("rubric/style is not graded yet for 1 submission: bob.")


def test_nobody_has_to_grade_an_unreadable_submission_by_hand(folder):
    note = "unreadable: it is empty"
    missing = verdict(exercise="phase1/double", status="missing", points=0.0, max_points=4.0)
    GradeStore(folder.out).save(report(missing, submission="ada", notes=(note,)))
    folder.settings("[rubric]", "style = 5")

    seen = folder.read()
    [ada] = seen.results
    assert (ada.status, ada.score, ada.max_score) == ("unreadable", 0.0, 9.0)
    assert [each.exercise for each in ada.exercises] == ["phase1/double"]
    assert (seen.warnings, ada.is_corrected) == ((), True)  # its page shows the maximum of all


def test_a_number_of_a_platform_is_not_taken_for_an_id_of_the_roster(folder):
    folder.grade("Ada")
    folder.facts(Facts("Ada", "Ada", names=("17", "Ada")))
    folder.write("roster.csv", "id,name,email", "17,Bob,", "18,Ada,")

    assert folder.results()["Ada"].person.id == "18"


def test_an_override_of_a_name_that_two_phases_have_must_name_the_phase(folder):
    write_course(folder.course.root, phase="phase2")
    folder.grade("ada")
    folder.write("overrides.csv", "submission,exercise,points,reason,by", "ada,double,3,x,Kim")

    [warning] = folder.read().warnings
    assert "write phase1/double or phase2/double" in warning


def test_more_points_than_an_exercise_has_are_warned_of(folder):
    folder.grade("ada", points=1.0, most=4.0)
    line = "ada,double,5,bonus,Kim"
    folder.write("overrides.csv", "submission,exercise,points,reason,by", line)

    seen = folder.read()

    assert seen.results[0].score == 5.0
    assert seen.warnings == (
        "overrides.csv, line 2: ada gets 5 points in phase1/double, whose maximum is 4.",
    )


def test_a_warning_reports_too_many_points_for_a_person_who_handed_in_nothing(folder):
    folder.grade("ada", points=1.0, most=4.0)
    folder.write("roster.csv", "id,name,email", "ada,Ada,", "bob,Bob,")
    folder.write("overrides.csv", "submission,exercise,points,reason,by", "bob,double,5,oral,Kim")

    assert folder.read().warnings == (
        "overrides.csv, line 2: bob gets 5 points in phase1/double, whose maximum is 4.",
    )


def test_a_person_whose_submission_is_not_graded_yet_is_not_missing(folder):
    folder.grade("ada")
    folder.write("roster.csv", "id,name,email", "ada,Ada,", "bob,Bob,", "cleo,Cleo,")
    folder.facts(Facts("ada", "ada"), Facts("week3-bob", "week3-bob", names=("bob",)))

    statuses = {name: result.status for name, result in folder.results().items()}

    assert statuses == {"ada": "graded", "week3-bob": "not-graded", "cleo": "missing"}


def test_the_roster_names_people_and_those_who_handed_in_nothing(folder):
    folder.grade("17")
    folder.write("roster.csv", "id;name;email", "17;Ada Lovelace;ada@x.org", "18;Bob;bob@x.org")

    seen = folder.results()
    assert seen["17"].person.name == "Ada Lovelace"
    assert (seen["18"].status, seen["18"].score) == ("missing", None)


@pytest.mark.parametrize(
    "name", ["17", "ada", "ada@x.org", "Ada Lovelace", "lovelaceada", "adalovelace", "ÁDA lovelace"]
)
def test_a_submission_is_matched_by_id_address_or_name(folder, name):
    folder.grade(name)
    folder.write("roster.csv", "id,name,email", "17,Ada Lovelace,ada@x.org", "18,Bob,bob@x.org")

    assert folder.results()[name].person.id == "17"


def test_a_name_that_two_people_share_matches_nobody(folder):
    folder.grade("Ada Lovelace")
    folder.write("roster.csv", "id,name,email", "17,Ada Lovelace,", "18,Ada Lovelace,")

    seen = folder.results()
    assert seen["Ada Lovelace"].person is None
    assert {seen["17"].status, seen["18"].status} == {"missing"}


TWINS = ("id,name,email", "1003,Jürgen Müller,", "1004,Jürgen Müller,")


def test_a_name_that_two_people_share_is_warned_of_with_their_ids(folder):
    folder.grade("Jürgen Müller")
    folder.facts(Facts("Jürgen Müller", "Jürgen Müller", names=("900", "Jürgen Müller")))
    folder.write("roster.csv", *TWINS)

    [warning] = folder.read().warnings
    assert warning.startswith(
        "The submission Jürgen Müller (900 in the download) may belong to 2 people in roster.csv: "
        "1003 or 1004. In roster.csv, write Jürgen Müller into the column `submission`"
    )


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize(("count", "missing"), [(2, 0), (1, 2)])
def test_people_who_share_a_name_are_not_missing_if_each_handed_in(folder, count, missing, graded):
    for number in ("31", "32")[:count]:
        name = f"Wei Zhang {number}"
        if graded:
            folder.grade(name)
        folder.facts(Facts(name, name, names=(number, name, "Wei Zhang")))
    folder.write("roster.csv", "id,name,email", "1,Wei Zhang,", "2,Wei Zhang,")

    states = [result.status for result in folder.read().results]
    assert states.count("missing") == missing


def test_the_advice_on_a_shared_name_distinguishes_two_submissions(folder):
    facts = [
        Facts(name, name, names=(name[-3:], name, "Jürgen Müller"))
        for name in ("Jürgen Müller 900", "Jürgen Müller 901")
    ]
    folder.facts(*facts)
    for each in facts:
        folder.grade(each.submission)
    folder.write("roster.csv", *TWINS)
    before = folder.read().warnings
    for number, each in zip((1, 2), facts, strict=True):
        assert f"write {each.learner} into the column `submission`" in before[number - 1]
    people = [f"{line},{f.learner}" for line, f in zip(TWINS[1:], facts, strict=True)]
    folder.write("roster.csv", f"{TWINS[0]},submission", *people)

    found = {result.submission: result.person for result in folder.read().results}
    assert (len(before), folder.read().warnings) == (2, ())
    assert [found[f.learner].id for f in facts] == ["1003", "1004"]
    assert {person.name for person in found.values()} == {"Jürgen Müller"}


def test_an_override_of_a_name_that_two_people_share_asks_for_the_id(folder):
    folder.grade("1003")
    folder.write("roster.csv", *TWINS)
    row = "Jürgen Müller,double,3,x,Kim"
    folder.write("overrides.csv", "submission,exercise,points,reason,by", row)

    assert folder.read().warnings == (
        "overrides.csv, line 2: 'Jürgen Müller' may be 1003 or 1004. Write the id.",
    )


def test_two_submissions_of_one_person_are_warned_of(folder):
    folder.grade("1003")
    folder.grade("jmueller")
    folder.write("roster.csv", "id,name,email", "1003,Jürgen,jmueller@x.org")

    [warning] = folder.read().warnings
    assert "2 submissions belong to Jürgen (1003) of roster.csv: 1003, jmueller." in warning


def test_submissions_that_the_roster_does_not_name_are_warned_of(folder):
    folder.grade("17")
    folder.grade("eve")
    folder.write("roster.csv", "id,name,email", "17,Ada Lovelace,")

    [warning] = folder.read().warnings
    assert "has no line for 1 submission: eve" in warning


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["name,email"], "no column 'id'"),
        (["id,name,email", ",Ada,"], "line 2: the value of 'id' is missing"),
        (["id,name,email", "1,Ada,", "1,Bob,"], "line 3: the id '1' occurs a second time"),
        (["id,name,email,due", "1,Ada,,tomorrow"], "line 2: due must be a time"),
        (["id,name,email,days", "1,Ada,,some"], "line 2: days must be a number"),
        (["id,name,email", '1,"Ada,'], "roster.csv, line"),
    ],
)
def test_a_bad_line_of_a_roster_is_one_clear_error(folder, lines, problem):
    folder.write("roster.csv", *lines)

    with pytest.raises(TableError, match=problem):
        folder.read()


@pytest.mark.parametrize(
    ("days", "lost"), [(-1, 0), (2.9, 0), (3.1, 0.4), (4.0, 0.4), (4.1, 0.8), (50, 1.0)]
)
def test_each_day_after_the_grace_period_costs_points_but_never_more_than_there_are(
    folder, days, lost
):
    folder.settings("[late]", f"due = {DUE.isoformat()}", "grace_days = 3", 'per_day = "10%"')
    folder.grade("ada", points=1.0, most=4.0)
    moment = datetime.fromtimestamp(DUE.timestamp() + days * DAY, timezone.utc)
    folder.facts(Facts("ada", "ada", handed_in=moment))

    ada = folder.results()["ada"]
    assert ada.points_lost == pytest.approx(lost)
    assert ada.score == pytest.approx(1.0 - lost)


@pytest.mark.parametrize("extension", [f"{DUE.replace(month=11).isoformat()},", ",5"])
def test_an_extension_on_the_roster_counts_before_the_grace_period(folder, extension):
    folder.settings("[late]", f"due = {DUE.isoformat()}", "per_day = 0.1")
    folder.grade("17")
    folder.write("roster.csv", "id,name,email,due,days", f"17,Ada,,{extension}")
    handed_in = datetime.fromtimestamp(DUE.timestamp() + 4.5 * DAY, timezone.utc)
    folder.facts(Facts("17", "17", handed_in=handed_in))

    assert folder.results()["17"].points_lost == 0.0


def test_the_roster_has_times_for_a_download_without_them(folder):
    folder.settings("[late]", f"due = {DUE.isoformat()}", "per_day = 0.1")
    late = datetime.fromtimestamp(DUE.timestamp() + 1.2 * DAY, timezone.utc).isoformat()
    folder.write("roster.csv", "id,name,email,handed_in", f"ada,,,{late}", f"bob,,,{late}")
    folder.facts(Facts("bob", "bob", handed_in=DUE))
    for name in ("ada", "bob"):
        folder.grade(name)

    ada, bob = (folder.results()[name] for name in ("ada", "bob"))
    assert (ada.days_charged, bob.days_charged) == (2, 0)  # the download's own time counts
    assert folder.read().warnings == ()


@pytest.mark.parametrize("where", ["course.toml", "roster.csv"])
def test_submissions_without_a_time_are_warned_of_once_if_something_is_due(folder, where):
    if where == "course.toml":
        folder.settings("[late]", f"due = {DUE.isoformat()}")
    due = DUE.isoformat() if where == "roster.csv" else ""
    folder.write("roster.csv", "id,name,email,due", *[f"{name},,,{due}" for name in "abcd"])
    late = Facts("a", "a", notes=("Canvas marks it as late",))
    folder.facts(late, Facts("b", "b", handed_in=DUE), Facts("c", "c"))
    for name in ("a", "b", "c"):
        folder.grade(name)

    seen = folder.read()

    assert seen.warnings == (
        "Lateness is not calculated for 2 submissions, because it is not known when they were "
        "handed in: a, c. Write the times into a column handed_in of roster.csv, or the final "
        "points into overrides.csv.",
    )
    assert seen.results[0].facts.notes == ("Canvas marks it as late",)


def test_without_a_due_time_the_time_of_a_submission_is_not_needed(folder):
    folder.settings("[late]", "per_day = 0.1")
    folder.grade("ada")

    assert folder.read().warnings == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("due = 3", "due in"),
        ('due = "tomorrow"', "due in .* such as 2026-10-30T23:59:00"),
        ('per_day = "200%"', "per_day in"),
        ("grace = 1", "no key 'grace'"),
        ("grace_days = -1", "must not be negative"),
        ("due =", "can't be read"),
    ],
)
def test_unusable_settings_are_one_clear_error(folder, line, problem):
    folder.settings("[late]", line)

    with pytest.raises(CourseError, match=problem):
        folder.read()


def test_the_best_attempt_counts_and_the_last_of_equal_ones(folder):
    attempts = [Facts(f"ada {n}", "ada", attempt=n, attempts=3) for n in (1, 2, 3)]
    folder.facts(*attempts)
    for name, points in {"ada 1": 1.0, "ada 2": 2.0, "ada 3": 2.0}.items():
        folder.grade(name, points=points)

    [ada] = folder.read().results
    assert (ada.submission, ada.facts.attempt, ada.folder, ada.score) == ("ada", 3, "ada 3", 2.0)


def test_an_attempt_that_a_later_download_lacks_does_not_count(folder):
    folder.facts(Facts("ada 1", "ada"))
    folder.grade("ada 1", points=4.0)
    folder.facts(Facts("ada", "ada"))
    folder.grade("ada", points=1.0)

    assert folder.results()["ada"].score == 1.0


def test_a_submission_on_which_the_grader_failed_has_the_reason(folder):
    GradeStore(folder.out).save(replace(report(submission="ada"), problem="out of memory"))

    [ada] = folder.read().results
    assert (ada.status, ada.score, ada.notes) == ("grader-failed", None, ("out of memory",))


def test_a_damaged_report_is_a_failure_that_says_what_to_do(folder):
    folder.grade("ada")
    (folder.out / "ada" / "report.json").write_text("{")

    seen = folder.read()
    assert seen.results[0].status == "grader-failed"
    assert "grade it again" in seen.results[0].notes[0]
    assert "1 report can't be read" in seen.warnings[0]
