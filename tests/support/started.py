"""Other Python processes that a test starts, and that end with it."""

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import perfsuite

ROOT = Path(perfsuite.__path__[0]).parent


@contextlib.contextmanager
def starting(prelude: str, *arguments: object) -> Iterator[Callable[[str], subprocess.Popen]]:
    """What starts a process that runs `prelude` and then some code, with the arguments in `sys.argv`."""
    started = []

    def start(code: str) -> subprocess.Popen:
        command = [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
