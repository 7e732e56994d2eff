"""The environments of `perfsuite against`: like the present one but for what is named."""

import os
import subprocess
import sys

import pytest
from support.against import wheel

from perfsuite.against import environments
from perfsuite.against.environments import EnvironmentFailed, VirtualEnvironment, check_specs, locked, make

SITE_PACKAGES = ("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """A package index of our own: `steplib` of two versions, and `stepuser`, which asks for the first."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        wheel(folder, "steplib", version, f"version = {version!r}\n")
    wheel(folder, "stepuser", "1.0", "", ["steplib<2", "steplib>=3; extra == 'new'"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    return folder


def in_it(made, code):
    command = [made.python, "-c", code]
    return subprocess.run(command, env=made.variables(os.environ), capture_output=True, text=True, check=True).stdout


def test_an_environment_has_what_is_named_and_sees_the_present_packages(tmp_path, monkeypatch):
    made = make(["steplib==2.0"], tmp_path, linked=True)
    seen = in_it(made, "import steplib, perfsuite, tabulate; print(steplib.version, perfsuite.__file__)").split()
    assert seen == ["2.0", environments.__file__.replace("against/environments.py", "__init__.py")]
    assert made.packages["steplib"] == "2.0"
    assert made.contradictions == ()

    def must_not(*_):
        raise AssertionError("it was made anew")

    with monkeypatch.context() as forbidden:
        forbidden.setattr(environments, "_build", must_not)
        assert make(["steplib==2.0"], tmp_path, linked=True) == made
    (made.folder / environments._MARKER).unlink()  # as a process that was killed leaves it
    (made.folder / "leftover").touch()
    again = make(["steplib==2.0"], tmp_path, linked=True)
    assert again == made
    assert not (made.folder / "leftover").exists()


def test_what_an_installed_package_asks_for_and_does_not_get_is_said(tmp_path):
    made = make(["stepuser", "steplib==1.0"], tmp_path, linked=True)
    assert made.contradictions == ("stepuser[new] 1.0 asks for steplib>=3, here is 1.0",)


def test_a_version_that_is_not_there_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(EnvironmentFailed) as raised:
        make(["stepuser==1.0", "steplib==99"], tmp_path / "kept", linked=True)
    first, *lines = str(raised.value).splitlines()
    assert first == 'pip cannot install "steplib==99", so there is nothing to compare. Its last lines:'
    assert lines[-1] == "  ERROR: No matching distribution found for steplib==99"
    assert list((tmp_path / "kept").iterdir()) == []


def test_specs_that_contradict_each_other_are_pips_to_explain(tmp_path):
    with pytest.raises(EnvironmentFailed, match=r"(?s)cannot install .*stepuser.*ResolutionImpossible"):
        make(["stepuser==1.0", "steplib==2.0"], tmp_path, linked=True)


def test_a_process_in_an_environment_finds_its_programs_first(tmp_path):
    made = VirtualEnvironment(tmp_path, (), {}, ()).variables({"PATH": "elsewhere", "PYTHONHOME": "elsewhere"})
    assert made["PATH"].split(os.pathsep) == [str(tmp_path / "bin"), "elsewhere"]
    assert "PYTHONHOME" not in made


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["-r file.txt"], '"-r file.txt" names no package'),
        (["jax=0.10"], '"jax=0.10" names no package'),
        ([""], '"" names no package'),
        (["jax==1", "JAX==2"], '"jax==1" and "JAX==2" name the same package'),
    ],
)
def test_bad_specs(specs, message):
    with pytest.raises(EnvironmentFailed, match=message):
        check_specs(specs)


def test_good_specs(tmp_path):
    check_specs(["jax==0.10.2", "equinox>=0.13,<0.14", "jax-lib", "flax @ https://example.org/flax.whl", str(tmp_path)])


