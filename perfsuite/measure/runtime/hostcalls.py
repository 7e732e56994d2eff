"""`host_calls`: the Python and C function calls that one warm call makes on the host.

The count has no noise: it is the same over repeats, processes and hash seeds, so any increase is a change of code. It
is blind to work inside C++; pair it with `compare_calls` for that.
"""

import dataclasses
import gc
import sys

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Metric
from perfsuite.measure.runtime.origins import Origin, Profile

REPEATS = 3
FUNCTIONS_KEPT = 12
"""How many functions a metric names; together they make nearly all calls of a step."""


@dataclasses.dataclass(frozen=True)
class HostCalls:
    """Function calls of one warm call. `by_function` has "module:function" and its calls, the busiest first.

    `by_origin` has the same calls by what the user's code called, and where; `origin_of` says for each function which
    of these makes most of its calls.
    """

    label: str
    python_calls: int
    c_calls: int
    by_function: dict[str, int]
    by_origin: dict[Origin, int] = dataclasses.field(default_factory=dict, compare=False)
    origin_of: dict[str, Origin] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def total(self) -> int:
        return self.python_calls + self.c_calls

    def metrics(self, name: str) -> list[Metric]:
        """One count, with the busiest functions as its detail, and as their places what the user's code called."""
        busiest = dict(list(self.by_function.items())[:FUNCTIONS_KEPT])
        places = {function: str(self.origin_of[function]) for function in busiest if function in self.origin_of}
        return [Metric(f"{name} host calls", self.total, "calls", "count", detail=busiest, places=places or None)]


def host_calls(call: Call, *, exact: bool = True) -> HostCalls:
    """Count the calls that `call` makes, from its first to its return; the waiting for the device is not in it.

    Counts through `sys.setprofile`, in this thread only, after warming. The least of three repeats is taken, so that a
    cache filled by the first does not count. Raises `MeasurementError` when no two of the repeats agree: the code under
    test then does something else each time; `exact=False` takes the least all the same, which names a cause but must
    not gate. A profiler that is set already is put back afterwards.
    """
    __tracebackhide__ = True
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])
        with compiles.forbid():
            repeats = sorted((_count(subject) for _ in range(REPEATS)), key=_total)
    totals = [_total(profile) for profile in repeats]
    if exact and len(set(totals)) == len(totals):
        raise MeasurementError(
            f"{call.label}: the host calls differ from run to run ({', '.join(map(str, totals))}); "
            "a count gates only code that does the same each time"
        )
    least = repeats[0]
    found = least.by_function(), least.by_origin(), least.origin_of()
    return HostCalls(call.label, least.python_calls, least.c_calls, *found)


def _total(profile: Profile) -> int:
    return profile.python_calls + profile.c_calls


def _count(call: Call) -> Profile:
    profile = Profile()
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
    profile.forget_last("sys:setprofile")  # which ended the counting
    return profile
