"""The calls of jitted functions that one input leads to, described, with nothing compiled and nothing run.

The arguments of a jitted function are its signature. A Python function is run while JAX traces: its own code runs, such
as padding in NumPy, and every call of a jitted function inside comes to JAX with the arguments that it would have.
"""

import collections
import dataclasses
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.call import label_of
from perfsuite.measure.compiles import callsite, causes
from perfsuite.measure.compiles.causes import Sighting
from perfsuite.measure.compiles.description import is_traced
from perfsuite.measure.compiles.listeners import unheard
from perfsuite.measure.compiles.signature import Changes, Signature
from perfsuite.measure.compiles.warmup import Warm, function_of
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private import slow_path

_AHEAD_OF_TIME = getattr(jax.stages.Compiled.__call__, "__code__", None)
_JITTED = ("jit", "pjit")
_READS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@dataclasses.dataclass(frozen=True)
class Warmed:
    """A signature that is warm, and what was in force then. `of` is what `warm` returned, where that is known."""

    signature: Signature
    config: causes.Config
    of: Warm | None = None


@dataclasses.dataclass(frozen=True)
class JittedCall:
    """One call of a jitted function. `warmed` are the signatures of it that are warm.

    `traced` are the paths of what another jitted function returned, of which nobody knows yet where it will be.
    `forgotten` says that perfsuite has seen more signatures compile than it remembers.
    """

    function: Any
    key: tuple[str, ...]
    sighting: Sighting
    location: str
    traced: frozenset[str]
    warmed: tuple[Warmed, ...]
    forgotten: bool = False
    otherwise: Changes = ()
    """What differs where no signature is warm: most often that the function is another object."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one input leads to. `eager` has the operations outside any jitted function, each with its line."""

    calls: tuple[JittedCall, ...]
    eager: tuple[str, ...] = ()


def is_jitted(fn: Callable) -> bool:
    """Whether the arguments of `fn` are those of the jitted function itself."""
    return callsite.of_function(fn, (), {}).statics is not None


def of_jitted(step: Callable, args: tuple, kwargs: dict[str, Any]) -> Seen:
    """The call `step(*args, **kwargs)` of a jitted function."""
    site = callsite.of_function(function_of(step), args, kwargs)
    return Seen((_call_at(site, step if isinstance(step, Warm) else None),))


def of_python(fn: Callable, args: tuple, kwargs: dict[str, Any], place: int) -> Seen:
    """The jitted functions that a Python function calls with these arguments. `place` is that of the input.

    Raises `MeasurementError` where it waits for an array, or reads the numbers of one, that no program has computed,
    and where it calls what was compiled ahead of time, which would run.
    """
    watch = _Watch()
    # Without `is_leaf`, JAX warns of an iterator.
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda node: isinstance(node, Iterator))
    specs = {n: leaf for n, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)}

    def run(traced: dict[int, Any]) -> None:
        inner_args, inner_kwargs = jax.tree.unflatten(tree, [traced.get(n, x) for n, x in enumerate(leaves)])
        with watch:
            outputs = fn(*inner_args, **inner_kwargs)
            if inspect.isgenerator(outputs):
                collections.deque(outputs, maxlen=0)

    try:
        with unheard():
            made = jax.make_jaxpr(run)(specs)
    except Exception as error:
        if isinstance(error, _READS) or (isinstance(error, AttributeError) and "on traced array" in str(error)):
            raise MeasurementError(_uses_results(label_of(fn), place, error)) from None
        error.add_note(f"perf.covers was looking at what {label_of(fn)} calls with input {place}, and runs no program")
        raise
    if not watch.calls and not watch.eager and any(each.primitive.name in _JITTED for each in made.jaxpr.eqns):
        raise MeasurementError(
            f"perf.covers: JAX {jax.__version__} does not call what perfsuite/measure/private/jax_stack.py looks for, "
            "so the calls of jitted functions cannot be seen. Please report it"
        )
    return Seen(tuple(watch.calls), tuple(dict.fromkeys(watch.eager)))


class _Watch:
    """Sees the calls of jitted functions, in this thread, while it is open."""

    def __init__(self) -> None:
        self.calls: list[JittedCall] = []
        self.eager: list[str] = []
        self._inside: FrameType | None = None
        self._refused: MeasurementError | None = None

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._profile)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        sys.setprofile(self._before)
        if self._refused is not None and error is not self._refused:  # the step has caught it
            raise self._refused

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is _AHEAD_OF_TIME:
            self._refused = MeasurementError(_runs(callsite.location(frame)))
            raise self._refused
        if event == "call" and self._inside is None and slow_path.misses_fast_path(frame):
            self._inside = frame
            self._see(frame)
        elif event == "return" and frame is self._inside:
            self._inside = None

    def _see(self, frame: FrameType) -> None:
        site = callsite.on_stack(frame)
        if site.eager:
            self.eager.append(f"{label_of(slow_path.missed_function(frame))} at {site.location}")
        elif site.function is not None:
            self.calls.append(_call_at(site, _warm_above(frame, site)))


def _warm_above(frame: FrameType, site: callsite.CallSite) -> Warm | None:
    """What `warm` returned for the function, where it was called through that."""
    called = (each.f_locals["self"] for each, _ in traceback.walk_stack(frame) if each.f_code is Warm.__call__.__code__)
    return next((each for each in called if callsite.of_function(each.fn, (), {}).function is site.function), None)


def _call_at(site: callsite.CallSite, warm: Warm | None) -> JittedCall:
    """Compared with what `warm` has; without it, with what has compiled while perfsuite watched."""
    sighting, key = causes.sighting_of(site), causes.key_of(site)
    traced = frozenset(path for path, leaf in sighting.signature.leaves if is_traced(leaf))
    if warm:
        known = tuple(Warmed(signature, warm.config, warm) for signature in warm.signatures)
        return JittedCall(site.function, key, sighting, site.location, traced, known)
    seen = causes.HISTORY.known(key)
    same = [each for each in seen if each.function == sighting.function and _jitted_alike(each, sighting)]
    known = tuple(Warmed(each.signature, each.config) for each in same)
    otherwise = () if same else causes.recompile_cause(site, sighting, key).changes
    forgotten = len(seen) >= causes.CALLS_EACH
    return JittedCall(site.function, key, sighting, site.location, traced, known, forgotten, otherwise)


def _jitted_alike(one: Sighting, other: Sighting) -> bool:
    return (one.statics, one.options) == (other.statics, other.options)


def _runs(line: str) -> str:
    return (
        f"perf.covers(step, inputs): {line} calls a function that was compiled ahead of time. It would run, and "
        "perf.covers runs no program. It has one signature and refuses every other one itself: pass a step that calls "
        "the jitted function, or none, in its place"
    )


def _uses_results(function: str, place: int, error: Exception) -> str:
    frames: Iterator[FrameType] = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    *_, last = frames
    return (
        f"perf.covers({function}, inputs): with input {place}, {callsite.location(last)} waits for an array or reads "
        "its numbers, and perf.covers runs no program. Pass a function without what uses results, such as float(loss) "
        "or np.asarray(x), and NumPy arrays in place of specs that Python reads"
    )
