"""What takes long, on one line of the terminal below pytest's own, which is rewritten and erased.

The line is for a person at a terminal: not for a file or a pipe, pytest-xdist's workers, CI, Windows, or a TERM that is
dumb or unset. Nor with -s or --capture=tee-sys, where tests print on the same lines, nor with -qq. A file, a pipe and
CI get a line of their own, each half minute.

pytest captures the standard output while a test runs. So the line goes to a duplicate of its descriptor from before the
first test, in one write of the operating system that needs no lock or buffer of Python.
"""

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from perfsuite.measure import progress
from perfsuite.measure.progress import Progress
from perfsuite.measure.words import printable

# Of the VT100: one line down and up again, so that there is a line below (the screen may have to scroll); remember the
# place; to the line below. After the text: erase the rest of the line, and back to the place.
_BELOW = "\x1bD\x1b[A\x1b7\r\n"
_BACK = "\x1b[K\x1b8"
_ERASE = "\x1b[J"

_NARROWEST = 20

LOG_SECONDS = 30.0


def wanted(config: pytest.Config, environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether a person would see the line, and see it alone."""
    return (
        is_terminal
        and os.name == "posix"
        and environment.get("TERM", "dumb") not in ("", "dumb")
        and not environment.get("CI")
        and config.option.capture in ("fd", "sys")
    )


class ProgressLine:
    """A listener that writes to the terminal `descriptor`."""

    def __init__(self, descriptor: int, *, columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns):
        self._descriptor = descriptor
        self._columns = columns
        self._shown = False
        self._paused = False

    def __call__(self, now: Progress | None) -> None:
        if now is None:
            self.erase()
        elif not self._paused and (columns := self._columns()) >= _NARROWEST:
            self._shown = True
            self._write(f"{_BELOW}{_one_line(progress_words(now), columns - 1)}{_BACK}")

    def erase(self) -> None:
        """Leave nothing on the screen."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def pytest_enter_pdb(self) -> None:
        self._paused = True
        self.erase()

    def pytest_leave_pdb(self) -> None:
        self._paused = False

    def _write(self, text: str) -> None:
        # A terminal that is gone must not fail the run.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode("ascii", "backslashreplace"))


class ProgressLog:
    """A listener that writes to the log `descriptor`, a line each half minute."""

    def __init__(self, descriptor: int, *, clock: Callable[[], float] = time.monotonic):
        self._descriptor = descriptor
        self._clock = clock
        self._written = -math.inf

    def __call__(self, now: Progress | None) -> None:
        if now is not None and now.seconds >= LOG_SECONDS and self._clock() - self._written >= LOG_SECONDS:
            self._written = self._clock()
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"\nperfsuite: {progress_words(now)}\n".encode("ascii", "backslashreplace"))


def progress_words(now: Progress) -> str:
    """`comparing step with plain: 12 of 30 s at most`, `compiling step for tpu-v5e: 34 s (209 s last time)`."""
    if now.most_seconds is not None:
        # The least number of pairs may take longer than the time.
        part = f" ({now.seconds / now.most_seconds:.0%})" if now.most_seconds > now.seconds else ""
        return f"{now.what}: {now.seconds:.0f} of {now.most_seconds:.0f} s at most{part}"
    usual = f" ({now.usual_seconds:.0f} s last time)" if now.usual_seconds else ""
    return f"{now.what}: {now.seconds:.0f} s{usual}"


@contextlib.contextmanager
def shown_below(config: pytest.Config) -> Iterator[ProgressLine | ProgressLog | None]:
    """Show what takes long inside, if anybody would see it. Open it while pytest does not capture."""
    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # a stream of Python's own, a closed one, or none
        descriptor = None
    if descriptor is None or hasattr(config, "workerinput") or config.option.verbose <= -2:
        yield None
        return
    line: ProgressLine | ProgressLog = ProgressLog(descriptor)
    if wanted(config, os.environ, is_terminal=os.isatty(descriptor)):
        line = ProgressLine(descriptor)
        config.pluginmanager.register(line, "perfsuite-progress")
    try:
        with progress.listening(line):
            yield line
    finally:
        line(None)
        os.close(descriptor)


def _one_line(text: str, columns: int) -> str:
    text = printable(text.encode("ascii", "backslashreplace").decode(), "?")
    return text if len(text) <= columns else f"{text[: columns - 3]}..."