class TestTakingOver:
    """Of the present packages, here two folders of a few files."""

    @pytest.fixture
    def taken(self, tmp_path, monkeypatch):
        own, beyond = tmp_path / "own" / "site-packages", tmp_path / "beyond" / "dist-packages"
        for folder in (own, beyond):
            folder.mkdir(parents=True)
            (folder / f"{folder.parent.name}.py").write_text("x = 1\n")
        (own / "pack").mkdir()
        (own / "pack" / "__init__.py").write_text("y = 2\n")
        monkeypatch.setattr(environments.sysconfig, "get_path", lambda *_, **__: str(own))
        monkeypatch.setattr(sys, "path", [str(tmp_path), str(own), str(beyond)])
        place = tmp_path / "environment"
        to = place.joinpath(*SITE_PACKAGES)
        to.mkdir(parents=True)
        monkeypatch.setattr(environments, "_site_packages", lambda folder: to)
        return own, beyond, place, to

    def test_files_are_linked_and_folders_are_not(self, taken):
        own, beyond, place, to = taken
        environments._take_over(place, linked=False)
        assert (to / "pack" / "__init__.py").samefile(own / "pack" / "__init__.py")
        (to / "own.py").unlink()
        (to / "pack" / "new.py").touch()
        assert (own / "own.py").read_text() == "x = 1\n"
        assert not (own / "pack" / "new.py").exists()
        assert (to / environments._BEYOND).read_text() == f"import site; site.addsitedir({str(beyond)!r})\n"

    def test_a_file_of_ours_in_the_present_packages_is_not_written_to(self, taken):
        own, _, place, to = taken
        (own / environments._BEYOND).write_text("theirs")
        environments._take_over(place, linked=False)
        assert (own / environments._BEYOND).read_text() == "theirs"
        assert "addsitedir" in (to / environments._BEYOND).read_text()

    def test_files_are_copied_where_they_cannot_be_linked(self, taken, monkeypatch):
        own, _, place, to = taken

        def no_link(*_, **__):
            raise OSError("another file system")

        monkeypatch.setattr(os, "link", no_link)
        environments._take_over(place, linked=False)
        assert (to / "own.py").read_text() == "x = 1\n"
        assert not (to / "own.py").samefile(own / "own.py")

    def test_linked_looks_at_them_where_they_are(self, taken):
        own, beyond, place, to = taken
        environments._take_over(place, linked=True)
        assert [
            str(own) in (to / environments._BEYOND).read_text(),
            str(beyond) in (to / environments._BEYOND).read_text(),
        ]
        assert [path.name for path in to.iterdir()] == [environments._BEYOND]


def test_packages_of_conda_are_not_copied(monkeypatch):
    class Installed:
        def __init__(self, by):
            self.by = by

        def read_text(self, name):
            return {"INSTALLER": self.by}.get(name)

    for by, from_conda in ((["pip\n", None], False), (["pip\n", "conda\n"], True)):
        found = [Installed(each) for each in by]
        monkeypatch.setattr(environments.importlib.metadata, "distributions", lambda found=found: found)
        assert environments._from_conda() is from_conda


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "another", "packages": {}, "contradictions": []}'])
def test_a_marker_that_says_something_else_is_no_marker(tmp_path, text):
    python = VirtualEnvironment(tmp_path, (), {}, ()).python
    python.parent.mkdir()
    python.touch()
    marker = tmp_path / environments._MARKER
    marker.write_text(text)
    assert environments._read(tmp_path, [], "key") is None
    marker.write_text('{"key": "key", "specs": [], "packages": {"a": "1"}, "contradictions": []}')
    assert environments._read(tmp_path, [], "key").packages == {"a": "1"}
    python.unlink()
    assert environments._read(tmp_path, [], "key") is None


def test_a_folder_that_changed_makes_another_environment(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    file = project / "steps.py"
    file.touch()
    before = environments._key([str(project)])
    assert environments._key([str(project)]) == before
    os.utime(file, (1, os.path.getmtime(project) + 100))
    assert environments._key([str(project)]) != before
    assert environments._key([]) != environments._key(["jax"])


def test_another_process_is_kept_out_of_environments_that_are_being_made(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "LOCK_SECONDS", 0.01)
    with locked(tmp_path), pytest.raises(EnvironmentFailed, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="choose another"), locked(tmp_path / "file"):
        pass


class TestUv:
    """A program in the place of uv, which is not installed everywhere."""

    @pytest.fixture
    def uv(self, tmp_path, monkeypatch):
        def make(script):
            program = tmp_path / "programs" / "uv"
            program.parent.mkdir()
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
            for name in environments._FOR_PIP_ALONE:
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setattr(environments, "_take_over", lambda place, linked: [environments._site_packages(place)])
            return str(program)

        return make

    def test_it_installs_where_it_is_there(self, uv, tmp_path):
        uv(f'echo "$@" > {tmp_path / "given"}')
        made = make(["steplib==2.0"], tmp_path / "kept", linked=False)
        given = (tmp_path / "given").read_text().split()
        assert given == ["pip", "install", "--no-progress", "--python", str(made.python), "steplib==2.0"]

    def test_its_own_words_are_said_where_it_fails(self, uv, tmp_path):
        uv("echo no solution found >&2; exit 1")
        with pytest.raises(EnvironmentFailed, match=r'(?s)uv cannot install "steplib==9".*no solution found'):
            make(["steplib==9"], tmp_path / "kept", linked=False)
        assert list((tmp_path / "kept").iterdir()) == []

    def test_not_where_pip_is_told_what_it_does_not_read(self, uv, monkeypatch):
        program = uv("exit 1")
        assert environments._uv() == program
        monkeypatch.setenv("PIP_INDEX_URL", "https://example.org")
        assert environments._uv() is None
