"""The folder of `gate.baseline_file`: the baselines of the nearest jax that is not newer than the installed one."""

import re

import pytest

from perfsuite.gate.baseline_file import BaselineError, folder_for, folder_here


@pytest.fixture
def folder(tmp_path):
    """Baselines of three releases, in folders, and of what is older, beside them."""
    for name in ("jax-0.9", "jax-0.10.2", "jax-0.12"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("jax", "taken"),
    [
        ("0.8.3", "."),
        ("0.9.0", "jax-0.9"),
        ("0.10.1", "jax-0.9"),
        ("0.10.2", "jax-0.10.2"),
        ("0.11.0", "jax-0.10.2"),
        ("0.12.0", "jax-0.12"),
        ("0.12.0.1", "jax-0.12"),
        ("0.12.0.dev20261101", "jax-0.12"),
        ("0.12.0rc1", "jax-0.12"),
        ("1.0", "jax-0.12"),
    ],
)
def test_the_nearest_release_that_is_not_newer_is_taken(folder, jax, taken):
    assert folder_for(folder, jax) == folder / taken


def test_without_such_folders_all_versions_share_one(tmp_path):
    assert folder_here(tmp_path) == tmp_path
    assert folder_here(tmp_path / "absent") == tmp_path / "absent"


def test_of_a_folder_that_is_named_itself_it_is_taken(folder):
    assert folder_for(folder / "jax-0.12", "0.10.2") == folder / "jax-0.12"


def test_other_folders_and_files_are_left_alone(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "jax-0.1").touch()
    (tmp_path / "jax-notes.json").touch()
    assert folder_for(tmp_path, "0.12") == tmp_path


@pytest.mark.parametrize("name", ["jax-", "jax-newest", "jax-0.12.x", "jax-0.12 old"])
def test_a_folder_of_no_version_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(BaselineError, match=f"{re.escape(name)}: .*such as jax-0.12: rename it"):
        folder_for(tmp_path, "0.12")
