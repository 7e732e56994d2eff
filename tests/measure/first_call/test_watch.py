"""`measure.first_call.watch`: which code is the user's."""

import json

import equinox
import jax
import numpy
import pytest

from perfsuite.measure.call import __file__ as harness
from perfsuite.measure.first_call.watch import UserLine, is_users
from perfsuite.workloads.structure import __file__ as workload

USERS = [
    __file__,
    "/home/me/model.py",
    workload,
    "<ipython-input-3-f00>",
    "/venv/lib/python3.11/site-packages/mine/x.py",
]
LIBRARIES = [jax.__file__, equinox.__file__, numpy.__file__, json.__file__, harness, "<string>", "<frozen importlib>"]


@pytest.mark.parametrize("filename", USERS)
def test_code_of_the_user(filename):
    assert is_users(filename)


@pytest.mark.parametrize("filename", LIBRARIES)
def test_code_of_libraries_and_generated_code(filename):
    assert not is_users(filename)


def test_a_line_is_named_by_its_function_and_placed_by_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = UserLine(str(tmp_path / "models" / "bert.py"), "make.<locals>.Block.__call__.<listcomp>", 12)
    assert line.name == "bert.py:make.Block.__call__"
    assert line.place == "models/bert.py:12"
    assert UserLine("/elsewhere/model.py", "f", 3).place == "/elsewhere/model.py:3"
