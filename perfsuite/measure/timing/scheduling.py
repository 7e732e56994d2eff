"""The time that the operating system took away, so that a neighbour's work does not look like the code's own.

Linux counts for every thread how long it was ready to run and did not, in nanoseconds: the second number of its
`schedstat` (https://docs.kernel.org/scheduler/sched-stats.html). Elsewhere nothing is known, and the answer is 0.
"""

import os


def is_known() -> bool:
    """Whether this system counts it. Elsewhere time that a neighbour took from a thread looks like sleep."""
    return os.path.exists("/proc/thread-self/schedstat")


def thread_delay_ns() -> int:
    """How long this thread has waited for a processor since it began."""
    return _delay("/proc/thread-self/schedstat")


def process_delay_ns(*, without: int | None = None) -> int:
    """How long all threads of this process have waited for a processor, in sum, but for the one of a native id.

    The sum is the most that it can have cost a call, whose threads may wait one after the other or at once.
    """
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return 0
    return sum(_delay(f"/proc/self/task/{thread}/schedstat") for thread in threads if thread != str(without))


def _delay(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):  # another system, a kernel without it, or a thread that has ended
        return 0
