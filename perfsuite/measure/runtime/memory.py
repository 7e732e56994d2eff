"""Memory over a loop of steps: what is alive, what leaks, and how the process grows.

An array leaks where nothing frees it: the steps add to it for as long as they run. Slopes of live arrays are exact:
the least of the last third of the steps is held against the most of the first third, so that what only comes and goes,
or fills up within the first third, has none. The process's growth is read off its resident set, which has noise, so it
comes with an interval.
"""

import contextlib
import dataclasses
import gc
import math
import os
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import scipy.stats

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.warmup import borrowed
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.measure.runtime.referrers import holders_of

STEPS = 30
FEWEST_STEPS = 9
WARM_STEPS = 3
CONFIDENCE = 0.99
NAMED = 5
"""How many kinds of leaked arrays are named."""

SUFFIXES = (" leaked arrays", " leaked bytes", " live bytes", " peak device bytes", " host growth")


@dataclasses.dataclass(frozen=True)
class Memory:
    """What `steps` steps of a call did to memory, after three steps to warm.

    `live_bytes` are the device bytes of the call's arguments and of what its steps left alive. `peak_bytes` is the most
    that a device had in use where its `memory_stats()` say so (`peak_source` is "device", and what else the process has
    is in it), and the most that was alive between two steps otherwise ("live arrays").

    `leaked_arrays` and `leaked_bytes` are how many live arrays and device bytes a step adds. `grown` names the kinds of
    arrays that did, largest first, with who holds them. `host_growth_bytes` is the growth of the resident set a step,
    the median of the slopes between all pairs of steps, and `host_growth` its 99 % interval (Sen 1968, Estimates of the
    regression coefficient based on Kendall's tau). The arrays of a CPU are in it too. NaN where the system does not
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
        made = [
            Metric(f"{name} leaked arrays", math.ceil(self.leaked_arrays), "arrays a step", "count"),
            Metric(f"{name} leaked bytes", math.ceil(self.leaked_bytes), "bytes a step", "size"),
            Metric(f"{name} live bytes", self.live_bytes, "bytes", "size"),
            Metric(f"{name} peak device bytes", self.peak_bytes, "bytes", "info"),
        ]
        if self.host_growth is not None:
            growth, interval = self.host_growth_bytes, self.host_growth
            made.append(Metric(f"{name} host growth", growth, "bytes a step", "info", "lower", interval, self.steps))
        return made

    def in_words(self) -> str:
        """One line for each kind of array that grew."""
        return "\n".join(self.grown)


def memory_of(call: Call, *, steps: int = STEPS) -> Memory:
    """Run a call for `steps` steps and look at the live arrays and the resident set after each.

    The collector runs after each step, so that only what is held counts. Steps may compile. Moves a call that carries
    on. Raises `ValueError` for fewer than nine steps. What a step needs more than `steps / 3` steps to fill, such as a
    long bounded history, looks like a leak: allow more steps.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < FEWEST_STEPS:
        raise ValueError(f"perf.memory({call.label}, steps={steps!r}): steps must be an int of {FEWEST_STEPS} or more")
    own = {id(leaf) for leaf in jax.tree.leaves((call.args, call.kwargs))}
    # Held, so that no new array gets the identity of one of them.
    others = [array for array in jax.live_arrays() if id(array) not in own]
    strangers = frozenset(map(id, others))
    peak_before = _peak_of_device()
    samples: list[dict[str, tuple[int, int]]] = []
    resident: list[float] = []
    with borrowed(call) as subject:
        for step in range(WARM_STEPS + steps):
            jax.block_until_ready(subject.run())
            call.args = subject.args  # or the state of the first step would live to the end
            gc.collect()
            if step >= WARM_STEPS:
                samples.append(_alive(strangers))
                resident.append(_resident_bytes())
    third = steps // 3
    first, last = samples[:third], samples[-third:]
    apart = steps - 2 * third + 1
    counts, sizes = (
        [[sum(kind[i] for kind in sample.values()) for sample in part] for part in (first, last)] for i in (0, 1)
    )
    leaked_arrays = max(0, min(counts[1]) - max(counts[0])) / apart
    leaked_bytes = max(0, min(sizes[1]) - max(sizes[0])) / apart
    grown = _grown(first, last, apart, strangers, subject) if leaked_arrays or leaked_bytes else ()
    peak_now = _peak_of_device()
    of_device = peak_now is not None and (peak_before is None or peak_now > peak_before)
    totals = [sum(size for _, size in sample.values()) for sample in samples]
    growth, interval = _slope(resident)
    return Memory(
        call.label,
        steps,
        totals[-1],
        peak_now if of_device and peak_now is not None else max(totals),
        "device" if of_device else "live arrays",
        leaked_arrays,
        leaked_bytes,
        grown,
        growth,
        interval,
    )


