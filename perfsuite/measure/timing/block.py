"""One timed block of calls: the only place where a clock is read around the code under test.

Every timing instrument runs its calls through `run_block`, both sides of a comparison too: two closures around the
same code differ by a real 0.2 % (measured on a 2-core x86-64 machine, jax 0.10.2).
"""

import contextlib
import copy
import gc
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import numpy as np

from perfsuite.measure import peers
from perfsuite.measure.call import Call, carried
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.settle import function_of, refuse_deleted, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.runtime.program_outputs import running_seen
from perfsuite.measure.timing.clock import calls_per_block, now_ns, tick_ns
from perfsuite.measure.timing.readiness import LEFT, SLOW_NS, goes_on_ns, waiting_for

Until = Literal["return", "ready"]
"""What is timed: until a call returns, or until its outputs are ready."""

COLUMNS: dict[Until, int] = {"return": 0, "ready": 1}
"""Of a `Sample`, and of the arrays that `columns_us` makes."""

_HARNESS_TRIES = 100
_SHORT_NS = 100_000
"""Of a call of 0.1 ms the harness is 1 %."""
_NOT_POSITIVE = 0.01
"""The share of samples that may be no longer than what the harness costs."""


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
        self.call = Call(function_of(call.fn), call.args, call.kwargs, call.carry)
        self.source = call
        try:
            settle(self.call)
            with compiles.steady_state():  # a call that compiles when it is warm has no steady state
                self._calibrate()
        finally:
            self.give_back()
        if single:  # calibrated all the same, which finds a clock that does not work
            self.calls, self.harness = 1, Sample(0.0, 0.0)

    def _calibrate(self) -> None:
        self.calls, self.harness = 1, Sample(0.0, 0.0)
        # How often `waiting_for` runs the call depends on what it sees, which differs between processes.
        self.wait = waiting_for(self.call.run, self.call.label) if peers.alone() else jax.block_until_ready
        self.leaves = False
        # Twice, so that one stall of the machine does not make a short call look slow.
        self.call_ns = peers.agreed(min(self._run_and_look() for _ in range(2)))
        if self.call_ns < SLOW_NS:
            self.calls = peers.agreed(calls_per_block(min(run_block(self).to_return for _ in range(5))))
            self.measure_harness()

    def _run_and_look(self) -> float:
        with running_seen() as running:
            to_ready = run_block(self).to_ready
        self.leaves = self.leaves or (peers.alone() and goes_on_ns(running) > LEFT * to_ready)
        return to_ready

    def drain(self) -> None:
        """Wait for the programs that earlier calls have left: those of one more call end after them, or about then."""
        if self.leaves:
            with running_seen() as running:
                run_block(self)
            running.wait()

    def measure_harness(self) -> None:
        """Measure what the harness costs with this block size and way of waiting."""
        try:
            self.harness = harness_cost(self)
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Leave the caller's `call` with the state that the last run carried, for the next instrument."""
        self.source.args = self.call.args


def subjects_alike(*calls: Call) -> list[Subject]:
    """Subjects to compare with each other: their blocks have the same number of calls, the most that one needs.

    Blocks of different sizes are different metrics where a call returns before the device is done, because a
    second call then queues behind the first: one and the same 0.5 ms program, 3 calls a block against 4, gave ratios of
    1.29 to return and 0.97 to ready (2-core x86-64 machine, jax 0.10.2).
    """
    subjects = [Subject(call) for call in calls]
    for subject in subjects:  # another one may have donated its arrays by now
        refuse_deleted(subject.call)
    _wait_alike(subjects)
    # A call too short for a coarse clock takes none of its ticks.
    most = int(max(1, SLOW_NS // max(1, *(subject.call_ns for subject in subjects))))
    size = min(max(subject.calls for subject in subjects), most)
    for subject in subjects:
        if subject.calls != size:
            subject.calls = size
            subject.measure_harness()
    _share_harness_cost(subjects)
    return subjects


def _wait_alike(subjects: list[Subject]) -> None:
    """Where one side has to wait for all its outputs, every side that has outputs waits for all of its own.

    Whether waiting for one array is enough is measured for each side, and on a busy machine one and the same call
    needed all on one side only: of a 5 us call with itself that made ratios of 1.03 to 1.05 (2-core x86-64 machine, jax
    0.10.2).
    """
    if any(subject.wait is jax.block_until_ready for subject in subjects):
        for subject in subjects:
            if hasattr(subject.wait, "depth"):
                subject.wait = jax.block_until_ready
                if subject.call_ns < SLOW_NS:
                    subject.measure_harness()


def _share_harness_cost(subjects: list[Subject]) -> None:
    """Take the same cost off subjects whose blocks make the harness do the same.

    Measured anew for each, it differs by 20 to 60 ns, and by 300 when the processor changes its clock meanwhile; of a
    7 us call with itself that made ratios of 0.93 to 1.02 (2-core x86-64 machine).
    """
    alike: dict[tuple, list[Subject]] = {}
    for subject in subjects:
        call = subject.call
        depth = getattr(subject.wait, "depth", subject)  # waiting for all costs what the structure makes it cost
        alike.setdefault((call.carry, len(call.args), len(call.kwargs), depth), []).append(subject)
    for group in alike.values():
        shared = Sample(*map(min, zip(*(subject.harness for subject in group), strict=True)))
        for subject in group:
            subject.harness = shared


def rounding_us(*subjects: Subject) -> float:
    """What the clock's tick can hide of one call, in microseconds: an interval of times is that wide to either side.

    Blocks of a steady call may all be rounded alike, so no number of them shows more.
    """
    return max(tick_ns() / subject.calls for subject in subjects) / 1e3


def run_block(subject: Subject) -> Sample:
    """Time one block. What the arguments hold is freed after the clock was read, where the block is a single call.

    What earlier blocks left in reference cycles is freed before it, about as often as Python would do it.

    Raises `MeasurementError` for a clock that runs backwards meanwhile, or gives no number.
    """
    call, wait, calls = subject.call, subject.wait, subject.calls
    fn, args, kwargs, carry = call.fn, call.args, call.kwargs, call.carry
    label = call.label
    free_young_cycles()
    try:
        if carry:
            start = now_ns()
            for _ in range(calls):
                outputs = fn(*args, **kwargs)
                args = carried(outputs, args, carry, label)
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
        call.args = args
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


QUICKEST = 0.05
"""The share of the blocks that are called the quickest."""


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

    Gives the subjects back, whatever happens.
    """
    try:
        with collector_off(), untraced(), compiles.steady_state():
            yield
    finally:
        for subject in subjects:
            subject.give_back()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Keep what traces this thread's Python out of the blocks, such as coverage and debuggers.

    A loop of 3000 additions took 75 us, and 480 us under coverage 7.17 (`pytest --perf --cov`, Python 3.11).
    """
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        _traced_again()


def _traced_again() -> None:
    """The call from which a tracer in C, as coverage's is, traces again: it comes back by the first call."""


def free_young_cycles() -> None:
    """Collect the youngest objects where there are so many that Python would, with its collector on.

    With the collector off, what a call leaves in cycles would stay: of 200 kB a call that was 1.6 GB in 2 s.
    """
    threshold = gc.get_threshold()[0]
    if 0 < threshold < gc.get_count()[0]:
        gc.collect(0)


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector out of the blocks: a collection over JAX's and Python's objects takes milliseconds."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
