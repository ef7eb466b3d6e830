"""docs/assertions.md lists everything that tests of exercises use."""

import re
from pathlib import Path

from gradsync import testing

PAGE = Path(__file__).parents[3] / "docs/assertions.md"


def test_the_page_names_each_function_and_no_other():
    rows = re.findall(r"(?m)^\| (`.*?) \|", PAGE.read_text())
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    options = {"mistakes", "otherwise", "roundings"}

    assert named - options == set(testing.__all__) - {"EXACT"}
    assert "EXACT" in PAGE.read_text()
