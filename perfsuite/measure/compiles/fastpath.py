"""`fast_path`: the calls of jitted functions that JAX's C++ does not answer by itself, though nothing compiles.

A warm call of a jitted function is one call into C++. Where JAX has no fast path for it, some 130 to 300 Python calls
find the compiled program anew, each time (jax 0.10.2): no trace, no compile, no message. `sys.setprofile` sees them.
"""

import collections
import dataclasses
import sys
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Metric

_RUNS = 4
"""The first two may fill a cache that the others find full; of the others the one with the most misses counts."""

MOVED = "an argument that is moved"
ERROR_BEFORE = (
    "JAX has a fast path and does not use it: an earlier call with this signature ended with an error. "
    "Its clear_cache() repairs that, for one compile"
)
PLACED = (
    "an argument lies elsewhere than its program wants it, and is moved there in each call: jax.device_put it once, "
    "with that sharding"
)


@dataclasses.dataclass(frozen=True)
class FastPath:
    """The fast-path misses of one warm call. `by_function` has each function and its misses, the most first.

    `reasons` says of each why, and `places` where it is defined. An argument that Python moves to another device or
    sharding in each call is a miss too, under the name of `MOVED`, with the line that makes the call as its place.
    """

    label: str
    misses: int
    by_function: dict[str, int]
    reasons: dict[str, str]
    places: dict[str, str]

    def metrics(self, name: str) -> list[Metric]:
        """One count, with the functions as its detail."""
        name = f"{name} fast-path misses"
        return [Metric(name, self.misses, "misses", "count", detail=self.by_function, places=self.places)]

    def __str__(self) -> str:
        return "\n".join(
            f"{name} ({count}) at {self.places[name]}: {self.reasons[name]}" for name, count in self.by_function.items()
        )


def fast_path(call: Call) -> FastPath:
    """Count the calls of jitted functions in one warm `call`, in this thread, that take JAX's slow path.

    A compile meanwhile raises `RecompilationError`: that is another kind of miss. Where nothing was seen to miss, JAX
    itself is asked (`jax.no_tracing`); it raises `MeasurementError` should JAX know better. As after any call that
    raises midway, a state that was donated before in that call is gone then.
    """
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])
        with compiles.forbid():
            runs = [_run(subject) for _ in range(_RUNS)]
            found = max(runs[_RUNS // 2 :], key=lambda run: len(run.misses))
            if not found.misses:
                _ask_jax(subject)
    by_function = collections.Counter(name for name, _, _ in found.misses)
    return FastPath(
        call.label,
        len(found.misses),
        dict(by_function.most_common()),
        {name: reason for name, _, reason in found.misses},
        {name: place for name, place, _ in found.misses},
    )


class _Profile:
    """What `sys.setprofile` is given: collects the misses of one run, as (function, place, reason)."""

    def __init__(self) -> None:
        self.misses: list[tuple[str, str, str]] = []
        self._open: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if _jax_internals.misses_fast_path(frame):
                self._open.append(frame)
            elif not self._open and _jax_internals.places_argument(frame):
                self.misses.append((MOVED, callsite.location(frame), PLACED))
        elif event == "return" and self._open and frame is self._open[-1]:
            self._open.pop()
            function = _jax_internals.missed_function(frame)
            reason = _jax_internals.why_missed(frame, argument) or ERROR_BEFORE
            self.misses.append((*_named(function, frame), reason))


def _run(call: Call) -> _Profile:
    profile = _Profile()
    fn, args, kwargs = call.fn, call.args, call.kwargs
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        outputs = fn(*args, **kwargs)
    finally:
        sys.setprofile(before)
    call.carry_on(outputs)  # before the waiting, which may be interrupted
    jax.block_until_ready(outputs)
    return profile


def _named(function: Any, frame: FrameType) -> tuple[str, str]:
    """The function's name and where it is defined; what calls it where that is in a library, or unknown."""
    name = function if isinstance(function, str) else label_of(function)
    defined = "" if isinstance(function, str) else callsite.code_of(function)
    own = ":" in defined and "site-packages" not in defined
    return name, defined if own else callsite.location(frame)


def _ask_jax(call: Call) -> None:
    """Run once more where JAX itself raises at the first miss. Tells that a private name has moved."""
    try:
        with jax.no_tracing(True):
            jax.block_until_ready(call.run())
    except RuntimeError as error:
        if "no_tracing" not in str(error) or "`jit`" not in str(error):
            raise
        raise MeasurementError(
            f"{call.label}: JAX {jax.__version__} takes its slow path ({error}), and perfsuite did not see where: "
            "JAX has moved what perfsuite/measure/compat/jax_stack.py looks for. Please report it"
        ) from None
