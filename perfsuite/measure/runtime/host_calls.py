"""`host_calls`: the Python and C calls that one warm call makes on the host, and the user's lines that make them.

The count has no noise: it is the same over repeats, processes and hash seeds, so any increase is a change of code. It
does not see work inside C++, nor callbacks of compiled programs, which run in this thread or in another as it happens;
use it together with `compare_calls`.

One `jax.tree.map` over a model is hundreds of calls of `isinstance`, `tree_flatten` and lambdas. All of them count for
the call that a user can change: the outermost function of a library, and the user's line.
"""

import contextlib
import dataclasses
import gc
import os
import sys
from collections import Counter
from types import FrameType
from typing import Any, TypeVar

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.callsite import LIBRARIES
from perfsuite.measure.compiles.compiles import TRACING_ON_PURPOSE, steady_state, telling_nobody
from perfsuite.measure.compiles.settle import agreed_run, borrowed, settle
from perfsuite.measure.metric import HOST_CALLS, Metric
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.capabilities import CHANCE_CALLS
from perfsuite.measure.private.jax_stack import Profile, forget_calls, without_chance
from perfsuite.measure.private.libraries import CONSTRUCTING, OF_LIST

FUNCTIONS_KEPT = 12
"""How many functions a metric names; together they make nearly all calls of a step."""
ORIGINS_NAMED = 3

_TRANSPARENT = frozenset({"contextlib", "functools", "jaxtyping", "beartype", "typeguard"})
"""Packages that run the user's functions in frames of their own."""
_ELSEWHERE = (LIBRARIES | {"jaxlib", "numpy", "scipy", "ml_dtypes"} | sys.stdlib_module_names) - _TRANSPARENT

_HARNESS = "perfsuite.measure."

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CallOrigin:
    """A call in the user's code: the "module:function" that it calls, and where ("train.py:12 in train_step").

    `location` is empty for the function under test, which the harness calls.
    """

    function: str
    location: str = ""

    def __str__(self) -> str:
        return f"{self.function} at {self.location}" if self.location else self.function


