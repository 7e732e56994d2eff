"""One timed block of calls: the only place where a clock is read around the code under test.

Every timing instrument runs its calls through `run_block`, both sides of a comparison too: two closures around the
same code differ by a real 0.2 % (measured on a 2-core x86-64 machine, jax 0.10.2).

**The clock.** A block lasts for many ticks and readings of the clock, so a short call runs several times in it.

**Waiting.** `jax.block_until_ready(outputs)` first flattens `outputs`, and for an Equinox module that is Python code:
0.35 ms for the 600 arrays of a BERT-base train state, as much as the step's own host work. So the timed part waits for
one array of each program, which it reaches by attribute and index, and the rest is waited for outside the timed part.

**The harness.** What the loop, the carrying and the waiting cost is measured, and comes off each sample.
"""

import contextlib
import copy
import dataclasses
import functools
import gc
import operator
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from perfsuite.measure import peers
from perfsuite.measure.call import Call, carried
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.settle import collector_off, refuse_deleted, settle, unwrapped
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import PROGRAM_RUNS
from perfsuite.measure.timing.outputs import Running, outputs_seen, running_seen

now_ns = time.perf_counter_ns
"""The clock: monotonic, in nanoseconds. On Linux it reads CLOCK_MONOTONIC without a system call."""

Until = Literal["return", "ready"]
"""What is timed: until a call returns, or until its outputs are ready."""

COLUMNS: dict[Until, int] = {"return": 0, "ready": 1}
"""Of a `Sample`, and of the arrays that `columns_us` makes."""

QUICKEST = 0.05
"""The share of the blocks that are called the quickest."""

READINGS_PER_BLOCK = 100
"""A block lasts at least this many readings of the clock, because a reading does not always take the same time."""

TICKS_PER_BLOCK = 500
"""A block lasts at least this many ticks of the clock. One tick then hides 0.2 % of it, a fifth of the closest limit
that makes sense, 1 %.

Neither is more, because a block of several calls is another thing than one call where a call returns before the device
is done: the second queues behind the first. With a tick of 10 ns and readings that take 60 (a virtual x86-64 machine)
the readings decide, and a block lasts 6 us. With a tick of 100 ns (Windows) the ticks do, and a block lasts 50 us.
"""

MOST_CALLS_PER_BLOCK = 10_000

_READINGS = 100_000
"""They take a few milliseconds. A clock with a longer tick cannot time anything here."""

_HARNESS_TRIES = 100
_SHORT_NS = 100_000
"""Of a call of 0.1 ms the harness is 1 %."""
_NOT_POSITIVE = 0.01
"""The share of samples that may be no longer than what the harness costs."""

_TRIES = 10
_SLOW_TRIES = 3
LEFT = 0.1
"""The share of its time that a call may leave to its programs when it has returned, and nothing can wait for them."""
SLOW_NS = 50_000_000
"""From here on (50 ms a call) the host's own work is under 1 %, and measuring it would take seconds."""

_MOST_WAITED_FOR = 8
"""Arrays that the timed part waits for, each of another program, where one is not enough."""


class Sample(NamedTuple):
    """Nanoseconds a call, without the harness's own cost."""

    to_return: float
    to_ready: float


