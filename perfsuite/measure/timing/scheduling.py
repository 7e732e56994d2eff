"""The time that the operating system took away, so that a neighbour's work is not taken for the code's own.

Linux says of every thread how long it was ready to run and did not, to the nanosecond, in its `schedstat` (the second
number; https://docs.kernel.org/scheduler/sched-stats.html). Elsewhere nothing is known, and said to be 0.
"""

import os


def is_known() -> bool:
    """Whether this system says it. Elsewhere what a neighbour took from a thread looks as if the thread had slept."""
    return os.path.exists("/proc/thread-self/schedstat")


def thread_delay_ns() -> int:
    """How long this thread has waited for a processor, in nanoseconds, since it began."""
    return _delay("/proc/thread-self/schedstat")


def process_delay_ns(*, without: int | None = None) -> int:
    """How long all threads of this process have waited for a processor, together, but for that of a native id.

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
