"""Memory over a loop of steps: what is alive, what leaks, and how the process grows.

Arrays leak if their number or size grows for as long as the steps run. This growth is exact: the least of the last
third of the steps is compared with the most of the first third, so what only comes and goes, or fills up within the
first third, has none. The growth of the process is read from its resident set, which has noise, so it has an interval.
"""

import contextlib
import dataclasses
import gc
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import scipy

from perfsuite.measure.arguments import leaves_with_paths
from perfsuite.measure.call import Call
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.warmup import borrowed
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.runtime.referrers import holders_of

STEPS = 30
FEWEST_STEPS = 9
WARM_STEPS = 3
CONFIDENCE = 0.99
NAMED = 5
"""How many kinds of leaked arrays are named."""

SUFFIXES = (" leaked arrays", " leaked bytes", " live bytes", " peak device bytes", " host growth")

_Alive = dict[str, tuple[int, int]]
"""For each kind of array, such as "float32[8]", how many are alive, and their device bytes."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What `steps` steps of a call did to memory, after three warm steps.

    `live_bytes` are the device bytes of the call's arguments and of what its steps left alive. `peak_bytes` is the most
    that a device had in use, with everything else that the process has there, if `memory_stats()` of the device tells
    and the steps raised it (`peak_source` is "device"). Otherwise it is the most that was alive between two steps
    ("live arrays").

    `leaked_arrays` and `leaked_bytes` are the live arrays and device bytes that a step adds. `grown` names the kinds of
    arrays that grew, largest first, and who holds them. `host_growth_bytes` is the growth of the resident set a step,
    the median of the slopes between all pairs of steps, and `host_growth` its 99 % interval (Sen 1968, Estimates of the
    regression coefficient based on Kendall's tau). It includes the arrays of a CPU. It is NaN if the system does not
    tell.
    """

    label: str
    steps: int
    live_bytes: int
    peak_bytes: int
    peak_source: str
    leaked_arrays: float
    leaked_bytes: float
    grown: tuple[str, ...]
    host_growth_bytes: float
    host_growth: Interval | None

    def metrics(self, name: str) -> list[Metric]:
        """Leaks as a count and a size, rounded up, so that an array in ten steps is one; live bytes as a size."""
        metrics = [
            Metric(f"{name} leaked arrays", math.ceil(self.leaked_arrays), "arrays a step", "count"),
            Metric(f"{name} leaked bytes", math.ceil(self.leaked_bytes), "bytes a step", "size"),
            Metric(f"{name} live bytes", self.live_bytes, "bytes", "size"),
            Metric(f"{name} peak device bytes", self.peak_bytes, "bytes", "info"),
        ]
        if self.host_growth is not None:
            growth, interval = self.host_growth_bytes, self.host_growth
            metrics.append(Metric(f"{name} host growth", growth, "bytes a step", "info", "lower", interval, self.steps))
        return metrics

    def in_words(self) -> str:
        """One line for each kind of array that grew."""
        return "\n".join(self.grown)


