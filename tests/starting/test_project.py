"""Where the perf tests of a project go."""

import pytest

from perfsuite.starting.project import Project, PytestSettings


def project(root, testpaths=(), python_files=("test_*.py", "*_test.py")):
    return Project(PytestSettings(root, None, testpaths, (), python_files, "baselines"), None, "")


@pytest.mark.parametrize(
    ("present", "testpaths", "folder"),
    [
        ((), (), "tests"),
        (("test",), (), "test"),
        (("tests", "test"), (), "tests"),
        (("checks", "tests"), ("checks",), "checks"),
        (("checks",), ("checks",), "checks"),
        (("src", "tests"), ("src", "tests"), "tests"),
        ((), ("checks",), "checks"),
    ],
)
def test_the_folder_is_the_one_that_the_project_has_for_tests(tmp_path, present, testpaths, folder):
    for each in present:
        (tmp_path / each).mkdir()
    assert project(tmp_path, testpaths).tests == tmp_path / folder


@pytest.mark.parametrize(
    ("patterns", "name"),
    [
        (("test_*.py",), "test_perf_step.py"),
        (("*_test.py",), "perf_step_test.py"),
        (("check*.py",), "checkperf_step.py"),
    ],
)
def test_the_name_is_one_that_pytest_collects(tmp_path, patterns, name):
    assert project(tmp_path, python_files=patterns).test_file("step").name == name
