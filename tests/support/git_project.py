"""A git repository in which a file of baselines is saved again and again: nothing of the user's settings in it."""

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import encode
from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import Interval

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2", equinox="0.13.8")
TEST = "tests/test_steps.py::test_flat"

ISOLATED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def count(value: int, environment: Environment = HERE, **fields) -> Entry:
    """A count on file."""
    return Entry(value, "compiles", "count", "measured", environment, **fields)


def ratio(value: float, half_width: float = 0.002, environment: Environment = HERE, **fields) -> Entry:
    """A ratio on file, with its interval."""
    interval = Interval(value - half_width, value + half_width) if half_width else None
    return Entry(value, "x", "ratio", "measured", environment, interval, 300, **fields)


def with_versions(**versions: str) -> Environment:
    """The environment of these tests with other versions."""
    return dataclasses.replace(HERE, **versions)


class GitProject:
    """A repository at `root`, each commit a minute after the one before it, from 2026-01-01 on."""

    def __init__(self, root: Path):
        self.root = root
        self.minutes = 0
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    @classmethod
    def here(cls, root: Path, monkeypatch: pytest.MonkeyPatch) -> "GitProject":
        """A repository that is the current folder, in an environment without the user's settings."""
        for name, value in ISOLATED.items():
            monkeypatch.setenv(name, value)
        project = cls(root)
        monkeypatch.chdir(root)
        return project

    def git(self, *arguments: str) -> str:
        """Run git here; what it prints."""
        when = f"2026-01-{1 + self.minutes // 1440:02}T{self.minutes // 60 % 24:02}:{self.minutes % 60:02}:00+00:00"
        environment = {**os.environ, **ISOLATED, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=environment, check=True, capture_output=True, text=True
        ).stdout

    def write(self, metrics: Mapping[str, Entry] | bytes, path: str = "baselines/cpu.json") -> Path:
        """Write the metrics of one test, or these bytes, into a baseline file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(metrics if isinstance(metrics, bytes) else encode(Baselines(file.stem, {TEST: metrics})))
        return file

    def commit(self, subject: str = "Work") -> str:
        """Commit all there is; the short hash."""
        self.minutes += 1
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "--short", "HEAD").strip()

    def save(
        self, metrics: Mapping[str, Entry] | bytes, subject: str = "Save", path: str = "baselines/cpu.json"
    ) -> str:
        """Write the metrics and commit them; the short hash."""
        self.write(metrics, path)
        return self.commit(subject)
