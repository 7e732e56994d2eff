"""`cached_filter_jit`: `equinox.filter_jit` with a remembered partition, and without the wait for the device.

`filter_jit` splits its arguments into arrays and the rest, and puts its results together again, leaf by leaf in Python
on every call: of 4.8 ms for a call over 600 arrays, 0.7 went into `partition` and 1.8 into `combine`, on a machine
where `jax.jit` over a plain list of them took 0.9. Then it waits for the device. Seed document 000 asks whether the
partition can be cached, and invalidated when the structure changes. It can:

- which leaves are arrays follows from the leaves' types and the tree definition. Both are compared with the last
  call's by C code; the leaves are then picked by `operator.itemgetter`;
- static leaves are compared with the last call's by identity, and looked up by value when that fails;
- there is one `jax.jit`, over flat lists, for each tree definition and set of static leaves;
- what an output is besides its arrays travels in the output's own tree definition, which `jax.jit` keeps with each
  compiled signature. So it may depend on whatever a trace may depend on: shapes, weak types, configuration contexts.
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
from perfsuite.workloads.training.bounded import BoundedCache
from perfsuite.workloads.training.call_plan import Donation, Entry, Program

P = ParamSpec("P")
T = TypeVar("T")
Donate = Literal["all", "all-except-first", "warn", "warn-except-first", "none"]

_DONATIONS: dict[str, Donation] = {
    "all": Donation(first=True, rest=True, quiet=True),
    "all-except-first": Donation(first=False, rest=True, quiet=True),
    "warn": Donation(first=True, rest=True, quiet=False),
    "warn-except-first": Donation(first=False, rest=True, quiet=False),
    "none": Donation(first=False, rest=False, quiet=False),
}

# Wrapping one function twice, in a loop say, must not compile it twice. A plain function takes its programs along when
# it goes; for other callables (modules, bound methods, partials) the oldest of these are forgotten.
_FUNCTIONS: weakref.WeakKeyDictionary[types.FunctionType, dict[str, Program]] = weakref.WeakKeyDictionary()
_CALLABLES: BoundedCache[tuple[Structure, str], Program] = BoundedCache(1024)


@overload
def cached_filter_jit(fn: Callable[P, T], *, donate: Donate = "none") -> Callable[P, T]: ...
@overload
def cached_filter_jit(fn: None = None, *, donate: Donate = "none") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def cached_filter_jit(fn: Any = None, *, donate: Donate = "none") -> Any:
    """`jax.jit` that traces all arrays in its arguments and holds everything else static, cheaply.

    A drop-in for `equinox.filter_jit`: the same arguments, as decorator or function, on functions, methods and
    modules, and the same outputs, arrays or not. `donate` takes the same strings: `"all"`, `"all-except-first"`, both
    silent about buffers that could not be used, `"warn"`, `"warn-except-first"`, and `"none"`; as there, `"all"` and
    `"all-except-first"` donate the arrays of `fn` itself too.

    It differs in this:
    - It returns as soon as the work is queued. `filter_jit` waits for the device, and so can raise the message of
      `equinox.error_if` from the call; here that error is the `jax.errors.JaxRuntimeError` of whoever waits first.
    - Static leaves are told apart by type, and floats bit for bit: `1`, `1.0` and `True` compile separately, and so do
      `0.0` and `-0.0`; all not-a-numbers compile once. Static *fields* are compared by `==`, as everywhere in JAX.
    - Of one function it remembers 1024 tree structures and, for each, 1024 sets of static leaves.

    Calling raises `ValueError` for a static leaf that is not hashable, as `filter_jit` does.
    """
    if fn is None:
        return functools.partial(cached_filter_jit, donate=donate)
    if donate not in _DONATIONS:
        raise ValueError(f"donate must be one of {', '.join(map(repr, _DONATIONS))}, got {donate!r}")
    if not callable(fn):
        raise TypeError(f"cached_filter_jit needs a callable, got {fn!r}")
    arrays, structure = Structure.split(fn)
    return eqx.module_update_wrapper(_CachedFilterJit(tuple(arrays), structure, _program(fn, structure, donate)))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled ahead of time. Calling it takes arguments of the signature that it was lowered for.

    `compiled` is the `jax.stages.Compiled` underneath. Calling raises `TypeError` for another structure or other
    static leaves, or another signature.
    """

    compiled: jax.stages.Compiled
    _wrapper: "_CachedFilterJit"
    _entry: Entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on arguments as the function takes them."""
        entry, donated, kept = self._wrapper._program.find(args, kwargs)
        if entry is not self._entry:
            raise TypeError("compiled for arguments of another structure, or with other static leaves")
        return self.compiled(donated, kept, self._wrapper._own).tree()


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program lowered ahead of time. `lowered` is the `jax.stages.Lowered` underneath."""

    lowered: jax.stages.Lowered
    _wrapper: "_CachedFilterJit"
    _entry: Entry

    def as_text(self) -> str:
        """The program as StableHLO."""
        return self.lowered.as_text()

    def compile(self, compiler_options: dict[str, str | bool] | None = None) -> Compiled:
        """Compiles the program for the devices of its arguments."""
        return Compiled(self.lowered.compile(compiler_options=compiler_options), self._wrapper, self._entry)


class _CachedFilterJit(eqx.Module):
    """The wrapped function. A module, as `filter_jit`'s is, so that transformations see the arrays of `fn`."""

    _own: tuple[Any, ...]
    _structure: Structure = eqx.field(static=True)
    _program: Program = eqx.field(static=True)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._structure.join(self._own)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        program = self._program
        entry, donated, kept = program.find(args, kwargs)
        if not program.donation.quiet:
            return entry.jitted(donated, kept, self._own).tree()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            return entry.jitted(donated, kept, self._own).tree()

    def __repr__(self) -> str:
        return f"cached_filter_jit({self.__wrapped__!r})"

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else eqx.Partial(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the program for these arguments without running it."""
        entry, donated, kept = self._program.find(args, kwargs)
        return Lowered(entry.jitted.lower(donated, kept, self._own), self, entry)


def _program(fn: Callable[..., Any], structure: Structure, donate: str) -> Program:
    signature, donation = inspect.signature(fn), _DONATIONS[donate]
    if isinstance(fn, types.FunctionType):
        reference = weakref.ref(fn)  # Alive whenever this is called: the wrapper that calls holds the function.
        programs = _FUNCTIONS.setdefault(fn, {})
        if donate not in programs:
            programs[donate] = Program(lambda own: cast(Any, reference()), _name(fn), signature, donation)
        return programs[donate]
    return _CALLABLES.get((structure, donate), lambda: Program(structure.join, _name(fn), signature, donation))


def _name(fn: Any) -> str:
    """What compile events call it: the innermost function's name, or the class of a callable object."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return getattr(fn, "__name__", type(fn).__name__)
