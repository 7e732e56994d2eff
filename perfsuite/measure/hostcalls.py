"""`host_calls`: the Python and C function calls that one warm call makes on the host.

The count has no noise: it is the same over repeats, processes and hash seeds, so any increase is a change of code. It
is blind to work inside C++; pair it with `compare_calls` for that.
"""

import collections
import dataclasses
import gc
import sys
from types import FrameType
from typing import Any

import jax

from perfsuite.measure import compiles
from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Measurement
from perfsuite.measure.warmup import Warm, warm

REPEATS = 3
FUNCTIONS_KEPT = 12
"""How many functions a measurement names; together they make nearly all calls of a step."""


@dataclasses.dataclass(frozen=True)
class HostCalls:
    """Function calls of one warm call. `by_function` has "module:function" and its calls, the busiest first."""

    label: str
    python_calls: int
    c_calls: int
    by_function: dict[str, int]

    @property
    def total(self) -> int:
        return self.python_calls + self.c_calls

    def measurements(self, name: str) -> list[Measurement]:
        """One count, with the busiest functions as its detail."""
        busiest = dict(list(self.by_function.items())[:FUNCTIONS_KEPT])
        return [Measurement(f"{name} host calls", self.total, "calls", "count", detail=busiest)]


def host_calls(call: Call, *, exact: bool = True) -> HostCalls:
    """Count the calls that `call` makes, from its first to its return; the waiting for the device is not in it.

    Counts through `sys.setprofile`, in this thread only, after warming. The least of three repeats is taken, so that a
    cache filled by the first does not count. Raises `MeasurementError` when no two of the repeats agree: the code under
    test then does something else each time; `exact=False` takes the least all the same, which names a cause but must
    not gate. A profiler that is set already is put back afterwards.
    """
    fn = call.fn.fn if isinstance(call.fn, Warm) else call.fn
    subject = Call(fn, call.args, call.kwargs, call.carry)
    try:
        warm(fn, over=[subject])
        with compiles.forbid():
            repeats = sorted((_count(subject) for _ in range(REPEATS)), key=lambda counts: counts[0] + counts[1])
    finally:
        call.args = subject.args
    totals = [python + c for python, c, _ in repeats]
    if exact and len(set(totals)) == len(totals):
        raise MeasurementError(
            f"{call.label}: the host calls differ from run to run ({', '.join(map(str, totals))}); "
            "a count gates only code that does the same each time"
        )
    python_calls, c_calls, functions = repeats[0]
    return HostCalls(call.label, python_calls, c_calls, dict(sorted(functions.items(), key=lambda f: (-f[1], f[0]))))


def _count(call: Call) -> tuple[int, int, dict[str, int]]:
    events: dict[str, int] = {"call": 0, "c_call": 0}
    functions: collections.Counter[str] = collections.Counter()

    def profile(frame: FrameType, event: str, callee: Any) -> None:
        if event in events:
            events[event] += 1
            functions[_python_name(frame) if event == "call" else _c_name(callee)] += 1

    fn, args, kwargs = call.fn, call.args, call.kwargs
    before = sys.getprofile()
    collecting = gc.isenabled()
    gc.disable()  # a finalizer that happens to run would be counted
    try:
        sys.setprofile(profile)
        try:
            outputs = fn(*args, **kwargs)
        finally:
            sys.setprofile(before)
    finally:
        if collecting:
            gc.enable()
    call.carry_on(outputs)  # before the waiting, which may be interrupted
    jax.block_until_ready(outputs)
    # The last C call is the one to sys.setprofile that ends the counting.
    events["c_call"] -= 1
    functions["sys:setprofile"] -= 1
    return events["call"], events["c_call"], {name: calls for name, calls in functions.items() if calls}


def _python_name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