def memory_of(call: Call, *, steps: int = STEPS) -> Memory:
    """Run a call for `steps` steps and look at the live arrays and the resident set after each.

    The collector runs after each step, so that only what something holds counts. Steps may compile. Moves a call that
    carries on. Raises `ValueError` for fewer than nine steps. What a step needs more than `steps / 3` steps to fill,
    such as a long bounded history, looks like a leak: use more steps.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < FEWEST_STEPS:
        raise ValueError(f"perf.memory({call.label}, steps={steps!r}): steps must be an int of {FEWEST_STEPS} or more")
    own = {id(leaf) for leaf in jax.tree.leaves((call.args, call.kwargs))}
    # Held, so that no new array gets the identity of one of them.
    others = [array for array in jax.live_arrays() if id(array) not in own]
    strangers = frozenset(map(id, others))
    peak_before = _peak_of_device()
    samples: list[_Alive] = []
    resident: list[float] = []
    with borrowed(call) as subject:
        for step in range(WARM_STEPS + steps):
            jax.block_until_ready(subject.run())
            call.args = subject.args  # or the state of the first step would live to the end
            gc.collect()
            if step >= WARM_STEPS:
                samples.append(_alive(strangers))
                resident.append(_resident_bytes())
    totals = [sum(size for _, size in sample.values()) for sample in samples]
    leaked_arrays = _growth([sum(number for number, _ in sample.values()) for sample in samples])
    leaked_bytes = _growth(totals)
    grown = _grown(samples, strangers, subject) if leaked_arrays or leaked_bytes else ()
    leaks = leaked_arrays / _apart(steps), leaked_bytes / _apart(steps)
    return Memory(call.label, steps, totals[-1], *_peak(peak_before, totals), *leaks, grown, *_slope(resident))


def _growth(values: Sequence[int]) -> int:
    """By how much the least of the last third of the steps exceeds the most of the first third."""
    third = len(values) // 3
    return max(0, min(values[-third:]) - max(values[:third]))


def _apart(steps: int) -> int:
    """How many steps lie between the first third and the last third."""
    return steps - 2 * (steps // 3) + 1


def _alive(strangers: frozenset[int]) -> _Alive:
    alive: _Alive = {}
    for array in jax.live_arrays():
        if id(array) not in strangers:
            kind = text_of_array(array)
            number, size = alive.get(kind, (0, 0))
            alive[kind] = (number + 1, size + _device_bytes(array))
    return alive


def _device_bytes(array: jax.Array) -> int:
    """The bytes on this process's devices: those of a replicated array count on each."""
    shard = math.prod(array.sharding.shard_shape(array.shape))
    return shard * array.dtype.itemsize * len(array.sharding.addressable_devices)


def _grown(samples: list[_Alive], strangers: frozenset[int], call: Call) -> tuple[str, ...]:
    """The kinds of arrays that grew, with who holds one of them."""
    steps = len(samples)
    lines: list[tuple[float, str]] = []
    for kind, (number, size) in samples[-1].items():
        more, each = _growth([sample.get(kind, (0, 0))[0] for sample in samples]), size // number
        if more:
            rate = f"{more / _apart(steps):.3g} more a step ({each:,} bytes each)"
            lines.append((more * each, f"{kind}: {rate}{_held(kind, strangers, call)}"))
    if not lines:  # each step makes one array of a new shape
        known = {kind for sample in samples[: steps // 3] for kind in sample}
        for kind, (number, size) in samples[-1].items():
            if kind not in known:
                text = f"{kind}: it grows with the steps ({size // number:,} bytes now){_held(kind, strangers, call)}"
                lines.append((size, text))
    return tuple(line for _, line in sorted(lines, key=lambda entry: -entry[0])[:NAMED])


def _held(kind: str, strangers: frozenset[int], call: Call) -> str:
    arrays = [array for array in jax.live_arrays() if id(array) not in strangers and text_of_array(array) == kind]
    carried = {id(leaf): path for path, leaf in leaves_with_paths(call.args)}
    paths = [carried[id(array)] for array in arrays if id(array) in carried]
    free = [array for array in arrays if id(array) not in carried]
    if not free and paths:
        return f", carried as {paths[0]}"
    some = free[-NAMED:]
    ignored = {id(arrays), id(free), id(some)}
    phrases: dict[str, None] = {}
    for array in some:
        with contextlib.suppress(Exception):  # a holder whose attributes raise must not hide that something leaks
            phrases |= dict.fromkeys(holders_of(array, ignored))
    return f", held by {'; '.join(list(phrases)[:NAMED])}" if phrases else ""


def _peak(before: int | None, totals: Sequence[int]) -> tuple[int, str]:
    """The most memory in use, and where that is from."""
    after = _peak_of_device()
    if after is None or (before is not None and after <= before):
        return max(totals), "live arrays"
    return after, "device"


def _peak_of_device() -> int | None:
    """The most bytes that a device of this process has had in use; None if its backend does not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat), default=None)


def _resident_bytes() -> float:
    """The resident set of this process, NaN if the system does not tell.

    `getrusage` tells only its highest value on macOS, which never grows below an earlier peak.
    """
    try:
        with open("/proc/self/statm") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return math.nan


def _slope(values: Sequence[float]) -> tuple[float, Interval | None]:
    """The median of the slopes between all pairs of steps, and its interval (Sen 1968)."""
    if not np.isfinite(values).all():
        return math.nan, None
    fitted: Any = scipy.stats.theilslopes(values, alpha=CONFIDENCE)
    return float(fitted.slope), Interval(float(fitted.low_slope), float(fitted.high_slope))
