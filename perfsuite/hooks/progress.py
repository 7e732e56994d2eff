"""What takes long, in a line of its own each half minute: for a person at a terminal, a file, a pipe and CI alike.

pytest captures the standard output while a test runs. So the line goes to a duplicate of its descriptor from before the
first test, in one write of the operating system that needs no lock or buffer of Python. Not with -qq, nor in the
workers of pytest-xdist.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from perfsuite.measure import progress
from perfsuite.measure.progress import Progress
from perfsuite.measure.words import printable

LOG_SECONDS = 30.0


class ProgressLog:
    """A listener that writes to `descriptor`, a line each half minute."""

    def __init__(self, descriptor: int, *, clock: Callable[[], float] = time.monotonic):
        self._descriptor = descriptor
        self._clock = clock
        self._written = -math.inf

    def __call__(self, now: Progress | None) -> None:
        if now is not None and now.seconds >= LOG_SECONDS and self._clock() - self._written >= LOG_SECONDS:
            self._written = self._clock()
            text = printable(progress_words(now).encode("ascii", "backslashreplace").decode(), "?")
            with contextlib.suppress(OSError):  # a terminal that is gone must not fail the run
                os.write(self._descriptor, f"\nperfsuite: {text}\n".encode())


def progress_words(now: Progress) -> str:
    """`comparing step with plain: 12 of 30 s at most`, `compiling step for tpu-v5e: 34 s`."""
    if now.most_seconds is not None:
        # The least number of pairs may take longer than the time.
        part = f" ({now.seconds / now.most_seconds:.0%})" if now.most_seconds > now.seconds else ""
        return f"{now.what}: {now.seconds:.0f} of {now.most_seconds:.0f} s at most{part}"
    return f"{now.what}: {now.seconds:.0f} s"


@contextlib.contextmanager
def logged(config: pytest.Config) -> Iterator[ProgressLog | None]:
    """Log what takes long inside, if anybody would see it. Open it while pytest does not capture."""
    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # a stream of Python's own, a closed one, or none
        descriptor = None
    if descriptor is None or hasattr(config, "workerinput") or config.option.verbose <= -2:
        yield None
        return
    log = ProgressLog(descriptor)
    try:
        with progress.listening(log):
            yield log
    finally:
        os.close(descriptor)
