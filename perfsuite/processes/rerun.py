"""Measure again in a fresh process: pytest on one test, which hands its metrics back.

Some things are decided once a process, such as where its memory and its programs lie. They are the same for all
samples of that process, and no number of samples averages them out.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perfsuite.measure.metric import Metric
from perfsuite.processes import elsewhere
from perfsuite.processes.handover import (
    Request,
    read_metrics,
    read_reason,
    read_values,
    write_request,
)
from perfsuite.processes.launch import LAUNCH, Launch

T = TypeVar("T")

AGAIN = "--perf-again"
"""The option, not in --help, that tells a process of the folder with its request."""

STARTING_SECONDS = 60.0
"""What Python, JAX and the imports of a project may take, on top of what was seen of it."""

SLACK = 2.0
"""How many times as long as the session took so far a fresh process may take."""

_OUTPUT = "output.txt"
_LAST_WORDS = 300
"""Characters of what a process wrote last, where that is all that is known of its end."""


class ProcessFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """A fresh process handed nothing back. The message says why, and can follow a colon."""


def measure_again(config: pytest.Config, request: Request) -> list[Metric]:
    """Measure what `request` asks for in a fresh process that is like the session of `config`.

    Raises `ProcessFailed` where it hands no metrics over.
    """
    return _asked(config, request, read_metrics)


def values_of(config: pytest.Config, request: Request) -> Any:
    """What an instrument hands over in fresh process `request.process`, which is like one on another machine.

    Raises `ProcessFailed`.
    """
    return _asked(config, request, read_values)


def _asked(config: pytest.Config, request: Request, read: Callable[[Path], T | None]) -> T:
    launch = config.stash[LAUNCH]
    try:
        with tempfile.TemporaryDirectory(prefix="perfsuite-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            write_request(folder, request)
            environment = _environment(launch)
            if request.process is not None:
                environment |= elsewhere.environment(request.process, folder)
            process = running(
                command(config, folder),
                directory=launch.directory,
                environment=environment,
                output=folder / _OUTPUT,
            )
            with process as ended:
                sampling = len(request.doubtful) * config.option.perf_seconds
                status = ended(allowed_seconds(launch, sampling))
            return _handed_over(folder, status, read)
    except OSError as error:
        raise ProcessFailed(f"it could not be started ({error})") from None


def allowed_seconds(launch: Launch, sampling: float = 0.0) -> float:
    """How long a fresh process may take for a test: it does some of what this session did, imports and compiling too.

    Beside `sampling`, the seconds for what is in doubt, one that is as fast needs no more than this one took. `SLACK`
    and `STARTING_SECONDS` are for a busier machine, and for what came before this session could look at the clock.
    """
    return STARTING_SECONDS + SLACK * (time.monotonic() - launch.started + sampling)


def argument_of(item: pytest.Item) -> str:
    """What names a test on the command line from any folder: ids are relative to the rootdir, arguments are not."""
    file = item.getparent(pytest.Module)
    if file is None or not item.nodeid.startswith(f"{file.nodeid}::"):
        return item.nodeid
    return f"{file.path}{item.nodeid[len(file.nodeid) :]}"


def command(config: pytest.Config, folder: Path) -> list[str]:
    """The command line: that of this session, so that rootdir, ini file, conftests and plugins are the same.

    Which test is meant is in the request: an id may hold what a command line cannot. What is to be left undone is
    turned off in `hooks.rerun_child`, except what is too late there.
    """
    launch = config.stash[LAUNCH]
    # With pytest's capturing, what a process wrote would end with it when it crashes.
    added = [f"{AGAIN}={folder}", "--capture=no"]
    if getattr(config, "cache", None) is not None:
        added.append(f"--override-ini=cache_dir={folder / 'cache'}")
    if hasattr(config.option, "no_cov"):  # of pytest-cov
        added.append("--no-cov")
    arguments = list(launch.arguments)
    options_end = arguments.index("--") if "--" in arguments else len(arguments)
    return [sys.executable, *launch.flags, "-m", "pytest", *arguments[:options_end], *added, *arguments[options_end:]]


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


def _environment(launch: Launch) -> dict[str, str]:
    # This process holds most of a GPU's memory already. JAX's documentation (GPU memory allocation) advises this for
    # processes that share one.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **launch.environment}


def _handed_over(folder: Path, ended: int | None, read: Callable[[Path], T | None]) -> T:
    try:
        handed = read(folder)
    except ValueError as error:
        raise ProcessFailed(f"what it handed back cannot be read ({error})") from None
    if handed is not None:
        return handed
    if reason := read_reason(folder):
        raise ProcessFailed(reason)
    if ended is None:
        raise ProcessFailed(f"it was stopped because its time was up{_last_words(folder)}")
    raise ProcessFailed(f"it ended with {_status(ended)}{_last_words(folder)}")


def _status(ended: int) -> str:
    if ended >= 0:
        return f"exit status {ended}"
    try:
        return signal.Signals(-ended).name
    except ValueError:
        return f"signal {-ended}"


def _last_words(folder: Path) -> str:
    written = (folder / _OUTPUT).read_bytes()[-4 * _LAST_WORDS :].decode(errors="replace")
    words = " ".join(written.split())[-_LAST_WORDS:]
    return f"; the last that it wrote: {words}" if words else ""
