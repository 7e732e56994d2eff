"""`fast_path`: the calls of jitted functions that JAX's C++ does not answer by itself, though nothing compiles.

A warm call of a jitted function is one call into C++. Where JAX has no fast path for it, each call takes some 130 to
300 Python calls to find the compiled program again (jax 0.10.2): no trace, no compile, no message. `sys.setprofile`
sees them.
"""

import collections
import dataclasses
from types import FrameType
from typing import Any

from perfsuite.measure.call import Call, label_of, leaves_with_paths
from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.settle import borrowed, settle
from perfsuite.measure.metric import MISSES, Metric
from perfsuite.measure.private import jax_stack
from perfsuite.measure.runtime.host_calls import profiled_run

_RUNS = 4
"""The first two runs may fill a cache. Of the others, the one with the most misses counts."""

MOVED = "an argument that is moved"
ERROR_BEFORE = (
    "JAX has a fast path and does not use it: an earlier call with this signature ended with an error. "
    "Its clear_cache() repairs that, for one compile"
)
PLACED = (
    "an argument is not where its program needs it, and each call moves it there: jax.device_put it once, "
    "with that sharding"
)


@dataclasses.dataclass(frozen=True)
class FastPath:
    """The fast-path misses of one warm call. `by_function` has each function and its misses, the most first.

    `reasons` says why each misses, and `places` where each is defined. An argument that Python moves to another device
    or sharding in each call is a miss too: its name is `MOVED` with its path, its place the line that makes the call.
    """

    label: str
    misses: int
    by_function: dict[str, int]
    reasons: dict[str, str]
    places: dict[str, str]

    def metrics(self, name: str) -> list[Metric]:
        """One count, with the functions as its detail."""
        name = f"{name} fast-path misses"
        return [Metric(name, self.misses, MISSES, "count", detail=self.by_function, places=self.places)]

    def __str__(self) -> str:
        return "\n".join(
            f"{name} ({count}) at {self.places[name]}: {self.reasons[name]}" for name, count in self.by_function.items()
        )


def fast_path(call: Call) -> FastPath:
    """Count the calls of jitted functions in one warm `call`, in this thread, that take JAX's slow path.

    Those that a callback of a compiled program makes do not count: it runs in this thread or in another as it happens.
    A compile in a measured run raises `RecompilationError`: that is another kind of miss. As after any call that raises
    midway, a state that the call donated by then is gone.
    """
    with borrowed(call) as subject:
        settle(subject)
        with compiles.forbid():
            runs = [_misses(subject) for _ in range(_RUNS)]
    misses = max(runs[_RUNS // 2 :], key=len)
    return FastPath(
        call.label,
        len(misses),
        dict(collections.Counter(miss.function for miss in misses).most_common()),
        {miss.function: miss.reason for miss in misses},
        {miss.function: miss.place for miss in misses},
    )


@dataclasses.dataclass(frozen=True)
class _Miss:
    function: str
    place: str
    reason: str


def _misses(call: Call) -> list[_Miss]:
    """The misses of one run."""
    misses: list[_Miss] = []
    inside: list[FrameType] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if jax_stack.misses_fast_path(frame):
                inside.append(frame)
            elif not inside and jax_stack.PLACING.runs(frame):
                path = paths.get(id(jax_stack.PLACING.local(frame, "x")))
                misses.append(_Miss(f"{MOVED}: {path}" if path else MOVED, callsite.location(frame), PLACED))
        elif event == "return" and inside and frame is inside[-1]:
            inside.pop()
            misses.append(_miss(frame, argument))

    paths = {id(leaf): path for path, leaf in leaves_with_paths(call.args, call.kwargs)}
    profiled_run(call, profile)
    return misses


def _miss(frame: FrameType, returned: Any) -> _Miss:
    """The miss of a frame that returns, at its function's definition or, outside the user's code, at the call."""
    function = jax_stack.missed_function(frame)
    reason = jax_stack.why_missed(frame, returned) or ERROR_BEFORE
    if isinstance(function, str):
        return _Miss(function, callsite.location(frame), reason)
    defined = callsite.code_of(function)
    own = ":" in defined and "site-packages" not in defined
    return _Miss(label_of(function), defined if own else callsite.location(frame), reason)
