"""`first_call`: what a function costs before it first runs, in counts.

The function is traced and lowered twice, each time as if JAX had never seen it: inside a context of its own
(`jax.make_user_context`), which is part of the key of JAX's caches. So nothing has to be cleared, and what the test has
compiled stays compiled. The first time gives the seconds, imports what is imported late, and fills the caches that do
not have the context in their key, such as those of a user's own functions. The second time is counted.
"""

import contextlib
import dataclasses
import gc
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax

from perfsuite.measure import progress
from perfsuite.measure.call import Call
from perfsuite.measure.compiles.compiles import telling_nobody
from perfsuite.measure.compiles.settle import borrowed, refuse_deleted
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.equations import Constant, Equations, Jaxprs
from perfsuite.measure.first_call.users_code import UserLine
from perfsuite.measure.first_call.watch import CallWatch
from perfsuite.measure.private.compile_events import make_context, stage_of
from perfsuite.measure.private.jax_stack import behind_bound

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class FirstCall:
    """What it takes to trace and lower the programs of one call.

    `trace_calls` and `lowering_calls` are the Python and C calls that JAX and the user's code make while JAX traces and
    while it lowers, the same to 1 % (see `metrics.COUNTED`). `traces` are the functions that JAX traces, those inside
    others among them, `equations` those of the jaxprs of all programs, those inside others among them.
    `stablehlo_bytes` is the size of what the compiler gets, without the constants, which are in `constants`, the
    largest first.

    `calls_by_line` has the calls while tracing by the user's line that makes them, `equations_by_line` the equations by
    the user's line and by primitive, `traces_by_function` the traces by name, file and line of the function.
    `trace_seconds` and `lowering_seconds` are those of the run that was not counted; `compile_seconds` is None where
    nothing was compiled.
    """

    label: str
    trace_calls: int
    lowering_calls: int
    traces: int
    equations: int
    stablehlo_bytes: int
    constants: tuple[Constant, ...]
    calls_by_line: Counter[UserLine | None]
    equations_by_line: Equations
    traces_by_function: Counter[tuple[str, str, int]]
    programs: int
    trace_seconds: float
    lowering_seconds: float
    compile_seconds: float | None

    @property
    def constant_bytes(self) -> int:
        """The size of all `constants`."""
        return sum(each.bytes for each in self.constants)


def first_call(call: Call, *, compiles: bool = True) -> FirstCall:
    """Count what the first call of `call` takes.

    A function with `.lower`, of `jax.jit`, `filter_jit` or `nnx.jit`, is lowered and compiled, and does not run: its
    arguments may be `jax.ShapeDtypeStruct`s. `compiles=False` leaves out the compiler, which gives seconds only. Any
    other function runs twice, with all that it jits.

    Counts with `sys.setprofile`, in this thread only, and restores a profiler that was set. Raises `MeasurementError`
    for a call that traces nothing, and for one whose arguments are deleted after it ran.
    """
    __tracebackhide__ = True
    refuse_deleted(call, f"perf.first_call({call.label}): ")
    with borrowed(call) as subject, telling_nobody(), progress.waiting(f"the first call of {call.label}"):
        once = _lowering(subject) or _running(subject)
        with apart(), stage_seconds() as seconds:
            lowered = once()
            if isinstance(lowered, jax.stages.Lowered) and compiles:
                lowered.compile()
        refuse_deleted(subject, f"perf.first_call({call.label}): ")
        watch = _watched(once)
    if not watch.programs:
        raise MeasurementError(f"perf.first_call({call.label}): the call traces and lowers nothing; jit the function")
    return _first_call(call.label, watch, seconds)


def _first_call(label: str, watch: CallWatch, seconds: dict[str, float]) -> FirstCall:
    jaxprs = Jaxprs()
    equations: Equations = Counter()
    for program in watch.programs:
        equations.update(jaxprs.equations(program.jaxpr))
    return FirstCall(
        label,
        watch.calls["trace"],
        watch.calls["lower"],
        watch.traces.total(),
        equations.total(),
        sum(program.stablehlo_bytes for program in watch.programs),
        tuple(constant for program in watch.programs for constant in jaxprs.constants(program.jaxpr)),
        watch.by_line,
        equations,
        watch.traces,
        len(watch.programs),
        seconds.get("trace", 0.0),
        seconds.get("lower", 0.0),
        seconds.get("compile"),
    )


def _lowering(call: Call) -> Callable[[], Any] | None:
    """Lowers a call of a function that can be; None for any other function."""
    fn, args, kwargs = behind_bound(call.fn, call.args, call.kwargs)
    lower = getattr(fn, "lower", None)
    if not callable(lower):
        return None

    def once() -> Any:
        lowered = lower(*args, **kwargs)
        while not isinstance(lowered, jax.stages.Lowered):  # those of Equinox and NNX hold JAX's
            lowered = lowered.lowered
        return lowered

    return once


def _running(call: Call) -> Callable[[], Any]:
    def once() -> None:
        jax.block_until_ready(call.run())

    return once


def _watched(once: Callable[[], Any]) -> CallWatch:
    """Run `once` apart, and watch it."""
    watch = CallWatch()
    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # else a finalizer that happens to run would count
    # A warning is shown by Python code, which is not there with other options of pytest. The first run has shown it.
    with apart(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sys.setprofile(watch.profile)
            once()
        finally:
            sys.setprofile(before)
            if collecting:
                gc.enable()
    return watch


def apart() -> contextlib.AbstractContextManager[Any]:
    """Inside, JAX has traced nothing yet."""
    return make_context()(next(_numbers))


@contextlib.contextmanager
def stage_seconds() -> Iterator[dict[str, float]]:
    """The seconds of each stage that this thread passes through inside; of one inside another only the outer counts."""
    seconds: dict[str, float] = {}
    started: list[float] = []

    def on_start(event: str, value: float, **_: str | int) -> None:
        if stage_of(event):
            started.append(time.perf_counter())

    def on_end(event: str, duration_secs: float, **_: str | int) -> None:
        if (stage := stage_of(event)) is not None and started:
            began = started.pop()
            if not started:
                seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began

    jax.monitoring.register_scalar_listener(on_start)
    jax.monitoring.register_event_duration_secs_listener(on_end)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_scalar_listener(on_start)
        jax.monitoring.unregister_event_duration_listener(on_end)
