"""Measure again in a fresh process: pytest on one test, or on some of a file, which hands their metrics back.

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
from typing import TypeVar

import pytest

from perfsuite.measure.metric import Metric
from perfsuite.processes import elsewhere
from perfsuite.processes.handover import (
    Request,
    Values,
    metrics_written,
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


def measure_again(config: pytest.Config, request: Request) -> dict[str, list[Metric]]:
    """Measure what `request` asks for in a fresh process that is like the session of `config`.

    Returns the metrics of each test: of the one asked for, and of others that the process came to. Raises
    `ProcessFailed` where it has none of the one asked for.
    """

    def read(folder: Path) -> dict[str, list[Metric]] | None:
        handed = read_metrics(folder)
        return handed if handed and request.test in handed else None

    return _asked(config, request, read)


def values_of(config: pytest.Config, request: Request, number: int) -> Values:
    """What an instrument hands over in fresh process `number`, which is like one on another machine.

    Raises `ProcessFailed`.
    """
    return _asked(config, request, read_values, number)


def _asked(config: pytest.Config, request: Request, read: Callable[[Path], T | None], number: int | None = None) -> T:
    launch = config.stash[LAUNCH]
    try:
        with tempfile.TemporaryDirectory(prefix="perfsuite-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            write_request(folder, request)
            environment = _environment(launch)
            if number is not None:
                environment |= elsewhere.environment(number, folder)
            process = running(
                command(config, folder, () if number is None else elsewhere.OPTION),
                directory=launch.directory,
                environment=environment,
                output=folder / _OUTPUT,
            )
            with process as ended:
                status = _waited(ended, folder, launch)
            return _handed_over(folder, status, read)
    except OSError as error:
        raise ProcessFailed(f"it could not be started ({error})") from None


def _waited(ended: Callable[[float], int | None], folder: Path, launch: Launch) -> int | None:
    """The exit status of a process, None where in all the time that it may take it handed over nothing more."""
    status, before, written = None, -1, 0
    while status is None and before != written:
        before = written
        status = ended(allowed_seconds(launch))
        written = metrics_written(folder)
    return status


def allowed_seconds(launch: Launch) -> float:
    """How long a fresh process may take for a test: it does some of what this session did, imports and compiling too.

    So a session that is as fast needs no more than this one took; `SLACK` and `STARTING_SECONDS` are for a busier
    machine, and for what came before this session could look at the clock.
    """
    return STARTING_SECONDS + SLACK * (time.monotonic() - launch.started)


def argument_of(item: pytest.Item) -> str:
    """What names a test on the command line from any folder: ids are relative to the rootdir, arguments are not."""
    file = item.getparent(pytest.Module)
    if file is None or not item.nodeid.startswith(f"{file.nodeid}::"):
        return item.nodeid
    return f"{file.path}{item.nodeid[len(file.nodeid) :]}"


def of_file(item: pytest.Item) -> tuple[str, list[pytest.Item]]:
    """The argument for the file of a test, and the tests of this session in it, from that one on, in their order.

    For a test of no Python file it is the test's own argument, with that test alone.
    """
    file = item.getparent(pytest.Module)
    items = item.session.items
    if file is None or item not in items:
        return argument_of(item), [item]
    return str(file.path), [each for each in items[items.index(item) :] if each.getparent(pytest.Module) is file]


def command(config: pytest.Config, folder: Path, options: Sequence[str] = ()) -> list[str]:
    """The command line: that of this session, so that rootdir, ini file, conftests and plugins are the same.

    Which test is meant is in the request: an id may hold what a command line cannot. What is to be left undone is
    turned off in `hooks.rerun_child`, except what is too late there.
    """
    launch = config.stash[LAUNCH]
    # With pytest's capturing, what a process wrote would end with it when it crashes.
    added = [*options, f"{AGAIN}={folder}", "--capture=no"]
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
