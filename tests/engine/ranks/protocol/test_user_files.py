"""Which files belong to the user."""

import json
import sysconfig

import numpy as np
import pytest

import gradsync
from gradsync.ranks.protocol.user_files import file_and_line, is_users


@pytest.mark.parametrize(
    "filename",
    [
        json.__file__,
        np.__file__,
        gradsync.__file__,
        "/home/ada/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/yaml.py",
        "<frozen importlib._bootstrap>",
    ],
)
def test_a_library_does_not_belong_to_the_user(filename):
    assert not is_users(filename, ())


@pytest.mark.parametrize(
    "filename", [__file__, "/home/ada/trainer.py", "/tmp/ipykernel_7/12.py", "<stdin>", "<string>"]
)
def test_all_other_files_belong_to_the_user(filename):
    assert is_users(filename, ())


def test_a_folder_with_a_similar_name_belongs_to_the_user():
    assert is_users(sysconfig.get_path("stdlib") + "-mine/x.py", ())


def test_with_roots_only_files_under_them_belong_to_the_user():
    roots = ("/class/ada", "/class/bob/trainer.py")

    assert is_users("/class/ada/phase1/trainer.py", roots)
    assert is_users("/class/bob/trainer.py", roots)
    assert not is_users("/class/ada2/trainer.py", roots)
    assert not is_users("/class/bob/other.py", roots)


def test_a_place_is_a_file_and_a_line():
    assert file_and_line("/class/ada/trainer.py", 7) == "trainer.py:7"
