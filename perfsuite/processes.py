"""How this pytest session was started, so that others like it can be, and how one is run and ended.

Imports nothing heavy: sessions without a perf test load it.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True)
class Launch:
    """What a process needs to be given to become a session like this one.

    Taken before any conftest was imported, for what they change (XLA_FLAGS, `sys.path`) they change again.
    """

    arguments: tuple[str, ...]
    """As on the command line. Those of the ini option `addopts` and of PYTEST_ADDOPTS come by themselves."""
    directory: Path
    """Where pytest was started: the paths among the arguments are relative to it."""
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    """Flags of the interpreter."""
    started: float
    """Seconds of `time.monotonic`."""
    asks_for_benchmarks: bool = False
    """Whether an option of pytest-benchmark was given."""

    @classmethod
    def of(cls, config: pytest.Config, given: Sequence[str] = ()) -> "Launch":
        """The launch of this session. `given` are all of its arguments, also those of `addopts`, where known."""
        directory = config.invocation_params.dir
        # `python -m pytest` puts its folder on the path, `pytest` does not.
        on_path = "" in sys.path or str(directory) in sys.path
        return cls(
            arguments=tuple(str(argument) for argument in config.invocation_params.args),
            directory=directory,
            environment=dict(os.environ),
            flags=() if on_path else ("-P",),
            started=time.monotonic(),
            asks_for_benchmarks=any(
                str(argument).startswith("--benchmark-") for argument in given or config.invocation_params.args
            ),
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """What another process started this session for.

    `mode` makes the session's mode (`session.modes.Mode`), once JAX may be imported. `cache` is the folder where the
    facts of programs are kept, `target_cache` the one for what compilers for absent devices say. None keeps none.
    """

    mode: Callable[[], Any]
    cache: Path | None
    target_cache: Path | None


LAUNCH = pytest.StashKey[Launch]()
TASK = pytest.StashKey[Task]()
"""Only in the config of a session that another process started, before the session starts."""


@contextlib.contextmanager
def running(
    command: Sequence[str], *, directory: Path, environment: Mapping[str, str], output: Path
) -> Iterator[Callable[[float], int | None]]:
    """Start a command, with nothing to read and its output in a file.

    Yields a function that waits for it, for so many seconds at most, and returns its exit status, or None where its
    time was up. Nothing that it started in its turn is left running after the block, nor when an exception (Ctrl-C)
    comes meanwhile. Raises `OSError` where it cannot be started.
    """
    with (
        output.open("wb") as file,
        subprocess.Popen(
            list(command),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be ended with all that it started
        ) as process,
    ):

        def ended(seconds: float) -> int | None:
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None

        try:
            yield ended
        finally:
            if process.returncode is None:
                _kill(process)
                process.wait()


def _kill(process: subprocess.Popen) -> None:
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
        os.killpg(process.pid, signal.SIGKILL)  # it was not waited for, so the number is still its own
