"""Processes that keep the machine busy on purpose."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# It looks every few milliseconds whether its parent is gone, and then ends by itself.
_BUSY = """
import os, sys
parent = int(sys.argv[1])
print("busy", flush=True)
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def busy_neighbours(count: int | None = None) -> Iterator[list[int]]:
    """Keep `count` cores busy, by default every core that this process may run on, and give the process ids.

    All of them are busy when the body begins, and killed when it ends, whatever it raises. Where this process is killed
    itself, they end within moments.
    """
    with contextlib.ExitStack() as cleanup:
        processes = []
        for _ in range(cores() if count is None else count):
            process = subprocess.Popen(
                # Without site-packages it starts in a moment.
                [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal is for this process to handle
            )
            cleanup.enter_context(process)  # closes its pipe and waits for it, once it was killed
            cleanup.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"busy"
        yield [process.pid for process in processes]
