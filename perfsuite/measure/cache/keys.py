"""The key of a call's program in JAX's persistent cache, and what several processes have for it."""

import dataclasses

import jax

from perfsuite.measure.cache.differences import difference
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.persistent_cache import ProgramKey, key_of
from perfsuite.measure.program.lowering import lower_call, with_lower
from perfsuite.measure.words import plural

INSTRUMENT = "perf.cache_key"


@dataclasses.dataclass(frozen=True)
class CacheKeys:
    """What each process has for one call. `processes` is empty where the session starts no others."""

    label: str
    processes: tuple[ProgramKey, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of each process."""
        return tuple(each.key for each in self.processes)

    @property
    def distinct(self) -> int:
        """How many different keys there are: 1 where the processes can share a program, or where there are none."""
        return len(set(self.keys)) or 1

    def metric(self, name: str) -> Metric:
        """How many keys the processes have, as a metric."""
        return Metric(f"{name} cache keys", self.distinct, "keys", "count")

    def why(self) -> list[str]:
        """Why there are several keys, each line a sentence or two texts side by side; empty for one key."""
        if self.distinct < 2:
            return []
        other = next(number for number, key in enumerate(self.keys) if key != self.keys[0])
        return difference(self.processes[0], self.processes[other], ("process 1", f"process {other + 1}"))

    def in_words(self) -> str:
        """`step has 3 keys in 3 processes`."""
        return f"{self.label} has {plural(self.distinct, 'key')} in {plural(len(self.keys), 'process', 'processes')}"

    def __str__(self) -> str:
        return "\n".join([self.in_words(), *self.why()])


def check_lowers(call: Call) -> None:
    """Raise `MeasurementError` for a call that no process could lower, before any process is started."""
    __tracebackhide__ = True
    with_lower(call, INSTRUMENT)


def take_key(call: Call) -> ProgramKey:
    """Lower a call in this process, and make the key of its program without compiling it.

    JAX's caches in memory are emptied: it makes no key of a program that was compiled before.
    """
    __tracebackhide__ = True
    jax.clear_caches()
    return key_of(lower_call(call, asked_by=INSTRUMENT).lowered)
