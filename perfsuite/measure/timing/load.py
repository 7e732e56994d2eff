"""The load of other processes: what it costs this one.

Under a load unlike calls slow down by unlike factors: one that uses every core waits for the slowest, one that uses a
single core may not notice. Beside one process that only computes, the ratio of an int8 to a float32 matrix product rose
from 1.6 to 2.9, of unchanged code (2-core x86-64 machine).
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Collection, Iterable

from perfsuite.measure import peers
from perfsuite.measure.timing.scheduling import process_delay_ns

WINDOW = 0.5
"""Seconds between two looks at the load: 50 ticks of a core, in which the system counts."""

LASTING = 0.25
"""The share of the time in which a load has to be there to count. A median follows one that is there half of the time
as if it were there all the time; its mean would count half."""


def cores() -> int:
    """The cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Usage:
    """Seconds so far: of the clock; of processor time, of all processes on this process's cores, and of its own; and in
    which threads of this process waited for a processor, in sum.
    """

    clock: float
    all_processes: float
    own: float
    waited: float

    def slowed(self, since: "Usage", part: float) -> float:
        """By what factor other processes may have slowed what took a `part` of the time since then: 1 or more.

        A call that uses all cores gets those that others leave. And it has lost no more than its threads have waited.
        """
        passed = self.clock - since.clock
        # Less than a tick a core is nothing.
        others = (self.all_processes - since.all_processes) - (self.own - since.own) - cores() * _tick()
        if passed <= 0 or others <= 0:
            return 1.0
        waited = (self.waited - since.waited) / part
        return 1 / max(1 - others / (passed * cores()), 1 - waited / passed, 1e-9)


def usage() -> Usage | None:
    """What was used so far; None where the system does not say (it is not Linux), or processes measure as a group."""
    if not peers.alone():
        return None  # the others of the group are no load
    try:
        with open("/proc/stat", encoding="ascii") as file:
            busy = busy_seconds(file.read(), os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None
    return Usage(time.monotonic(), busy, time.process_time(), process_delay_ns() / 1e9)


class Load:
    """The load of other processes from now on; whoever samples calls `look` now and then."""

    def __init__(self) -> None:
        self._seen = [usage()]

    def look(self) -> None:
        """Note what was used so far, once in a `WINDOW`."""
        last = self._seen[-1]
        if last is not None and time.monotonic() - last.clock >= WINDOW:
            self._seen.append(usage())

    def slowed(self, part: float = 1.0) -> float:
        """By what factor other processes may have slowed what took a `part` of the time; 1 where nothing is known.

        Of a load that comes and goes, the one that was there, or heavier, for `LASTING` of the time.
        """
        seen = [each for each in (*self._seen, usage()) if each is not None]
        return lasting([(now.slowed(then, part), now.clock - then.clock) for then, now in itertools.pairwise(seen)])


def lasting(factors: Iterable[tuple[float, float]]) -> float:
    """Of factors, each with its seconds, the one that held, or a larger one, for `LASTING` of the time; 1 of none."""
    largest_first = sorted(factors, reverse=True)
    left = LASTING * sum(seconds for _, seconds in largest_first)
    for factor, seconds in largest_first:
        left -= seconds
        if left <= 0:
            return factor
    return 1.0


def busy_seconds(stat: str, allowed: Collection[int]) -> float:
    """The time in which the `allowed` cores worked, or another machine had them, from the text of /proc/stat.

    Each core has a line: "cpu0", then ticks of user, nice, system, idle, iowait, irq, softirq and steal
    (https://docs.kernel.org/filesystems/proc.html). Guests' ticks, which follow, are among those of user.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            used = [int(each) for each in numbers[:8]]
            ticks += sum(used) - sum(used[3:5])
    return ticks * _tick()


def _tick() -> float:
    return 1 / os.sysconf("SC_CLK_TCK")
