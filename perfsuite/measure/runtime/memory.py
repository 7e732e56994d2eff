"""Arrays in memory: what a loop of steps leaks, with its line and its holder, and the state that a step keeps twice.

Arrays leak if their number or size grows for as long as the steps run. This growth is exact: the least of the last
third of the steps is compared with the most of the first third, so what only comes and goes, or fills up within the
first third, has none.

JAX deletes a donated array when the call returns, on CPU too (jax 0.10.2), and keeps it if the program has no output
that fits its memory. So an array that a step carries on and that is not deleted after the step either was not donated,
or was donated without use: it lives on beside the new one. A deleted one may be in memory twice all the same: XLA
cannot reuse memory that belongs to the host, and copies it. Addresses tell: the next state does not have the array's.
"""

import collections
import contextlib
import dataclasses
import gc
import math
import sys
import types
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call, leaves_with_paths, text_of_array
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.compiles import Compiles, open_context
from perfsuite.measure.compiles.settle import borrowed, collector_off, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.execution import telling_outputs
from perfsuite.measure.words import leaf_lines

STEPS = 30
FEWEST_STEPS = 9
WARM_STEPS = 3
NAMED = 5
"""How many kinds of leaked arrays are named, with as many lines that make them and as many holders."""
UNDONATED_NAMED = 12
"""How many arrays that were not donated a metric names, the largest first."""

LEAST_COPIED = 1 << 20
"""Bytes from which a copy of the first step counts. `jax.device_put` takes over the memory of a NumPy array whose
address is a multiple of 64, which a quarter of them have by chance (jax 0.10.2, CPU)."""

MOST_HOLDERS = 6
"""How many steps up a holder is followed, to a name that somebody can look up."""

SUFFIXES = (" programs", " leaked arrays", " leaked bytes", " cyclic bytes", " live bytes")
OF_DONATION = (" undonated arrays", " undonated bytes")

_COPIED = (
    "donated, and the first step copies it, because its memory belongs to the host: jax.device_put did not copy it; "
    "make it with jnp.array(x)"
)

_COMPILE_ONCE = "pad what it gets to a few shapes, or make the jitted function once, outside the step"

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)

_Alive = dict[str, tuple[int, int]]
"""For each kind of array, such as "float32[8]", how many are alive, and their device bytes."""

_Outputs = list[tuple[weakref.ref[jax.Array], str]]
"""The arrays that programs put out, each with the line that ran its program."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What `steps` steps of a call did to memory, after three warm steps.

    `live_bytes` are the device bytes of the call's arguments and of what its steps left alive. `leaked_arrays` and
    `leaked_bytes` are the live arrays and device bytes that a step adds, `cyclic_bytes` those that it leaves in cycles,
    and `programs` what it compiles. `grown` names what grew, the lines that make it and who holds it.
    """

    label: str
    steps: int
    live_bytes: int
    leaked_arrays: float
    leaked_bytes: float
    cyclic_bytes: int
    programs: int
    grown: tuple[str, ...]

    def metrics(self, name: str) -> list[Metric]:
        """Leaks as a count and a size, rounded up, so that an array in ten steps is one; live bytes as a size."""
        return [
            Metric(f"{name} programs", self.programs, "programs a step", "count"),
            Metric(f"{name} leaked arrays", math.ceil(self.leaked_arrays), "arrays a step", "count"),
            Metric(f"{name} leaked bytes", math.ceil(self.leaked_bytes), "bytes a step", "size"),
            Metric(f"{name} cyclic bytes", self.cyclic_bytes, "bytes a step", "size"),
            Metric(f"{name} live bytes", self.live_bytes, "bytes", "size"),
        ]

    def in_words(self) -> str:
        """One line for each program that a step compiles, and for each kind of array that grew."""
        return "\n".join(self.grown)


