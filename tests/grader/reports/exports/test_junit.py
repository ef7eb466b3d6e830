"""JUnit XML, read by the rules of Jenkins's schema."""

from xml.etree import ElementTree as ET

from export_samples import CLASS, MISSING, NAMES

from gradsync.reports.exports.junit import render

CHILDREN = {"properties", "testcase", "system-out", "system-err"}


def jenkins(text):
    """Return the root, if it has the elements and attributes of the schema."""
    root = ET.fromstring(text.encode())  # raises for characters that XML does not allow
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        assert {child.tag for child in suite} <= CHILDREN
        assert all(suite.get(name) is not None for name in ("name", "tests", "failures", "errors"))
        for case in suite.iter("testcase"):
            assert case.get("name")
            assert case.get("classname")
            assert {child.tag for child in case} <= {"skipped", "failure", "error"}
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("errors")) == len(suite.findall("testcase/error"))
    return root


def test_each_submission_is_a_suite_and_each_test_a_case():
    root = jenkins(render(CLASS))

    assert [suite.get("name") for suite in root][: len(NAMES)] == [
        " ".join(name.split()) for name in NAMES
    ]
    assert root[0].get("tests") == "4"
    assert (root[0].get("failures"), root[0].get("errors")) == ("1", "1")

    for count in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(count)) == sum(int(suite.get(count)) for suite in root)


def test_a_failure_has_its_code_and_message():
    failure = jenkins(render(CLASS))[0].find("testcase/failure")

    assert failure.get("type") == "sum-not-mean"
    assert failure.text.startswith("Rank 0: 3 < 4 & 5.")


def test_a_person_who_handed_in_nothing_is_skipped():
    [suite] = [suite for suite in jenkins(render(CLASS)) if suite.get("name") == MISSING.submission]

    assert suite.find("testcase/skipped").text == "Nothing was handed in."