def _alive(strangers: frozenset[int]) -> dict[str, tuple[int, int]]:
    """How many arrays of each kind are alive, and their device bytes."""
    found: dict[str, tuple[int, int]] = {}
    for array in jax.live_arrays():
        if id(array) not in strangers:
            number, size = found.get(text_of_array(array), (0, 0))
            found[text_of_array(array)] = (number + 1, size + _device_bytes(array))
    return found


def _device_bytes(array: jax.Array) -> int:
    """The bytes on this process's devices: those of a replicated array count on each."""
    shard = math.prod(array.sharding.shard_shape(array.shape))
    return shard * array.dtype.itemsize * len(array.sharding.addressable_devices)


def _grown(
    first: list[dict[str, tuple[int, int]]],
    last: list[dict[str, tuple[int, int]]],
    apart: int,
    strangers: frozenset[int],
    call: Call,
) -> tuple[str, ...]:
    """The kinds of arrays that grew, with who holds one of them."""
    none = (0, 0)
    kinds = {kind for sample in last for kind in sample}
    lines: list[tuple[float, str]] = []
    for kind in kinds:
        more = min(sample.get(kind, none)[0] for sample in last) - max(sample.get(kind, none)[0] for sample in first)
        if more > 0:
            size = last[-1][kind][1] // last[-1][kind][0]
            held = _held(kind, strangers, call)
            lines.append((more * size, f"{kind}: {more / apart:.3g} more a step ({size:,} bytes each){held}"))
    if not lines:  # one array of a new shape in each step
        for kind in last[-1].keys() - {kind for sample in first for kind in sample}:
            number, size = last[-1][kind]
            lines.append(
                (size, f"{kind}: it grows with the steps ({size // number:,} bytes now){_held(kind, strangers, call)}")
            )
    return tuple(line for _, line in sorted(lines, key=lambda entry: -entry[0])[:NAMED])


def _held(kind: str, strangers: frozenset[int], call: Call) -> str:
    arrays = [array for array in jax.live_arrays() if id(array) not in strangers and text_of_array(array) == kind]
    carried = _paths(call)
    inputs = {id(array): carried[id(array)] for array in arrays if id(array) in carried}
    free = [array for array in arrays if id(array) not in inputs]
    if not free and inputs:
        return f", carried as {next(iter(inputs.values()))}"
    some = free[-NAMED:]
    ignored = {id(arrays), id(free), id(some)}
    phrases: dict[str, None] = {}
    for array in some:
        with contextlib.suppress(Exception):  # a holder whose attributes raise must not hide that something leaks
            phrases |= dict.fromkeys(holders_of(array, ignored))
    return f", held by {'; '.join(list(phrases)[:NAMED])}" if phrases else ""


def _paths(call: Call) -> dict[int, str]:
    leaves = jax.tree_util.tree_flatten_with_path(call.args)[0]
    return {id(leaf): f"args{jax.tree_util.keystr(path)}" for path, leaf in leaves}


def _peak_of_device() -> int | None:
    """The most bytes that a device of this process has had in use; None where its backend does not say."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    return max(peaks) if peaks else None


def _resident_bytes() -> float:
    """The resident set of this process, NaN where the system does not tell it.

    Its highest, which `getrusage` tells on macOS too, would not do: below an earlier peak it never grows.
    """
    try:
        with open("/proc/self/statm") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return math.nan


def _slope(values: Iterable[float]) -> tuple[float, Interval | None]:
    """The median of the slopes between all pairs, a step, and its interval (Sen 1968)."""
    found = np.asarray(list(values))
    if not np.isfinite(found).all():
        return math.nan, None
    fitted: Any = scipy.stats.theilslopes(found, alpha=CONFIDENCE)
    return float(fitted.slope), Interval(float(fitted.low_slope), float(fitted.high_slope))
