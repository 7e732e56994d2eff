"""`cached_filter_jit`: `equinox.filter_jit` with a remembered partition, and without the wait for the device.

On every call `filter_jit` splits its arguments into arrays and the rest, joins its results again, leaf by leaf in
Python, and then waits for the device. Of 4.8 ms for a call over 600 arrays, `partition` took 0.7 and `combine` 1.8,
where `jax.jit` over a plain list of them took 0.9. The partition can be remembered until the structure changes:

- which leaves are arrays follows from the leaves' types and the tree definition. C code compares both with the last
  call's; `operator.itemgetter` then picks the leaves;
- static leaves are compared with the last call's by identity, and looked up by value when that fails;
- there is one `jax.jit`, over flat lists, for each tree definition and set of static leaves;
- the parts of an output that are not arrays travel in the output's own tree definition, which `jax.jit` keeps with each
  compiled signature. So they may depend on whatever a trace may depend on: shapes, weak types, contexts.
"""

import dataclasses
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

import equinox as eqx
import jax

from perfsuite.workloads.structure import Structure
from perfsuite.workloads.training.call_plan import BoundedCache, CallPlans, DonationRule, JittedCall

P = ParamSpec("P")
T = TypeVar("T")
Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]

_DONATIONS: dict[str, DonationRule] = {
    "all": DonationRule(first=True, rest=True, quiet=True),
    "all-except-first": DonationRule(first=False, rest=True, quiet=True),
    "warn": DonationRule(first=True, rest=True, quiet=False),
    "warn-except-first": DonationRule(first=False, rest=True, quiet=False),
    "none": DonationRule(first=False, rest=False, quiet=False),
}

# Wrapping one function twice, for example in a loop, must not compile it twice. The plans of a plain function end with
# it; those of other callables (modules, bound methods, partials) are kept for the newest 1024.
_FUNCTIONS: weakref.WeakKeyDictionary[types.FunctionType, dict[str, CallPlans]] = weakref.WeakKeyDictionary()
_CALLABLES: BoundedCache[tuple[Structure, str], CallPlans] = BoundedCache()


@overload
def cached_filter_jit(fn: Callable[P, T], *, donate: Donate = "none") -> Callable[P, T]: ...
@overload
def cached_filter_jit(fn: None = None, *, donate: Donate = "none") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def cached_filter_jit(fn: Any = None, *, donate: Donate = "none") -> Any:
    """`jax.jit` that traces all arrays in its arguments and holds everything else static, cheaply.

    A drop-in for `equinox.filter_jit`: the same arguments, as decorator or function, on functions, methods and
    modules, and the same outputs, arrays or not. `donate` takes the same strings: `"all"` and `"all-except-first"`,
    both silent about buffers that could not be used, `"warn"`, `"warn-except-first"`, and `"none"`; as there, the first
    two donate the arrays of `fn` itself too.

    The differences:
    - It returns as soon as the work is queued. `filter_jit` waits for the device, and so can raise the message of
      `equinox.error_if` from the call; here the first one that waits gets it as a `jax.errors.JaxRuntimeError`.
    - Static leaves are compared by type, and floats bit for bit: `1`, `1.0` and `True` compile separately, and so do
      `0.0` and `-0.0`; all not-a-numbers compile once. Static *fields* are compared by `==`, as everywhere in JAX.
    - It remembers 1024 tree structures of a function and, for each, 1024 sets of static leaves.

    Calling raises `ValueError` for a static leaf that is not hashable, as `filter_jit` does.
    """
    if fn is None:
        return functools.partial(cached_filter_jit, donate=donate)
    if donate not in _DONATIONS:
        raise ValueError(f"donate must be one of {', '.join(map(repr, _DONATIONS))}, got {donate!r}")
    if not callable(fn):
        raise TypeError(f"cached_filter_jit needs a callable, got {fn!r}")
    arrays, structure = Structure.split(fn)
    return eqx.module_update_wrapper(_CachedFilterJit(tuple(arrays), structure, _plans(fn, structure, donate)))


@dataclasses.dataclass(frozen=True)
class CompiledFilterJit:
    """A program compiled ahead of time. Calling it takes arguments of the signature that it was lowered for.

    `compiled` is the `jax.stages.Compiled` underneath. Calling raises `TypeError` for another structure or other
    static leaves, or another signature.
    """

    compiled: jax.stages.Compiled
    _wrapper: "_CachedFilterJit"
    _call: JittedCall

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on arguments as the function takes them."""
        call, donated, kept = self._wrapper._plans.find(args, kwargs)
        if call is not self._call:
            raise TypeError("compiled for arguments of another structure, or with other static leaves")
        return self.compiled(donated, kept, self._wrapper._own).tree()


@dataclasses.dataclass(frozen=True)
class LoweredFilterJit:
    """A program lowered ahead of time. `lowered` is the `jax.stages.Lowered` underneath."""

    lowered: jax.stages.Lowered
    _wrapper: "_CachedFilterJit"
    _call: JittedCall

    def as_text(self) -> str:
        """The program as StableHLO."""
        return self.lowered.as_text()

    def compile(self, compiler_options: dict[str, str | bool] | None = None) -> CompiledFilterJit:
        """Compiles the program for the devices of its arguments."""
        return CompiledFilterJit(self.lowered.compile(compiler_options=compiler_options), self._wrapper, self._call)


class _CachedFilterJit(eqx.Module):
    """The wrapped function. A module, as `filter_jit`'s is, so that transformations see the arrays of `fn`."""

    _own: tuple[Any, ...]
    _structure: Structure = eqx.field(static=True)
    _plans: CallPlans = eqx.field(static=True)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._structure.join(self._own)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        plans = self._plans
        call, donated, kept = plans.find(args, kwargs)
        if not plans.donation.quiet:
            return call.jitted(donated, kept, self._own).tree()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            return call.jitted(donated, kept, self._own).tree()

    def __repr__(self) -> str:
        return f"cached_filter_jit({self.__wrapped__!r})"

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else eqx.Partial(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> LoweredFilterJit:
        """Lowers the program for these arguments without running it."""
        call, donated, kept = self._plans.find(args, kwargs)
        return LoweredFilterJit(call.jitted.lower(donated, kept, self._own), self, call)


def _plans(fn: Callable[..., Any], structure: Structure, donate: str) -> CallPlans:
    signature, donation = inspect.signature(fn), _DONATIONS[donate]
    if isinstance(fn, types.FunctionType):
        reference = weakref.ref(fn)  # Alive whenever this is called: the wrapper that calls holds the function.
        plans = _FUNCTIONS.setdefault(fn, {})
        if donate not in plans:
            plans[donate] = CallPlans(lambda own: cast(Any, reference()), _name(fn), signature, donation)
        return plans[donate]
    return _CALLABLES.get((structure, donate), lambda: CallPlans(structure.join, _name(fn), signature, donation))


def _name(fn: Any) -> str:
    """What compile events call it: the innermost function's name, or the class of a callable object."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return getattr(fn, "__name__", type(fn).__name__)
