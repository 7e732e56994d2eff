"""How this pytest session was started, so that others like it can be. Imports nothing heavy: idle sessions load it."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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

    `mode` makes the mode of the session (`session.modes.Mode`) from the session. `cache` is the folder where the facts
    of programs are kept, `target_cache` the one for what compilers for absent devices say. None keeps none.
    """

    mode: Callable[[Any], Any]
    cache: Path | None
    target_cache: Path | None


LAUNCH = pytest.StashKey[Launch]()
TASK = pytest.StashKey[Task]()
"""Only in the config of a session that another process started, before the session starts."""
