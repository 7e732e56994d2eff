"""One timed block of calls: the only place where a clock is read around the code under test.

Every timing instrument runs its calls through `run_block`, both sides of a comparison too: two closures around the
same code differ by a real 0.2 % (measured on a 2-core x86-64 machine, jax 0.10.2).
"""

import contextlib
import gc
from typing import NamedTuple

import jax

from perfsuite.measure import peers
from perfsuite.measure.call import Call, carried
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import Warm, warm
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing.clock import calls_per_block, now_ns
from perfsuite.measure.timing.readiness import SLOW_NS, waiting_for

_HARNESS_TRIES = 100


class Sample(NamedTuple):
    """Nanoseconds a call, the harness's own cost taken off."""

    to_return: float
    to_ready: float


class Subject:
    """A call made ready for timing: warm, with its way of waiting, its block size and the harness's own cost known.

    `calls` is the number of calls in a block. More than one is needed only where a single call is too short for the
    clock; its time to ready is then that of the whole block, shared out. `call_ns` is about what one call takes.
    """

    def __init__(self, call: Call):
        fn = call.fn.fn if isinstance(call.fn, Warm) else call.fn
        self.call = Call(fn, call.args, call.kwargs, call.carry)
        self.source = call
        try:
            warm(fn, over=[self.call])
            with compiles.forbid():  # a call that compiles when it is warm has no steady state
                self._calibrate()
        finally:
            self.give_back()

    def _calibrate(self) -> None:
        # How often `waiting_for` runs the call is decided by what it sees, which differs between processes.
        self.wait = waiting_for(self.call.run) if peers.alone() else jax.block_until_ready
        self.calls = 1
        self.harness = Sample(0.0, 0.0)
        # Twice, so that one stall of the machine does not make a short call pass for a slow one.
        self.call_ns = peers.agreed(min(run_block(self).to_ready for _ in range(2)))
        if self.call_ns < SLOW_NS:
            self.calls = peers.agreed(calls_per_block(min(run_block(self).to_return for _ in range(5))))
            self.harness = harness_cost(self)

    def give_back(self) -> None:
        """Leave the caller's `call` with the state that the last run carried, for the next instrument."""
        self.source.args = self.call.args


def subjects_alike(*calls: Call) -> list[Subject]:
    """Subjects to be held against each other: their blocks have the same number of calls, the most that one needs.

    Blocks of different sizes are different metrics where a call returns before the device is done, because a
    second call then queues behind the first: one and the same 0.5 ms program, 3 calls a block against 4, gave ratios of
    1.29 to return and 0.97 to ready (2-core x86-64 machine, jax 0.10.2).
    """
    subjects = [Subject(call) for call in calls]
    _wait_alike(subjects)
    # A call too short for a coarse clock takes none of its ticks.
    most = int(max(1, SLOW_NS // max(1, *(subject.call_ns for subject in subjects))))
    size = min(max(subject.calls for subject in subjects), most)
    for subject in subjects:
        if subject.calls != size:
            subject.calls = size
            try:
                subject.harness = harness_cost(subject)
            finally:
                subject.give_back()
    _share_harness_cost(subjects)
    return subjects


def _wait_alike(subjects: list[Subject]) -> None:
    """Where one side has to wait for all its outputs, every side that has outputs waits for all of its own.

    Whether waiting for one array is enough was measured for each side, and on a busy machine one and the same call was
    found to need all on one side only: of a 5 us call with itself that made ratios of 1.03 to 1.05 (2-core x86-64
    machine, jax 0.10.2).
    """
    if any(subject.wait is jax.block_until_ready for subject in subjects):
        for subject in subjects:
            if hasattr(subject.wait, "depth"):
                subject.wait = jax.block_until_ready
                if subject.call_ns < SLOW_NS:
                    try:
                        subject.harness = harness_cost(subject)
                    finally:
                        subject.give_back()


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
        costs = [subject.harness for subject in group]
        shared = Sample(min(cost.to_return for cost in costs), min(cost.to_ready for cost in costs))
        for subject in group:
            subject.harness = shared


def run_block(subject: Subject) -> Sample:
    """Time one block. What the arguments hold is freed after the clock was read, where the block is a single call.

    Raises `MeasurementError` for a clock that ran backwards meanwhile, or gave no number.
    """
    call, wait, calls = subject.call, subject.wait, subject.calls
    fn, args, kwargs, carry = call.fn, call.args, call.kwargs, call.carry
    label = call.label
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
        # Not before the clock was read: until then `call` keeps the donated arguments from being freed. But also where
        # a call in the middle of the block raised, because those before it may have donated what `call` has.
        call.args = args
    # The next block must start with an idle device.
    jax.block_until_ready(outputs)
    # Of the harness's own cost the least is taken, so that one jump backwards would be taken off every sample.
    if not start <= returned <= ready:
        raise MeasurementError(
            f"{label}: the clock ran backwards or gave no number ({start}, {returned}, {ready} ns at the start, at the "
            "return and when ready); the machine's clock is unsteady"
        )
    to_return = (returned - start) / calls - subject.harness.to_return
    waited = (ready - returned) / calls - subject.harness.to_ready
    return Sample(to_return, to_return + max(waited, 0.0))


def harness_cost(subject: Subject) -> Sample:
    """What a block costs, a call, when the function under test does nothing: the loop, the carrying and the waiting."""
    call = subject.call
    outputs = jax.block_until_ready(call.run())

    def nothing(*args, **kwargs):
        return outputs

    nothing.__name__ = call.label  # for messages
    idle = Subject.__new__(Subject)
    idle.call = Call(nothing, call.args, call.kwargs, call.carry)
    idle.wait = subject.wait
    idle.calls = subject.calls
    idle.harness = Sample(0.0, 0.0)
    samples = [run_block(idle) for _ in range(_HARNESS_TRIES)]
    # In `Subject.harness` the second metric is the cost of waiting alone.
    return Sample(min(s.to_return for s in samples), min(s.to_ready - s.to_return for s in samples))


@contextlib.contextmanager
def collector_off():
    """Keep the garbage collector out of the blocks: a collection over JAX's and Python's objects takes milliseconds."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
