"""Read results files by the platforms' own specifications; each reader asserts the rules."""

import json

TEXT_FORMATS = {"text", "html", "simple_format", "md", "ansi"}
VISIBILITIES = {"hidden", "after_due_date", "after_published", "visible"}


def gradescope(text):
    """Return (score, tests, output); https://gradescope-autograders.readthedocs.io/en/latest/specs."""
    content = json.loads(text)
    tests = content.get("tests", [])
    assert "score" in content or all("score" in test for test in tests)
    assert content.get("output_format", "text") in TEXT_FORMATS
    assert content.get("visibility", "visible") in VISIBILITIES
    assert content.get("stdout_visibility", "hidden") in VISIBILITIES
    for test in tests:
        assert test["status"] in ("passed", "failed")
        assert test["output_format"] in TEXT_FORMATS
        assert test["visibility"] in VISIBILITIES
        assert isinstance(test["name"], str)
        assert 0 <= test["score"] <= test["max_score"]
    score = content.get("score", sum(test["score"] for test in tests))
    assert isinstance(score, int | float)
    return score, tests, content.get("output", "")


def prairielearn(text):
    """Return (score in 0..1, tests, output), or (None, errors, "") if the work is not gradable.

    https://prairielearn.readthedocs.io/en/latest/externalGrading
    """
    assert len(text.encode()) <= 1_000_000
    content = json.loads(text)
    if not content.get("gradable", True):
        assert all(isinstance(error, str) for error in content["format_errors"])
        return None, content["format_errors"], ""
    assert isinstance(content["score"], float)
    assert 0.0 <= content["score"] <= 1.0
    for test in content["tests"]:
        assert {"name", "points", "max_points", "message", "output"} == set(test)
        assert 0 <= test["points"] <= test["max_points"]
    return content["score"], content["tests"], content["output"]