class Subject:
    """A call made ready for timing: warm, with its way of waiting, its block size and the harness's own cost known.

    `calls` is the number of calls in a block: more than one only where a single call is too short for the clock. The
    time to ready is then the block's, shared out. `call_ns` is about what one call takes. A `single` subject has one
    call a block, however short, because a second one would queue behind it, and keeps the harness's cost. `leaves`
    says that programs of a call go on when its outputs are ready.
    """

    def __init__(self, call: Call, *, single: bool = False):
        self.call = Call(unwrapped(call.fn), call.args, call.kwargs, call.carry)
        self.source = call
        self.calls, self.harness, self.leaves = 1, Sample(0.0, 0.0), False
        try:
            settle(self.call)
            with compiles.steady_state():  # a call that compiles when it is warm has no steady state
                # How often `waiting_for` runs the call depends on what it sees, which differs between processes.
                self.wait = waiting_for(self.call.run, self.call.label) if peers.alone() else jax.block_until_ready
                # Twice, so that one stall of the machine does not make a short call look slow.
                self.call_ns = peers.agreed(min(self._time_once() for _ in range(2)))
                if self.call_ns < SLOW_NS:
                    self.calls = peers.agreed(calls_per_block(min(run_block(self).to_return for _ in range(5))))
                    self.harness = harness_cost(self)
        finally:
            self.give_back()
        if single:  # calibrated all the same, which finds a clock that does not work
            self.calls, self.harness = 1, Sample(0.0, 0.0)

    def _time_once(self) -> float:
        """The time to ready of a block, after which programs may go on: `leaves`."""
        with running_seen() as running:
            to_ready = run_block(self).to_ready
        self.leaves = self.leaves or (peers.alone() and _remaining_ns(running) > LEFT * to_ready)
        return to_ready

    def drain(self) -> None:
        """Wait for the programs that earlier calls have left: those of one more call end after them, or about then."""
        if self.leaves:
            with running_seen() as running:
                run_block(self)
            running.wait()

    def give_back(self) -> None:
        """Leave the caller's `call` with the state that the last run carried, for the next instrument."""
        self.source.take_over(self.call)


