"""Render the results of a class as JUnit XML, in the form that Jenkins and GitLab read.

Each submission is a test suite, and each test of the course a test case in it.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from gradsync.class_records import ClassResults, Result
from gradsync.records import Verdict
from gradsync.reports.exports.lines import ERRORS, summary_of
from gradsync.reports.text import amount, printable


def render(data: ClassResults) -> str:
    """Return the results as XML."""
    root = ET.Element("testsuites", name=_attribute(data.title))
    for result in data.results:
        root.append(_suite(result))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _suite(result: Result) -> ET.Element:
    suite = ET.Element("testsuite", name=_attribute(result.submission))
    if result.seconds is not None:
        suite.set("time", amount(result.seconds))
    if result.handed_in is not None:
        suite.set("timestamp", result.handed_in.isoformat(timespec="seconds"))
    properties = ET.SubElement(suite, "properties")
    id = _attribute(result.person.id) if result.person else None
    facts = {
        "id": id,
        "status": result.status,
        "score": result.score,
        "max_score": result.max_score,
    }
    for name, value in facts.items():
        if value is not None:
            text = amount(value) if isinstance(value, float) else str(value)
            ET.SubElement(properties, "property", name=name, value=text)
    for test in result.tests:
        suite.append(_case(test))
    if not result.tests:  # a suite without a case would not be shown
        case = ET.SubElement(suite, "testcase", classname=_attribute(result.submission))
        case.set("name", result.status)
        ET.SubElement(case, "skipped").text = printable(summary_of(result))
    elif text := summary_of(result):
        ET.SubElement(suite, "system-out").text = printable(text)
    for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    return suite


def _case(test: Verdict) -> ET.Element:
    name = test.id.rpartition("::")[2]
    case = ET.Element("testcase", classname=_attribute(test.exercise), name=_attribute(name))
    if test.status != "passed":
        kind = "error" if test.status in ERRORS else "failure"
        code = test.diagnosis.code if test.diagnosis else test.status
        message = _attribute(test.message.partition("\n")[0])
        ET.SubElement(case, kind, type=code, message=message).text = printable(test.message)
    return case


def _attribute(text: str) -> str:
    return " ".join(printable(text).split())
