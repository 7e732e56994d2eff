"""The packages of a side: the present ones but for what is named, brought by uv."""

import os
import subprocess
import sys

import pytest
from support.against import wheel, wheels_for_uv

import perfsuite
from perfsuite.against import environments
from perfsuite.against.environments import EnvironmentFailed, brought, name_of, present, releases
from perfsuite.against.sides import Side


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """`steplib` of two versions, and `stepuser`, which asks for the first."""
    folder = wheels_for_uv(tmp_path, monkeypatch)
    for version in ("1.0", "2.0"):
        wheel(folder, "steplib", version, f"version = {version!r}\n")
    wheel(folder, "stepuser", "1.0", "", ["steplib<2", "steplib>=3; extra == 'new'"])
    return folder


def test_packages_are_those_named_and_the_present_ones(tmp_path):
    made = brought(["stepuser==1.0"], tmp_path / "packages")
    assert (made.versions["stepuser"], made.versions["steplib"]) == ("1.0", "1.0")
    assert made.versions["jax"] == present().versions["jax"]
    assert {each.name for each in made.folder.glob("*.py")} == {"stepuser.py", "steplib.py"}
    code = "import importlib.metadata, steplib, perfsuite; print(importlib.metadata.version('steplib'), perfsuite.__file__)"
    variables = Side("head", made, tmp_path).variables(os.environ)
    ended = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["1.0", perfsuite.__file__]
    assert "steplib" not in present().versions


def test_what_is_there_already_needs_no_folder(tmp_path):
    made = brought([f"jax=={present().versions['jax']}"], tmp_path / "packages")
    assert (made.folder, made.versions) == (None, present().versions)
    assert not (tmp_path / "packages").exists()


def test_a_folder_is_a_package_too(tmp_path, index):
    made = brought([str(index / "steplib-2.0-py3-none-any.whl")], tmp_path / "packages")
    assert made.versions["steplib"] == "2.0"


def test_what_an_installed_package_asks_for_and_does_not_get_is_said(tmp_path):
    made = brought(["stepuser", "steplib==1.0"], tmp_path / "packages")
    assert made.conflicts == ("stepuser 1.0 asks for steplib>=3, here is 1.0",)


@pytest.mark.parametrize("specs", [["steplib==99"], ["stepuser==1.0", "steplib==2.0"]])
def test_what_uv_cannot_install_is_named_with_its_own_words(tmp_path, specs):
    with pytest.raises(EnvironmentFailed, match=rf'(?s)uv cannot install "{specs[0]}".*No solution found'):
        brought(specs, tmp_path / "packages")


def test_without_uv_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentFailed, match=r"pip install .*\[against\]"):
        brought(["steplib==2.0"], tmp_path)


@pytest.mark.parametrize("spec", ["-r file.txt", "jax=0.10", ""])
def test_a_spec_that_names_nothing(spec):
    with pytest.raises(EnvironmentFailed, match="names no package"):
        name_of(spec)


def test_the_name_of_a_spec(tmp_path):
    assert name_of("Equinox_lib>=0.13,<0.14") == "equinox-lib"
    assert name_of("flax @ https://example.org/flax.whl") == "flax"
    assert name_of(str(tmp_path)) == str(tmp_path.resolve())


def test_releases_between_two_are_those_that_uv_would_install(index):
    for version in ("1.1", "1.2rc1", "1.2", "1.10", "3.0.dev1"):
        wheel(index, "steplib", version, "")
    assert releases("steplib", "1.0", "2.0") == ["1.10", "1.2", "1.1"]
    assert releases("steplib", "1.10", "2.0") == []
    assert releases("nolib", "1", "2") == []