def subjects_alike(*calls: Call) -> list[Subject]:
    """Subjects to compare with each other: their blocks have the same number of calls, the most that one needs.

    Blocks of different sizes are different metrics where a call returns before the device is done, because a
    second call then queues behind the first: one and the same 0.5 ms program, 3 calls a block against 4, gave ratios of
    1.29 to return and 0.97 to ready (2-core x86-64 machine, jax 0.10.2).

    Where one side has to wait for all its outputs, every side that has outputs does. Whether one array is enough is
    measured for each side, and on a busy machine one and the same call needed all on one side only: of a 5 us call with
    itself that made ratios of 1.03 to 1.05.
    """
    subjects = [Subject(call) for call in calls]
    for subject in subjects:  # another one may have donated its arrays by now
        refuse_deleted(subject.call)
    # A call too short for a coarse clock takes none of its ticks.
    most = int(max(1, SLOW_NS // max(1, *(subject.call_ns for subject in subjects))))
    size = min(max(subject.calls for subject in subjects), most)
    for_all = any(subject.wait is jax.block_until_ready for subject in subjects)
    try:
        for subject in subjects:
            has_outputs = isinstance(subject.wait, _WaitForSome) and subject.wait.paths
            wait = jax.block_until_ready if for_all and has_outputs else subject.wait
            if (size, wait) != (subject.calls, subject.wait):
                subject.calls, subject.wait = size, wait
                if subject.call_ns < SLOW_NS:
                    subject.harness = harness_cost(subject)
    finally:
        for subject in subjects:
            subject.give_back()
    _share_harness_cost(subjects)
    return subjects


def _share_harness_cost(subjects: list[Subject]) -> None:
    """Take the same cost off subjects whose blocks make the harness do the same.

    Measured anew for each, it differs by 20 to 60 ns, and by 300 when the processor changes its clock meanwhile; of a
    7 us call with itself that made ratios of 0.93 to 1.02 (2-core x86-64 machine).
    """
    alike: dict[tuple, list[Subject]] = {}
    for subject in subjects:
        call = subject.call
        steps: Any = subject  # to wait for all outputs costs what their structure makes it cost
        if isinstance(subject.wait, _WaitForSome):
            steps = tuple(map(len, subject.wait.paths))
        alike.setdefault((str(call.carry), len(call.args), len(call.kwargs), steps), []).append(subject)
    for group in alike.values():
        shared = Sample(*map(min, zip(*(subject.harness for subject in group), strict=True)))
        for subject in group:
            subject.harness = shared


def rounding_us(*subjects: Subject) -> float:
    """What the clock's tick can hide of one call, in microseconds: an interval of times is that wide to either side.

    Blocks of a steady call may all be rounded alike, so no number of them shows more.
    """
    return max(clock().tick_ns / subject.calls for subject in subjects) / 1e3


def run_block(subject: Subject) -> Sample:
    """Time one block. What the arguments hold is freed after the clock was read, where the block is a single call.

    What earlier blocks left in reference cycles is freed before it, about as often as Python would do it.

    Raises `MeasurementError` for a clock that runs backwards meanwhile, or gives no number.
    """
    call, wait, calls = subject.call, subject.wait, subject.calls
    fn, args, kwargs, carry = call.fn, call.args, call.kwargs, call.carry
    label = call.label
    threshold = gc.get_threshold()[0]
    if 0 < threshold < gc.get_count()[0]:  # Python's collector is off: of 200 kB a call, 1.6 GB were left after 2 s
        gc.collect(0)
    try:
        if carry:
            start = now_ns()
            for _ in range(calls):
                outputs = fn(*args, **kwargs)
                args, kwargs = carried(outputs, args, kwargs, carry, label)
            returned = now_ns()
        else:
            start = now_ns()
            for _ in range(calls):
                outputs = fn(*args, **kwargs)
            returned = now_ns()
        wait(outputs)
        ready = now_ns()
    finally:
        # Only after the clock was read: until then `call` keeps the donated arguments from being freed. But also where
        # a call in the middle of the block raises, because those before it may have donated what `call` has.
        call.args, call.kwargs = args, kwargs
    # The next block must start with an idle device.
    jax.block_until_ready(outputs)
    # A short jump backwards would look like a fast call.
    if not start <= returned <= ready:
        raise MeasurementError(
            f"{label}: the clock ran backwards or gave no number ({start}, {returned}, {ready} ns at the start, at the "
            "return and when ready); the machine's clock is unsteady"
        )
    to_return = (returned - start) / calls - subject.harness.to_return
    waited = (ready - returned) / calls - subject.harness.to_ready
    return Sample(to_return, to_return + max(waited, 0.0))


def harness_cost(subject: Subject) -> Sample:
    """What a block costs, a call, when the function under test does nothing: the loop and the carrying, the waiting.

    The idle block follows a real call, as the harness's part of a real block does: with the processor's caches and
    predictors full of other things the harness costs a fifth more. Not so with a long call, of which the harness is
    nothing. After 5 ms of matrix products everything is cold, and an idle block costs 40 us in place of 2; but a real
    one shares most of that with the call itself, and waits while the device works (2-core x86-64 machine).

    The median of many tries, because it comes off samples whose median counts.
    """
    call = subject.call
    after_a_call = subject.call_ns <= _SHORT_NS
    outputs = jax.block_until_ready(call.run())

    def nothing(*args, **kwargs):
        return outputs

    nothing.__name__ = call.label  # for messages
    idle = copy.copy(subject)
    idle.harness = Sample(0.0, 0.0)
    samples = []
    for _ in range(_HARNESS_TRIES):
        if after_a_call:
            outputs = jax.block_until_ready(call.run())
        idle.call = Call(nothing, call.args, call.kwargs, call.carry)
        samples.append(run_block(idle))
    to_return, to_ready = np.asarray(samples).T
    return Sample(float(np.median(to_return)), float(np.median(to_ready - to_return)))


def columns_us(samples: list[Sample], label: str) -> np.ndarray:
    """The samples in microseconds, shape (samples, 2), the columns to return and to ready.

    What the harness costs varies, so a few samples of a short call may be no more than it. They count as the shortest
    that is more: medians and ranks are the same. Raises `MeasurementError` where so many are not positive that it is no
    such matter: a clock that stands still or runs backwards is no clock.
    """
    columns = np.asarray(samples, dtype=np.float64) / 1e3
    positive = columns > 0
    if not np.isfinite(columns).all() or (~positive).mean(0).max() > _NOT_POSITIVE:
        raise MeasurementError(
            f"{label}: the clock gave times that are not positive (least: {columns.min():.3g} us); the call does "
            "nothing, or too little to be told from what timing it costs, or the machine's clock is unsteady"
        )
    return np.maximum(columns, np.where(positive, columns, np.inf).min(0))


def quickest_us(times_us: np.ndarray) -> np.ndarray:
    """What the quickest of the blocks took, of shape (blocks, ...): without the first axis.

    Other processes slow some blocks, and code slows most. Beside a busy process on each core the median ratio of a sum
    on all cores to a chain of products on one rose from 1.1 to 3.3, and in one session to 19.8; that of the quickest
    twentieth from 1.05 to 1.8 (2-core x86-64 machine).
    """
    return np.quantile(times_us, QUICKEST, axis=0)


@contextlib.contextmanager
def steady(*subjects: Subject) -> Iterator[None]:
    """Sample inside: no collections, nothing traces Python, and a compile raises.

    A collection over JAX's and Python's objects takes milliseconds. What traces this thread's Python, such as coverage
    and debuggers, made 480 us of a loop of 3000 additions that took 75 (coverage 7.17, Python 3.11). Gives the subjects
    back, whatever happens.
    """
    tracer = sys.gettrace()
    gc.collect()
    sys.settrace(None)
    try:
        with collector_off(), compiles.steady_state():
            yield
    finally:
        sys.settrace(tracer)
        (lambda: None)()  # by the first call a tracer in C, as coverage's is, comes back
        for subject in subjects:
            subject.give_back()


class Clock(NamedTuple):
    """What the machine's clock resolves, in nanoseconds.

    `tick_ns` is at least 1. Every reading is a multiple of it, so a time may be off by one tick. `step_ns` is the
    smallest step that two readings in a row show: what a reading costs, or the tick where that is longer.
    """

    tick_ns: int
    step_ns: int


@functools.cache
def clock() -> Clock:
    """Read the clock again and again, for a few milliseconds.

    The tick is the smallest distance between the steps that occur. A tick of 41.67 ns shows steps of 41, 42, 83, 84 and
    so on in whole nanoseconds, so a step that is 1 ns above another one is no other step, unless a third one follows.

    Raises `MeasurementError` where the clock stands still, or runs backwards.
    """
    readings = [now_ns() for _ in range(_READINGS)]
    with np.errstate(invalid="ignore"):  # what is no number is an error below
        steps = np.unique(np.diff(np.asarray(readings)))
    if not (steps >= 0).all() or not steps.any():
        how = "stands still" if not steps.any() else "runs backwards or gives no number"
        raise MeasurementError(
            f"the machine's clock {how} (the first and the last of {_READINGS} readings: {readings[0]}, "
            f"{readings[-1]} ns), so nothing can be timed"
        )
    steps = np.append(0, steps[steps > 0])
    above = np.diff(steps) == 1
    others = steps[np.append(True, ~above)]
    tick = 1
    if len(others) > 1 and not (above[1:] & above[:-1]).any():
        tick = int(np.diff(others).min())
    return Clock(tick, int(steps[1]))


def calls_per_block(call_ns: float) -> int:
    """How many calls of `call_ns` nanoseconds one block needs."""
    least_ns = max(READINGS_PER_BLOCK * clock().step_ns, TICKS_PER_BLOCK * clock().tick_ns)
    return int(min(max(1, -(-least_ns / max(call_ns, 1.0) // 1)), MOST_CALLS_PER_BLOCK))


@dataclasses.dataclass(frozen=True)
class _WaitForSome:
    """Waits for the arrays at paths of attributes and indices; for all outputs of a run that has them elsewhere.

    There are no paths where no output is an array.
    """

    paths: list["_Steps"]

    def __call__(self, outputs: Any) -> None:
        try:
            for steps in self.paths:
                _at(steps, outputs).block_until_ready()
        except (AttributeError, KeyError, IndexError, TypeError):
            jax.block_until_ready(outputs)


def waiting_for(run: Callable[[], Any], label: str = "the call") -> Callable[[Any], None]:
    """Choose how to wait for the outputs of `run`, which this calls a few times and which must be warm.

    The function returned takes the outputs of one run, in the timed part. What it costs on outputs that are ready is
    the harness's own cost. It waits for one array of each program that the call runs: all that a program puts out is
    ready at once. Where this jax does not tell which programs run, it waits for all outputs.

    Raises `MeasurementError` where it returns no array, and its programs go on: nothing could wait for them; and
    `CapabilityLost` where it returns none, and nobody can tell.
    """
    if PROGRAM_RUNS.lost():
        if not _arrays_in(jax.block_until_ready(run())):  # its programs may go on, unseen
            PROGRAM_RUNS.check(f"timing {label}, which returns no array,")
        PROGRAM_RUNS.falls_back("times include waiting for every output of a call, and not for programs that it leaves")
        return jax.block_until_ready
    before = _arrays_in(jax.block_until_ready(run()))
    started = now_ns()
    with outputs_seen() as program_outputs:
        outputs = run()
    jax.block_until_ready(outputs)
    slow = now_ns() - started > SLOW_NS
    arrays, programs = _arrays_in(outputs), program_outputs.programs()
    passed_on = {id(array) for _, array in before}  # what the call was given is ready
    paths: dict[object, list[_Steps]] = {}
    for path, array in arrays:
        if id(array) not in passed_on:
            paths_of_program = paths.setdefault(programs.get(id(array), f"of no program: {id(array)}"), [])
            if (steps := _steps_to(array, path, outputs)) is not None:
                paths_of_program.append(steps)
    if not paths:
        _refuse_left_running(run, label)
        return _WaitForSome([])
    alike = [path for path, _ in before] == [path for path, _ in arrays]
    if slow or not alike or not all(paths.values()) or len(paths) > _MOST_WAITED_FOR:
        return jax.block_until_ready
    return _WaitForSome([paths_of_program[-1] for paths_of_program in paths.values()])


def _arrays_in(outputs: Any) -> list[tuple[tuple[Any, ...], jax.Array]]:
    """The arrays with their paths. Of outputs that the next run changes they are those of now."""
    leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, jax.Array)]


def _refuse_left_running(run: Callable[[], Any], label: str) -> None:
    """Raise `MeasurementError` where programs of `run` go on, for a good part of what it takes, when it has returned.

    The median of a few tries: of a program whose result `float` has read one in three still seemed to run for a moment
    (2-core x86-64 machine). Programs of other threads, which may not be the call's, have to be seen in every try.
    """
    shares: list[float] = []
    always_elsewhere = True
    while len(shares) < _TRIES:
        started = now_ns()
        with running_seen() as running:
            run()
        always_elsewhere = always_elsewhere and running.elsewhere()
        remaining = _remaining_ns(running)
        took = max(1, now_ns() - started)
        shares.append(remaining / took)
        left = always_elsewhere or statistics.median(shares) > LEFT
        if took > SLOW_NS and (not left or len(shares) == _SLOW_TRIES):
            break
    if left:
        raise MeasurementError(
            f"{label} returns no array of its own, and its programs go on when it has returned. Nothing can wait for "
            "them, so its times say nothing: return an array of it, such as its loss or its new state"
        )


def _remaining_ns(running: Running) -> int:
    """For how long programs that this thread ran go on from now, which this waits for; 0 where none does."""
    if not running.here():
        return 0
    began = now_ns()
    running.wait()
    return now_ns() - began


_Steps = list[tuple[Callable[[Any, Any], Any], Any]]


def _at(steps: _Steps, outputs: Any) -> jax.Array:
    for step, key in steps:
        outputs = step(outputs, key)
    return outputs


def _steps_to(array: jax.Array, path: tuple[Any, ...], outputs: Any) -> _Steps | None:
    """The attributes and indices that reach an array; None for that of a custom node whose keys do not, or warn."""
    steps: _Steps = []
    for key in path:
        match key:
            case jax.tree_util.GetAttrKey(name=name):
                steps.append((getattr, name))
            case jax.tree_util.SequenceKey(idx=index) | jax.tree_util.DictKey(key=index):
                steps.append((operator.getitem, index))
            case _:
                return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would come again with every block: `nnx.State` warns so
            return steps if _at(steps, outputs) is array else None
    except Exception:  # whatever a property of a custom node raises, or warns of
        return None
