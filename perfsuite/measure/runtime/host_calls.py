"""`host_calls`: the Python and C calls that one warm call makes on the host, and the user's lines that make them.

The count has no noise: it is the same over repeats, processes and hash seeds, so any increase is a change of code. It
does not see work inside C++, nor callbacks of compiled programs, which run in this thread or in another as it happens;
use it together with `compare_calls`.

One `jax.tree.map` over a model is hundreds of calls of `isinstance`, `tree_flatten` and lambdas. All of them count for
the call that a user can change: the outermost function of a library, and the user's line.
"""

import contextlib
import dataclasses
import os
import re
import sys
from collections import Counter
from types import FrameType
from typing import Any, TypeVar

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.callsite import code_kind
from perfsuite.measure.compiles.compiles import TRACING_ON_PURPOSE, steady_state, telling_nobody
from perfsuite.measure.compiles.settle import agreed_run, borrowed, collector_off, settle
from perfsuite.measure.metric import HOST_CALLS, Metric
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.capabilities import CHANCE_CALLS
from perfsuite.measure.private.jax_stack import Profile, forget_calls, without_chance
from perfsuite.measure.private.libraries import CONSTRUCTING, OF_LIST
from perfsuite.measure.private.names import local_variables

_TRANSPARENT = frozenset({"contextlib", "functools", "jaxtyping", "beartype", "typeguard"})
"""Packages that run the user's functions in frames of their own."""

_HARNESS = "perfsuite.measure."

LINES_NAMED = 3
"""How many origins a part has: the same call may stand in several lines of a function."""

_COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>)+\Z")
"""Before Python 3.12 one has a frame of its own, inside of its function's."""

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

    def part(self, function: str) -> str:
        """The calls of a function from here, without the line: "tree:leaves by jax:map in step (train.py)"."""
        by = self.function if self.function.partition(" ")[0] == function else f"{function} by {self.function}"
        file, _, caller = self.location.partition(" in ")
        return f"{by} in {caller} ({file.partition(':')[0]})" if self.location else by


@dataclasses.dataclass(frozen=True)
class HostCalls:
    """Function calls of one warm call. `by_function` maps "module:function" to its calls, the busiest first.

    `by_origin` has the same calls by what the user's code called, and where. `parts` has them by both: by the function
    of the user's own, or inside of a library the Python function that is called or calls into C (500 of `check`, not
    of `isinstance`), and by the origin without its line. `places` has the origins of each part, the busiest first.
    """

    label: str
    python_calls: int
    c_calls: int
    by_function: dict[str, int]
    by_origin: dict[CallOrigin, int] = dataclasses.field(default_factory=dict, compare=False)
    parts: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)
    places: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def total(self) -> int:
        """Python and C calls together."""
        return self.python_calls + self.c_calls

    def metrics(self, name: str) -> list[Metric]:
        """One count with its parts, and where they are."""
        parts, places = self.parts or None, self.places or None
        return [Metric(f"{name} host calls", self.total, HOST_CALLS, "count", detail=parts, places=places)]


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
            if self._depth:
                self.calls[name, _name(frame), self._origin] += 1
            else:
                self.calls[name, name, CallOrigin(name, _caller(frame))] += 1
        elif event == "return" and self._depth:
            self._depth -= 1

    def summed(self, label: str) -> HostCalls:
        by_function: Counter[str] = Counter()
        by_origin: Counter[CallOrigin] = Counter()
        parts: Counter[str] = Counter()
        of_each: Counter[tuple[str, CallOrigin]] = Counter()
        for (function, responsible, origin), calls in (+self.calls).items():
            by_function[function] += calls
            by_origin[origin] += calls
            part = origin.part(responsible)
            parts[part] += calls
            of_each[part, origin] += calls
        origins: dict[str, list[str]] = {}
        for part, origin in _busiest(of_each):
            origins.setdefault(part, []).append(str(origin))
        return HostCalls(
            label,
            self.python_calls,
            self.c_calls,
            _busiest(by_function),
            _busiest(by_origin),
            _busiest(parts),
            {part: ", ".join(each[:LINES_NAMED]) for part, each in origins.items()},
        )


def profiled_run(call: Call, profile: Profile) -> None:
    """Run a call in this thread under `profile`, which hears nothing that happens by chance, and wait."""
    fn, args, kwargs = call.fn, call.args, call.kwargs
    before = sys.getprofile()
    with collector_off():  # else a finalizer that happens to run would count
        try:
            sys.setprofile(without_chance(profile))
            outputs = fn(*args, **kwargs)
        finally:
            sys.setprofile(before)
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
    function = _COMPREHENSION.sub("", frame.f_code.co_qualname).rpartition(".")[2]
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {function}"


def _of_what(frame: FrameType) -> str:
    """What the frame's function takes, where that says why it makes its calls."""
    constructs = CONSTRUCTING.runs(frame)
    if not constructs and not (_module(frame) == "generated" and frame.f_code.co_argcount):
        return ""
    first = next(iter(local_variables(frame).values()), None)
    if constructs:
        return OF_LIST if isinstance(first, list | tuple) else ""
    return f" of {type(first).__qualname__}"


def _is_elsewhere(frame: FrameType) -> bool:
    """Whether a library's code runs, or Python's own. What Equinox generates to flatten modules has no module."""
    top = _module(frame).partition(".")[0]
    if top in _TRANSPARENT:
        return False
    kind = code_kind(_module(frame), frame.f_code.co_filename)
    return top == "generated" or top.startswith("namedtuple_") or kind in ("python", "library", "package")


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}:{frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "generated")


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
