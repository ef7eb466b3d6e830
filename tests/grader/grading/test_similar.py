"""The same code under other comments is found; code that all were given does not count."""

import random

from gradsync.grading.similar import code_print, similar

WORDS = [f"name{n}" for n in range(400)]
TEMPLATE = "import torch\n" * 3 + "def given(a, b, c):\n    return a + b + c\n" * 10


def program(seed, length=300):
    draw = random.Random(seed)
    lines = (f"    {draw.choice(WORDS)} = {draw.choice(WORDS)} + {n}" for n in range(length))
    return "def answer():\n" + "\n".join(lines) + "\n"


def groups(**sources):
    prints = {
        name: [code_print("phase1/a.py", (TEMPLATE + source).encode(), TEMPLATE.encode())]
        for name, source in sources.items()
    }
    return {each.members: dict(each.files) for each in similar(prints)}


def test_a_copy_with_other_comments_is_identical():
    copy = "\n".join(f"{line}  # mine" for line in program(1).splitlines())

    assert groups(ada=program(1), bob=copy, cleo=program(2)) == {
        ("ada", "bob"): {"phase1/a.py": 1.0}
    }


def test_a_copy_with_a_few_changed_lines_is_almost_identical():
    lines = program(1).splitlines()
    lines[100] = "    another = line"

    [share] = groups(ada=program(1), bob="\n".join(lines))["ada", "bob"].values()
    assert 0.9 <= share < 1.0


def test_all_who_have_the_same_code_are_one_group():
    lines = program(1).splitlines()
    lines[100] = "    another = line"
    almost = "\n".join(lines)

    found = groups(ada=program(1), bob=program(1), cleo=almost, dan=program(2), eve=program(1))
    assert list(found) == [("ada", "bob", "cleo", "eve"), ("ada", "bob", "eve")]
    assert found["ada", "bob", "eve"] == {"phase1/a.py": 1.0}
    assert 0.9 <= found["ada", "bob", "cleo", "eve"]["phase1/a.py"] < 1.0


def test_the_template_and_short_answers_do_not_count():
    assert groups(ada="x = 1\n", bob="x = 1\n", cleo="") == {}


def test_half_of_the_code_in_common_is_not_reported():
    common = program(1)

    assert groups(ada=common + program(2), bob=common + program(3)) == {}


def test_a_class_of_200_with_one_answer_takes_seconds():
    every = {f"s{n}": program(n % 100) for n in range(200)}

    assert len(groups(**every)) == 100
