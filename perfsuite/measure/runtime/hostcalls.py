"""`host_calls`: the Python and C function calls that one warm call makes on the host.

The count has no noise: it is the same over repeats, processes and hash seeds, so any increase is a change of code. It
does not see work inside C++, nor callbacks of compiled programs, which run in this thread or in another as it happens;
use it together with `compare_calls`.
"""

import dataclasses
import gc
import sys

import jax

from perfsuite.measure import units
from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import borrowed, settle
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.callback_frames import outside_callbacks
from perfsuite.measure.private.capabilities import CALLBACKS
from perfsuite.measure.runtime.origins import CallOrigin, CallProfile
from perfsuite.measure.runtime.repeats import agreed

FUNCTIONS_KEPT = 12
"""How many functions a metric names; together they make nearly all calls of a step."""


@dataclasses.dataclass(frozen=True)
class HostCalls:
    """Function calls of one warm call. `by_function` maps "module:function" to its calls, the busiest first.

    `by_responsible` has the same calls by the Python function that is called or that calls into C, `by_origin` by what
    the user's code called, and where; `origins_of` has the origins of most calls of each responsible function.
    """

    label: str
    python_calls: int
    c_calls: int
    by_function: dict[str, int]
    by_origin: dict[CallOrigin, int] = dataclasses.field(default_factory=dict, compare=False)
    origins_of: dict[str, tuple[CallOrigin, ...]] = dataclasses.field(default_factory=dict, compare=False)
    by_responsible: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def total(self) -> int:
        """Python and C calls together."""
        return self.python_calls + self.c_calls

    def metrics(self, name: str) -> list[Metric]:
        """One count. Its detail has the responsible functions, its places what the user's code called."""
        busiest = dict(list(self.by_responsible.items())[:FUNCTIONS_KEPT])
        known = {function: self.origins_of[function] for function in busiest if function in self.origins_of}
        places = {function: ", ".join(map(str, origins)) for function, origins in known.items()}
        return [
            Metric(f"{name} host calls", self.total, units.HOST_CALLS, "count", detail=busiest, places=places or None)
        ]


def host_calls(call: Call, *, exact: bool = True) -> HostCalls:
    """Count the calls that `call` makes until it returns. Waiting for the device does not count.

    Counts with `sys.setprofile`, in this thread only, after warming, and restores a profiler that was set. Takes what
    two runs in a row agree on, so that a cache filled by the first does not count; where every second run makes more
    calls, the more. Raises `MeasurementError` when none agree, because the code under test then does something else
    each time. `exact=False` takes the least all the same: that is good enough to name a cause, and must not gate.
    """
    __tracebackhide__ = True
    if CALLBACKS.lost():
        CALLBACKS.falls_back("host calls have those of callbacks among them")
    with borrowed(call) as subject:
        settle(subject)
        with compiles.steady_state():
            counted = agreed(
                lambda: _count(subject),
                lambda profile: (profile.total,),
                f"{call.label}: the host calls differ",
                exact=exact,
            )
    return HostCalls(
        call.label,
        counted.python_calls,
        counted.c_calls,
        counted.by_function(),
        counted.by_origin(),
        counted.origins_of(),
        counted.by_responsible(),
    )


def _count(call: Call) -> CallProfile:
    profile = CallProfile()
    fn, args, kwargs = call.fn, call.args, call.kwargs
    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # else a finalizer that happens to run would count
    try:
        sys.setprofile(outside_callbacks(profile))
        outputs = fn(*args, **kwargs)
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    call.carry_on(outputs)  # before the waiting, which may be interrupted
    jax.block_until_ready(outputs)
    profile.forget_last("sys:setprofile")  # which ended the counting
    return profile