@dataclasses.dataclass(frozen=True)
class HostCalls:
    """Function calls of one warm call. `by_function` maps "module:function" to its calls, the busiest first.

    `by_responsible` has the same calls by the Python function that is called or that calls into C: 500 of `check`, not
    of `isinstance`. `by_origin` has them by what the user's code called, and where; `origins_of` has the origins of
    most calls of each responsible function.
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
        origins = {function: self.origins_of[function] for function in busiest if function in self.origins_of}
        places = {function: ", ".join(map(str, each)) for function, each in origins.items()}
        return [Metric(f"{name} host calls", self.total, HOST_CALLS, "count", detail=busiest, places=places or None)]


def host_calls(call: Call, *, exact: bool = True) -> HostCalls:
    """Count the calls that `call` makes until it returns. Waiting for the device does not count.

    Counts with `sys.setprofile`, in this thread only, after warming, and restores a profiler that was set. Takes what
    two runs in a row agree on, so that a cache filled by the first does not count; where every second run makes more
    calls, the more. Raises `MeasurementError` when none agree, because the code under test then does something else
    each time. `exact=False` takes the least all the same: that is good enough to name a cause, and must not gate.
    """
    __tracebackhide__ = True
    if CHANCE_CALLS.lost():
        CHANCE_CALLS.falls_back("host calls depend on threads, on living arrays and on earlier tests")
    with borrowed(call) as subject:
        settle(subject)
        forget_calls()
        with steady_state(), contextlib.ExitStack() as silent:
            if TRACING_ON_PURPOSE.get():
                subject.run()  # what compiles again is refused here
                silent.enter_context(telling_nobody())
            profile = agreed_run(
                lambda: _profile(subject),
                lambda profile: (profile.python_calls + profile.c_calls,),
                f"{call.label}: the host calls differ",
                exact=exact,
            )
    return profile.summed(call.label)


class _CallProfile:
    """A function for `sys.setprofile` that counts calls by function, by responsible function and by origin."""

    def __init__(self) -> None:
        self.python_calls = 0
        self.c_calls = 0
        self.calls: Counter[tuple[str, str, CallOrigin]] = Counter()
        self._depth = 0  # of Python frames below the library's function that the user's code called
        self._origin = CallOrigin("")

    def __call__(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "call":
            self.python_calls += 1
            name = _name(frame)
            if self._depth:
                self._depth += 1
            else:
                function = jax_stack.behind_filter(frame) or name
                self._origin = CallOrigin(function + _of_what(frame), _caller(frame.f_back))
                self._depth = int(_is_elsewhere(frame))
            self.calls[name, name, self._origin] += 1
        elif event == "c_call":
            self.c_calls += 1
            name = _c_name(callee)
            by = name if _module(frame).startswith(_HARNESS) else _name(frame)
            self.calls[name, by, self._origin if self._depth else CallOrigin(name, _caller(frame))] += 1
        elif event == "return" and self._depth:
            self._depth -= 1

    def summed(self, label: str) -> HostCalls:
        by_function: Counter[str] = Counter()
        by_responsible: Counter[str] = Counter()
        by_origin: Counter[CallOrigin] = Counter()
        of_each: Counter[tuple[str, CallOrigin]] = Counter()
        for (function, responsible, origin), calls in (+self.calls).items():
            by_function[function] += calls
            by_responsible[responsible] += calls
            by_origin[origin] += calls
            of_each[responsible, origin] += calls
        origins: dict[str, list[CallOrigin]] = {responsible: [] for responsible in by_responsible}
        for responsible, origin in _busiest(of_each):
            if origin.location:
                origins[responsible].append(origin)
        return HostCalls(
            label,
            self.python_calls,
            self.c_calls,
            _busiest(by_function),
            _busiest(by_origin),
            # Its own call where it makes no others.
            {name: tuple(each[:ORIGINS_NAMED]) or (CallOrigin(name),) for name, each in origins.items()},
            _busiest(by_responsible),
        )


def profiled_run(call: Call, profile: Profile) -> None:
    """Run a call in this thread under `profile`, which hears nothing that happens by chance, and wait."""
    fn, args, kwargs = call.fn, call.args, call.kwargs
    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # else a finalizer that happens to run would count
    try:
        sys.setprofile(without_chance(profile))
        outputs = fn(*args, **kwargs)
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    call.carry_on(outputs)  # before the waiting, which may be interrupted
    jax.block_until_ready(outputs)


def _profile(call: Call) -> _CallProfile:
    profile = _CallProfile()
    profiled_run(call, profile)
    ends = "sys:setprofile"  # which ended the counting
    profile.c_calls -= 1
    profile.calls[ends, ends, CallOrigin(ends)] -= 1
    return profile


def _busiest(calls: Counter[T]) -> dict[T, int]:
    """The busiest first, and equals in order of their names."""
    return dict(sorted(calls.items(), key=lambda item: (-item[1], str(item[0]))))


def _caller(frame: FrameType | None) -> str:
    """The user's line and function, in `frame` or around it; "" if the harness called."""
    while frame is not None and (module := _module(frame)).partition(".")[0] in _TRANSPARENT:
        frame = frame.f_back
    if frame is None or module.startswith(_HARNESS):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _of_what(frame: FrameType) -> str:
    """What the frame's function takes, where that says why it makes its calls."""
    if CONSTRUCTING.runs(frame) and isinstance(next(iter(frame.f_locals.values()), None), list | tuple):
        return OF_LIST
    if _module(frame) == "generated" and frame.f_code.co_argcount:
        return f" of {type(next(iter(frame.f_locals.values()))).__qualname__}"
    return ""


def _is_elsewhere(frame: FrameType) -> bool:
    # The code that Equinox generates to flatten modules has no module, that of a named tuple has one of its own.
    top = _module(frame).partition(".")[0]
    return top == "generated" or top.startswith("namedtuple_") or top in _ELSEWHERE


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}:{frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "generated")


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
