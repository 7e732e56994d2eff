"""Joins the parts: looks at the function and the project, writes the files, and says what is next."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from perfsuite.starting.first_test import first_test
from perfsuite.starting.project import Project, PytestSettings, StartError, project_of
from perfsuite.starting.settings import Edited, Value, with_ignored, with_settings
from perfsuite.starting.target import Target, look_at, split
from perfsuite.starting.workflows import BESIDE_GITLAB, GITHUB, GITLAB, what_is_missing, workflow
from perfsuite.starting.writing import New, write_all

REPORT = "perf-report"
"""The folder of the report, in the workflows."""


@dataclasses.dataclass
class Started:
    """What was done, and what the user does next. `done` has a word and what it is about: ("wrote", "tests/...")."""

    done: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    next: list[str] = dataclasses.field(default_factory=list)


def start(text: str, settings: PytestSettings) -> Started:
    """Write a first perf test of the function `module:function`, and what the project lacks around it.

    Raises `StartError`, and then nothing was written.
    """
    module, name = split(text)
    project = project_of(settings)
    target = look_at(module, name, given=project.paths, further=project.possible_paths)
    if not project.known and not target.file.resolve().is_relative_to(project.root.resolve()):
        raise StartError(
            f"{project.root} is no project, and {module} is not in it ({target.file}): run it in the folder of your "
            "project, with its pyproject.toml"
        )
    files: list[New] = []
    started = Started()
    test = project.test_file(name)
    _new(files, started, test, project, lambda: first_test(target, _shown(test, project)))
    _settings(files, started, project, target)
    _ignored(files, started, project)
    _workflows(files, started, project)
    write_all(files)
    started.next = [*_about(target, _shown(test, project)), *started.next, *_steps(project, test)]
    return started


def _new(files: list[New], started: Started, path: Path, project: Project, text: Callable[[], str]) -> bool:
    """Plan a file, unless it is there."""
    if os.path.lexists(path):
        started.done.append(("left", f"{_shown(path, project)}: it is there already"))
        return False
    files.append(New(path, text()))
    started.done.append(("wrote", _shown(path, project)))
    return True


def _settings(files: list[New], started: Started, project: Project, target: Target) -> None:
    wanted: dict[str, Value] = {"perf_baselines": project.settings.baselines}
    if target.path is not None:
        wanted["pythonpath"] = [os.path.relpath(target.path, project.root)]
    file = project.settings.file or project.root / "pytest.ini"
    _edited(files, started, project, file, lambda text: with_settings(file, text, wanted))


def _ignored(files: list[New], started: Started, project: Project) -> None:
    file = project.root / ".gitignore"
    if project.repository is None and not file.exists():
        started.done.append(("left", ".gitignore: there is no git repository"))
        return
    baselines = project.settings.baselines
    lines = (".pytest_cache/", f"{REPORT}/", f"{baselines}/.*.tmp")
    _edited(files, started, project, file, lambda text: with_ignored(text, lines))
    if project.ignores(project.root / baselines / "cpu.json"):
        started.next.append(f"take {baselines}/ out of what git ignores: baselines belong into the repository")


def _edited(files: list[New], started: Started, project: Project, file: Path, edit: Callable[[str], Edited]) -> None:
    """Plan lines that a file gets."""
    shown = _shown(file, project)
    try:
        before = file.read_bytes() if file.exists() else None
        edited = edit((before or b"").decode())
    except OSError as error:
        raise StartError(f"{file}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise StartError(f"{file}: it is not UTF-8: mend it first") from None
    if edited.added:
        files.append(New(file, edited.text, before))
        started.done.append(("added", f"{shown}: {', '.join(edited.added)}"))
    elif not edited.left:
        started.done.append(("left", f"{shown}: it has all that is needed"))
    started.done += [("left", f"{shown}: {each}") for each in edited.left]


def _workflows(files: list[New], started: Started, project: Project) -> None:
    if project.repository is not None and project.repository != project.root.resolve():
        started.next.append(
            "write a workflow yourself, after docs/ci.md: the project is a folder of the repository "
            f"{project.repository}"
        )
        return
    written = False
    if project.on_github:
        written |= _new(files, started, project.root / GITHUB, project, lambda: workflow(project, "perf.yml"))
    if project.on_gitlab:
        there = (project.root / GITLAB).exists()
        file = BESIDE_GITLAB if there else GITLAB
        of_gitlab = _new(files, started, project.root / file, project, lambda: workflow(project, "perf.gitlab-ci.yml"))
        if of_gitlab and there:
            started.next.append(f"add to {GITLAB}: include: [{{local: {BESIDE_GITLAB}}}]")
        written |= of_gitlab
    if not (project.on_github or project.on_gitlab):
        started.done.append(("left", "CI: no .github, no .gitlab-ci.yml and no remote of GitHub or GitLab is here"))
    started.next += what_is_missing(project) if written else []


def _about(target: Target, test: str) -> list[str]:
    """What the user has to know of the function."""
    said = []
    if target.unseen:
        unseen = "; ".join(f"{each.name} ({each.why_unseen})" for each in target.unseen)
        said.append(f"write the arguments of {target.name} into {test}: {unseen}")
    if target.problem:
        said.append(f"correct the arguments of {target.name} in {test}: with them it raises {target.problem}")
    if not target.jitted:
        said.append(f"{target.name} is not jitted: name the jitted function, and its program is compared too")
    return said


def _steps(project: Project, test: Path) -> list[str]:
    shown = _shown(test, project)
    return [
        f"pytest --perf-save {shown}",
        f"commit {shown} and {project.settings.baselines}/; from then on `pytest --perf` fails what got worse",
    ]


def _shown(path: Path, project: Project) -> str:
    return path.relative_to(project.root).as_posix() if path.is_relative_to(project.root) else str(path)
