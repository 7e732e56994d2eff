"""The workflow of a project's CI system, from the one that the documentation shows."""

import re
import sys
from pathlib import Path

from perfsuite.measure import installed
from perfsuite.starting.project import Project

GITHUB = ".github/workflows/perf.yml"
GITLAB = ".gitlab-ci.yml"
BESIDE_GITLAB = ".gitlab/perf.gitlab-ci.yml"
"""Where there is a .gitlab-ci.yml, which includes it then."""

_TEMPLATES = Path(__file__).with_name("templates")
_INSTALL = re.compile(r'pip install -e \. "perfsuite\[report,tpu\] @ \$PERFSUITE"')
_VARIABLE = re.compile(r"^        env:\n          PERFSUITE: .*\n|(?<=\") # a CI/CD variable: .*", re.MULTILINE)
_CACHE = re.compile(r"^ +cache: pip\n +cache-dependency-path: pyproject\.toml\n", re.MULTILINE)
_PLACE = "$PERFSUITE"
"""Stands for the place of perfsuite where runners cannot reach that of the one that is installed."""


def workflow(project: Project, template: str) -> str:
    """The workflow with this Python version, and with what the project needs installed.

    `template` is "perf.yml" or "perf.gitlab-ci.yml". Programs for TPUs need the extra `tpu`, which it leaves out.
    """
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    text = text.replace("3.12", f"{sys.version_info.major}.{sys.version_info.minor}", 1)
    text = text.replace("`perfsuite init` writes it.", "Written by `perfsuite init`.", 1)
    command = f'pip install {own_packages(project)}"{_perfsuite()}"'
    text = _INSTALL.sub(lambda _: command, text, count=1)
    if not (project.root / "pyproject.toml").is_file():
        text = _CACHE.sub("", text, count=1)
    return _VARIABLE.sub("", text, count=1) if installed.is_elsewhere_too() else text


def own_packages(project: Project) -> str:
    """What pip is to install of the project itself, as a command has it; empty where no file says it."""
    pyproject = project.root / "pyproject.toml"
    if (project.root / "setup.py").is_file() or (pyproject.is_file() and "[project]" in _lines(pyproject)):
        return "-e . "
    return "-r requirements.txt " if (project.root / "requirements.txt").is_file() else ""


def what_is_missing(project: Project) -> list[str]:
    """What the user has to do before the workflow can install everything, a line each."""
    lines = []
    if not installed.is_elsewhere_too():
        lines.append(
            "set the variable PERFSUITE of your CI system to a URL of perfsuite's repository or wheel, as pip takes "
            "it: this perfsuite was installed from a folder or file that runners cannot reach"
        )
    if not own_packages(project):
        lines.append("add to the workflow's `pip install` what your project needs: no file of it says that")
    return lines


def _perfsuite() -> str:
    return installed.requirement("report") if installed.is_elsewhere_too() else f"perfsuite[report] @ {_PLACE}"


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