def memory_of(call: Call, *, steps: int = STEPS) -> Memory:
    """Run a call for `steps` steps and look at the live arrays after each.

    The collector runs after each step and not within: what it frees was in cycles, what it leaves something holds.
    Moves a call that carries on. Raises `ValueError` for fewer than nine steps. What a step needs more than `steps / 3`
    steps to fill, such as a long bounded history, looks like a leak: use more steps.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < FEWEST_STEPS:
        raise ValueError(f"perf.memory({call.label}, steps={steps!r}): steps must be an int of {FEWEST_STEPS} or more")
    own = {id(leaf) for leaf in jax.tree.leaves((call.args, call.kwargs))}
    # Held, so that no new array gets the identity of one of them.
    others = [array for array in jax.live_arrays() if id(array) not in own]
    strangers = frozenset(map(id, others))
    samples: list[_Alive] = []
    cycles: list[collections.Counter[str]] = []
    compiled: list[Compiles] = []
    outputs: _Outputs = []
    last = steps // 3
    lines: list[str] = []
    waiting: list[str] = []

    def note(output: Any) -> None:
        line = callsite.location(sys._getframe(1))
        outputs.extend((weakref.ref(leaf), line) for leaf in jax.tree.leaves(output) if isinstance(leaf, jax.Array))

    with borrowed(call) as subject, telling_outputs(note), collector_off():
        for step in range(WARM_STEPS + steps):
            with open_context(Compiles()) as watch:
                jax.block_until_ready(subject.run())
            call.take_over(subject)  # or the state of the first step would live to the end
            before = _sizes(_alive(strangers))
            if step >= WARM_STEPS + steps - last:
                lines = [
                    f"{kind}: {size:,} bytes a step wait in a cycle for Python's collector"
                    f"{_origin(kind, strangers, subject, outputs)}"
                    for kind, size in max(cycles[-2:], key=collections.Counter.total).most_common(NAMED)
                ]
            gc.collect()
            if step >= WARM_STEPS:
                samples.append(_alive(strangers))
                cycles.append(before - _sizes(samples[-1]))
                compiled.append(watch)
                waiting = lines if cycles[-1] else waiting
    cyclic_bytes = _in_each([cycle.total() for cycle in cycles[-last:]])
    watched = [_programs(watch) for watch in compiled[-last:]]
    programs = _in_each([len(places) for places in watched])
    totals = [_sizes(sample).total() for sample in samples]
    leaked_arrays = _growth([sum(number for number, _ in sample.values()) for sample in samples])
    leaked_bytes = _growth(totals)
    places = dict.fromkeys(place for places in watched for place in places) if programs else ()
    grown = [f"{place} is compiled in each step, and JAX keeps the program: {_COMPILE_ONCE}" for place in places]
    if leaked_arrays or leaked_bytes:
        grown += _grown(samples, strangers, subject, outputs)
    if cyclic_bytes:
        grown += waiting
    leaks = leaked_arrays / _apart(steps), leaked_bytes / _apart(steps)
    return Memory(call.label, steps, totals[-1], *leaks, cyclic_bytes, programs, tuple(grown))


def _in_each(amounts: Sequence[int]) -> int:
    """The mean of some steps, rounded up; 0 where one step alone is unlike the others, as one that logs."""
    return math.ceil(sum(amounts) / len(amounts)) if sum(map(bool, amounts)) > 1 else 0


def _programs(watch: Compiles) -> list[str]:
    return [f"{event.function} at {event.location}" for event in watch.events if event.stage == "compile"]


def _sizes(alive: _Alive) -> collections.Counter[str]:
    return collections.Counter({kind: size for kind, (_, size) in alive.items()})


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


def _grown(samples: list[_Alive], strangers: frozenset[int], call: Call, outputs: _Outputs) -> tuple[str, ...]:
    """The kinds of arrays that grew, with the lines that make them and who holds them."""
    steps = len(samples)
    grown: list[tuple[float, str]] = []
    for kind, (number, size) in samples[-1].items():
        more, each = _growth([sample.get(kind, (0, 0))[0] for sample in samples]), size // number
        if more:
            rate = f"{more / _apart(steps):.3g} more a step ({each:,} bytes each)"
            grown.append((more * each, f"{kind}: {rate}{_origin(kind, strangers, call, outputs)}"))
    if not grown:  # each step makes one array of a new shape
        early = {kind for sample in samples[: steps // 3] for kind in sample}
        for kind, (number, size) in samples[-1].items():
            if kind not in early:
                now = f"it grows with the steps ({size // number:,} bytes now)"
                grown.append((size, f"{kind}: {now}{_origin(kind, strangers, call, outputs)}"))
    return tuple(line for _, line in sorted(grown, key=lambda entry: -entry[0])[:NAMED])


def _origin(kind: str, strangers: frozenset[int], call: Call, outputs: _Outputs) -> str:
    """The lines that make arrays of a kind, and what holds them."""
    arrays = [array for array in jax.live_arrays() if id(array) not in strangers and text_of_array(array) == kind]
    carried = {id(leaf): path for path, leaf in leaves_with_paths(call.args, call.kwargs)}
    free = [array for array in arrays if id(array) not in carried]
    some = (free or arrays)[-NAMED:]
    named = set(map(id, some))
    lines = dict.fromkeys(line for ref, line in outputs if id(ref()) in named)
    origin = f", made at {', '.join(lines)}" if lines else ""
    if not free:
        return f"{origin}, carried as {carried[id(arrays[0])]}" if arrays else origin
    ignored = {id(arrays), id(free), id(some)}
    holders: dict[str, None] = {}
    for array in some:
        with contextlib.suppress(Exception):  # a holder whose attributes raise must not hide that something leaks
            holders |= dict.fromkeys(holders_of(array, ignored))
    return f"{origin}, held by {'; '.join(list(holders)[:NAMED])}" if holders else origin


def holders_of(value: Any, ignored: Collection[int] = ()) -> list[str]:
    """What refers to `value`, and to that, up to a name: "a dict of length 2, a list of length 12, module global
    `train.history`".

    Frames, and objects whose `id` is in `ignored`, do not count. Each step up walks the heap once or twice, which takes
    up to a tenth of a second each time.
    """
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")}
    holders = _referrers(value, ignored)
    chains: dict[str, None] = {}
    for holder in holders:  # a comprehension would hold `value` in a closure
        chains[_chain(holder, value, modules, {*ignored, id(holders)})] = None
    return list(chains)


def _chain(holder: Any, value: Any, modules: dict[int, str], ignored: set[int]) -> str:
    """A holder of `value`, who holds that, and so on, until one has a name that somebody can look up."""
    phrases: list[str] = []
    while len(phrases) < MOST_HOLDERS:
        owner = _owner(holder, modules)
        phrases.append(_phrase(owner, value, modules))
        if id(owner) in modules or isinstance(owner, types.CellType | types.FunctionType):
            break
        ignored |= {id(holder), id(owner)}
        above = _referrers(owner, ignored)
        if not above:
            break
        ignored.add(id(above))
        # A global first, whatever else refers to it.
        value, holder = owner, min(above, key=lambda one: id(one) not in modules)
    return ", ".join(phrases)


def _owner(holder: Any, modules: dict[int, str]) -> Any:
    """The object or class whose attributes a dict has; `holder` itself where it is anything else."""
    if not isinstance(holder, dict) or id(holder) in modules:
        return holder
    for one in gc.get_referrers(holder):
        if getattr(one, "__dict__", None) is holder or (isinstance(one, type) and vars(one).keys() == holder.keys()):
            return one
    return holder


def _referrers(value: Any, ignored: Collection[int]) -> list[Any]:
    """What refers to a value; the collector no longer sees what `gc.freeze()` has frozen."""
    transient = types.FrameType, types.GeneratorType
    return [one for one in gc.get_referrers(value) if not isinstance(one, transient) and id(one) not in ignored]


def _phrase(holder: Any, value: Any, modules: dict[int, str]) -> str:
    """A holder of `value`, by a name that somebody can look up where it has one."""
    if isinstance(holder, types.CellType):
        return "a variable in a closure"
    if isinstance(holder, types.FunctionType):
        return f"function `{holder.__module__}.{holder.__qualname__}`"
    attributes = vars(holder) if hasattr(holder, "__dict__") else holder if id(holder) in modules else {}
    key = next((key for key, held in attributes.items() if held is value), None)
    if id(holder) in modules:
        return f"module global `{modules[id(holder)]}.{key}`"
    kind = f"class {holder.__qualname__}" if isinstance(holder, type) else type(holder).__qualname__
    if key is not None:
        return f"attribute `{key}` of {kind}"
    return f"a {kind} of length {len(holder)}" if isinstance(holder, _CONTAINERS) else f"an object of type {kind}"


@dataclasses.dataclass(frozen=True)
class UndonatedArray:
    """An array of the carried state that outlived the step: `path` is `args[0]['kernel']`, `what` "float32[64,64]"."""

    path: str
    what: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.about}"

    @property
    def about(self) -> str:
        """What it is and why it lives on."""
        return f"{self.what} ({self.bytes:,} bytes): {self.reason}"


@dataclasses.dataclass(frozen=True)
class StepDonation:
    """The donation of one step's state: how many arrays it `carried`; the `undonated` ones, the largest first.

    `copied` are arrays of the call's own state that the first step copies, and that later steps reuse.
    """

    label: str
    carried: int
    carried_bytes: int
    undonated: tuple[UndonatedArray, ...]
    copied: tuple[UndonatedArray, ...] = ()

    @property
    def undonated_bytes(self) -> int:
        """What the state needs beyond its own size while a step runs."""
        return sum(leaf.bytes for leaf in self.undonated)

    def metrics(self, name: str) -> list[Metric]:
        """The arrays that were not donated, and their bytes; those of copies are info, for an address decides."""
        parts = {leaf.path: leaf.bytes for leaf in self.undonated}
        return [
            Metric(f"{name} undonated arrays", len(self.undonated), "arrays", "count"),
            Metric(f"{name} undonated bytes", self.undonated_bytes, "bytes", "size", detail=parts or None),
            Metric(f"{name} copied bytes", sum(leaf.bytes for leaf in self.copied), "bytes", "info"),
        ]

    def in_words(self) -> str:
        """The largest arrays that are in memory twice, those that are alike in one line."""
        twice = (*self.undonated, *self.copied)
        lines = [f"{place} {about}" for place, about in leaf_lines((leaf.path, leaf.about) for leaf in twice)]
        more = [f"and {len(lines) - UNDONATED_NAMED} more"] if len(lines) > UNDONATED_NAMED else []
        return "\n".join(lines[:UNDONATED_NAMED] + more)


def donation_of(call: Call) -> StepDonation:
    """Run the first step of a call that carries and a warm one, and see which of the carried arrays live on.

    The first step may be unlike the others, for it gets the state as it was made or restored: the worse one counts. An
    array that the step returns unchanged, as the same object, needs no second copy and does not count as carried. Moves
    the call on. Raises `MeasurementError` for a call that carries no array, and what `warm` raises.
    """
    if not call.carry:
        raise MeasurementError(
            f"perf.donation: {call.label} carries nothing, so every argument is still needed after a step; "
            f"say how many outputs are the next arguments: call({call.label}, ..., carry=n)"
        )
    for path, leaf in call.state():
        if isinstance(leaf, np.ndarray):
            raise MeasurementError(
                f"perf.donation: {path} of {call.label} is a NumPy array, which JAX cannot donate: make the state with "
                "jax.device_put(state), or jnp.asarray"
            )
    states: list[_State] = []

    def note(subject: Call) -> None:
        if len(states) < 2:
            states.append(_State(subject))

    with borrowed(call) as subject:
        settle(subject, before=note)
        before = _State(subject)
        if not before.arrays:
            raise MeasurementError(f"perf.donation: the arguments of {call!r} that it carries hold no jax.Array")
        jax.block_until_ready(subject.run())
    first, warm = _step(*states), _step(before, _State(subject))
    worse = max(warm, first, key=lambda step: len(step.undonated))
    later = {leaf.path for leaf in warm.copied}
    copied = tuple(leaf for leaf in first.copied if leaf.path not in later)
    return dataclasses.replace(warm, undonated=worse.undonated, copied=copied)


class _State:
    """The arrays that a call carries into its next run, by path, with the addresses of their parts where known."""

    def __init__(self, call: Call):
        self.call = Call(call.fn, call.args, call.kwargs, call.carry)
        self.arrays = {path: leaf for path, leaf in call.state() if isinstance(leaf, jax.Array)}
        self.addresses: dict[str, frozenset[int]] = dict.fromkeys(self.arrays, frozenset())
        for path, leaf in self.arrays.items():
            with contextlib.suppress(Exception):  # a key has none, nor has an array of some devices
                self.addresses[path] = frozenset(part.data.unsafe_buffer_pointer() for part in leaf.addressable_shards)


def _step(before: _State, after: _State) -> StepDonation:
    """What one step keeps twice. An array counts as copied where the next state does not have its memory."""
    same = {id(leaf) for leaf in after.arrays.values()}
    carried = {path: leaf for path, leaf in before.arrays.items() if id(leaf) not in same}
    alive = {path: leaf for path, leaf in carried.items() if not leaf.is_deleted()}
    asked = _asked(before.call) if alive else {}
    none_deleted = len(alive) == len(carried)
    taken = frozenset().union(*after.addresses.values())
    undonated: list[UndonatedArray] = []
    copied: list[UndonatedArray] = []
    for path, leaf in sorted(carried.items(), key=lambda item: -item[1].nbytes):
        kind, size = text_of_array(leaf), leaf.nbytes
        if path in alive:
            reason = _reason(path, leaf, after.arrays.get(path), asked.get(path), none_deleted=none_deleted)
            undonated.append(UndonatedArray(path, kind, size, reason))
        elif size >= LEAST_COPIED and not before.addresses[path] <= taken:
            copied.append(UndonatedArray(path, kind, size, _COPIED))
    size = sum(leaf.nbytes for leaf in carried.values())
    return StepDonation(before.call.label, len(carried), size, tuple(undonated), tuple(copied))


def _asked(call: Call) -> dict[str, bool]:
    """Which arguments a call's function asks to be donated, by path; empty if it is none of jit's that says so."""
    try:
        # `trace` is answered from JAX's cache, `lower` would take the time of a lowering.
        infos, _ = call.fn.trace(*call.args, **call.kwargs).args_info  # type: ignore[attr-defined]
        leaves = leaves_with_paths(infos, is_leaf=lambda leaf: hasattr(leaf, "donated"))
        return {path: info.donated for path, info in leaves}
    except Exception:
        return {}


def _reason(path: str, leaf: jax.Array, successor: jax.Array | None, asked: bool | None, *, none_deleted: bool) -> str:
    if jax.config.values["jax_debug_nans"] or jax.config.values["jax_debug_infs"]:
        return "JAX donates nothing while it looks for NaN or infinity"
    if asked is False or (asked is None and none_deleted):
        kind, _, argument = path.partition("]")[0].partition("[")
        option = "donate_argnums" if kind == "args" else "donate_argnames"
        return f"not donated; jit the step with {option} for argument {argument}"
    if successor is None:
        change = "the step does not return it"
    elif text_of_array(successor) != text_of_array(leaf):
        change = f"the step returns {text_of_array(successor)} in its place"
    elif successor.sharding != leaf.sharding:
        change = "the step returns it with another sharding"
    else:
        change = "the program does not read it, or has no output of its shape and dtype left"
    unknown = "not donated by the jitted function that the call runs (give perf.donation that function), or not used"
    return f"{'donated but not used' if asked else unknown}, because {change}"
