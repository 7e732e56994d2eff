"""`call(fn, *args)`: a function with its arguments, ready to run again and again."""

import collections
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from perfsuite.measure.errors import MeasurementError

_Function = TypeVar("_Function", bound=Callable)

Place: TypeAlias = int | str
"""Of an output or an argument: its number, or its name."""

_SLOTS = 1 << 15
"""Of 8 bytes. A chunk is twice as large as the power of two that holds the frame: so there is as much room again, 256
KiB, for a thousand frames of the code under test. No usual chunk has that much left, so it is always a new one."""
_NOT_BEGUN = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


@dataclasses.dataclass(eq=False, repr=False)
class Call:
    """A function with its arguments. Make one with `call`.

    After each run of a call that carries, the first `carry` outputs replace the first `carry` arguments, or those that
    `carry` maps replace theirs. So a train state that the function donates is never used twice, and is not copied.
    """

    fn: Callable
    args: tuple
    kwargs: dict[str, Any]
    carry: int | Mapping[Place, Place]

    @property
    def label(self) -> str:
        """The function's name, as it appears in metrics and messages."""
        return label_of(self.fn)

    def state(self) -> Iterator[tuple[str, Any]]:
        """The leaves of the arguments that outputs replace, with their paths."""
        places = range(self.carry) if isinstance(self.carry, int) else self.carry.values()
        args = tuple(arg if place in places else None for place, arg in enumerate(self.args))
        return leaves_with_paths(args, {name: arg for name, arg in self.kwargs.items() if name in places})

    def take_over(self, other: "Call") -> None:
        """Go on with the arguments that another call of the same function has by now."""
        self.args, self.kwargs = other.args, other.kwargs

    def carry_on(self, outputs) -> None:
        """Feed what of `outputs` is carried back as arguments of the next run.

        Raises `MeasurementError` for outputs of a function that has not begun to run.
        """
        __tracebackhide__ = True
        if isinstance(outputs, _NOT_BEGUN):
            refuse_not_begun(outputs, self.label)
        if any(isinstance(value, Iterator) for value in (*self.args, *self.kwargs.values())):
            refuse_ended(self.args, self.kwargs, self.label)
        if self.carry:
            self.args, self.kwargs = carried(outputs, self.args, self.kwargs, self.carry, self.label)

    def run(self):
        """Run once, without waiting for the device, and return the outputs."""
        __tracebackhide__ = True
        outputs = self.fn(*self.args, **self.kwargs)
        self.carry_on(outputs)
        return outputs

    def __repr__(self) -> str:
        carried = f", carry={self.carry}" if self.carry else ""
        return f"call({self.label}, {len(self.args)} arguments{carried})"


def call(fn: Callable, /, *args, carry: int | Mapping[Place, Place] = 0, **kwargs) -> Call:
    """A function with its arguments, for `perf.time`, `perf.compare` and the other instruments.

    `carry=n` feeds the first n outputs back as the first n arguments: `call(step, model, opt_state, batch, carry=2)`
    times a train step that donates `model` and `opt_state`. With `carry=1`, an output that is not a plain tuple or list
    is carried whole.

    `carry={0: 1, "state": "opt_state"}` says which output becomes which argument. An output is named by its place in a
    plain tuple or list (any other output is place 0), or by its key or attribute; an argument by its place, or by its
    keyword.

    Raises `TypeError` when `fn` is not callable, and `ValueError` when `carry` is negative, more than the number of
    positional arguments, or names an argument that is not there, or one twice.
    """
    if not callable(fn):
        raise TypeError(
            f"call(fn, *args): fn must be callable, got {type(fn).__name__}; pass the function itself, not its result"
        )
    if isinstance(carry, Mapping):
        _check_places(carry, args, kwargs, label_of(fn))
        return Call(fn, args, kwargs, dict(carry))
    if isinstance(carry, bool) or not isinstance(carry, int):
        raise TypeError(
            f"call({label_of(fn)}, carry=...): carry must be an int, or {{output: argument}}, got {carry!r}"
        )
    if not 0 <= carry <= len(args):
        raise ValueError(
            f"call({label_of(fn)}, carry={carry}): carry must be between 0 and the {len(args)} positional arguments"
        )
    return Call(fn, args, kwargs, carry)


def _check_places(carry: Mapping[Place, Place], args: tuple, kwargs: Mapping[str, Any], label: str) -> None:
    __tracebackhide__ = True
    what, arguments = f"call({label}, carry={dict(carry)})", (*range(len(args)), *kwargs)
    for place in (*carry, *carry.values()):
        if isinstance(place, bool) or not (isinstance(place, str) or (isinstance(place, int) and place >= 0)):
            raise TypeError(f"{what}: an output or an argument is a place, from 0, or a name, got {place!r}")
    for argument, times in collections.Counter(carry.values()).items():
        if times > 1:
            raise ValueError(f"{what}: two outputs become argument {argument!r}")
        if argument not in arguments:
            have = ", ".join(map(repr, arguments))
            raise ValueError(f"{what}: no argument is passed as {argument!r}; those of this call: {have}")


def checked(value: Call, instrument: str) -> Call:
    """`value`. Raises `TypeError`, naming the instrument, for anything but a `call(...)`.

    Raises `MeasurementError` for an argument that JAX cannot flatten.
    """
    __tracebackhide__ = True
    if not isinstance(value, Call):
        raise TypeError(f"{instrument} takes call(fn, *args), got {type(value).__name__}: from perfsuite import call")
    for name, argument in (*((f"args[{place}]", each) for place, each in enumerate(value.args)), *value.kwargs.items()):
        check_flattens(f"{instrument}: {name}", argument, f"close over it: call(lambda: {value.label}(...))")
    return value


def check_flattens(name: str, value: Any, to_do: str) -> None:
    """Raise `MeasurementError` for a pytree that JAX cannot flatten, such as an object that does so only while it runs.

    `name` says where it stands, `to_do` what to do.
    """
    __tracebackhide__ = True
    import jax  # as below

    try:
        jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, Iterator))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        kind = type(value).__name__
        raise MeasurementError(
            f"{name}, of type {kind}, is a pytree that cannot be flattened ({why}): {to_do}"
        ) from None


def label_of(fn: Callable) -> str:
    """The name of a function as a person would say it: `step`, also behind `partial`, `jax.jit` and `filter_jit`."""
    while isinstance(fn, functools.partial) or (hasattr(fn, "__wrapped__") and not getattr(fn, "__name__", None)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "lambda" if name == "<lambda>" else name


def refuse_not_begun(outputs: Any, label: str) -> None:
    """Raise `MeasurementError` for a generator or a coroutine: the call has run none of its code, so it seems free."""
    __tracebackhide__ = True
    name = "fn" if label == "lambda" else label
    if inspect.isgenerator(outputs):
        kind, instead = "a generator", f"call(lambda *args: list({name}(*args)), ...)"
    elif inspect.iscoroutine(outputs):
        outputs.close()  # else Python warns that it was never awaited
        kind, instead = "a coroutine", f"call(lambda *args: asyncio.run({name}(*args)), ...)"
    elif inspect.isasyncgen(outputs):
        drain = f"async def drain(*args): return [each async for each in {name}(*args)]"
        kind, instead = "an async generator", f"call(lambda *args: asyncio.run(drain(*args)), ...) with {drain}"
    else:
        return
    raise MeasurementError(
        f"{label} returns {kind}, whose code has not run when the call returns, so nothing of it would be measured. "
        f"Run it to its end in the call: {instead}"
    )


def refuse_ended(args: tuple, kwargs: Mapping[str, Any], label: str) -> None:
    """Raise `MeasurementError` for a generator or an iterator that a run has taken to its end: the next gets nothing.

    Only of generators and of Python's own iterators, such as those over lists, can that be told: a loader that is one
    may have no length, or one that says what is in its buffer.
    """
    __tracebackhide__ = True
    for name, value in (*((f"args[{place}]", arg) for place, arg in enumerate(args)), *kwargs.items()):
        if not isinstance(value, Iterator):
            continue
        closed = inspect.isgenerator(value) and inspect.getgeneratorstate(value) == inspect.GEN_CLOSED
        if closed or (type(value).__module__ == "builtins" and operator.length_hint(value, 1) == 0):
            raise MeasurementError(
                f"{label} takes {name}, a {type(value).__name__}, to its end, and each run gets the same one: later "
                "runs find nothing in it. Pass a list, or make it in the call"
            )


def carried(
    outputs: Any, args: tuple, kwargs: dict[str, Any], carry: int | Mapping[Place, Place], label: str = "fn"
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of the next run: those that `carry` names are outputs, the others stay.

    Several outputs are a plain tuple or list. A named tuple is one output, because many train states are one.
    """
    if isinstance(carry, int):
        return _first_carried(outputs, args, carry, label), kwargs
    places = {argument: _output_at(outputs, output, label) for output, argument in carry.items()}
    args = tuple(places.get(place, arg) for place, arg in enumerate(args))
    return args, {name: places.get(name, arg) for name, arg in kwargs.items()}


def _output_at(outputs: Any, place: Place, label: str) -> Any:
    several = type(outputs) in (tuple, list)
    if isinstance(outputs, Mapping) and place in outputs:
        return outputs[place]
    if isinstance(place, str) and not several and hasattr(outputs, place):
        return getattr(outputs, place)
    if isinstance(place, int) and place < (len(outputs) if several else 1):
        return outputs[place] if several else outputs
    have = f"a {type(outputs).__name__} of {len(outputs)}" if several else f"one {type(outputs).__name__}"
    names = f" with {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else ""
    raise ValueError(f"call({label}, carry=...): no output {place!r}; the function returns {have}{names}")


def _first_carried(outputs: Any, args: tuple, carry: int, label: str) -> tuple:
    several = type(outputs) in (tuple, list)
    if carry == 1 and not several:
        return (outputs, *args[1:])
    if not several or len(outputs) < carry:
        got = str(len(outputs)) if several else f"one {type(outputs).__name__}"
        if isinstance(outputs, tuple) and not several:
            name = "fn" if label == "lambda" else label
            got += f", and a named tuple is one output; for its fields: call(lambda *args: tuple({name}(*args)), ...)"
        raise ValueError(f"call({label}, carry={carry}) needs {carry} outputs, got {got}")
    first, state = outputs[0], args[0]
    if carry == 1 and type(state) is type(outputs) and type(first) is not type(state) and len(outputs) == len(state):
        kind = type(state).__name__
        raise ValueError(
            f"call({label}, carry=1): the function returns a {kind} of {len(outputs)}, which is several outputs, so "
            f"the first of them, a {type(first).__name__}, would replace args[0], a {kind} of {len(state)}. To carry "
            f"the whole {kind}, return it in a tuple: return (state,)"
        )
    return (*outputs[:carry], *args[carry:])


def leaves_with_paths(
    args: tuple, kwargs: Mapping[str, Any] | None = None, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    """The leaves of a call's arguments with their paths, such as `args[0]['kernel']`."""
    import jax  # `from perfsuite import call` does without it

    for base, value in (("args", args), ("kwargs", kwargs or {})):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_leaf):
            yield f"{base}{jax.tree_util.keystr(path)}", leaf


def text_of_array(value: Any) -> str:
    """Shape and dtype of an array or of its description: "float32[8,128]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def with_room(fn: _Function) -> _Function:
    """Decorate a function that samples calls, so that the depth at which it runs does not decide what they take.

    CPython keeps the frames of Python functions in chunks of 16 KiB. A call whose frame does not fit into the last one
    maps a new one into memory, and returning from it unmaps that. Where the code under test makes small calls in a loop
    just there, each of them takes 7 us in place of 0.05, with two system calls and a page fault (CPython 3.11, 3.12 and
    3.13; depth 141 of a small recursive function and no other of the first 400).

    The function says that it needs a larger frame than it does: so what it calls has a large chunk to itself, most of
    which nobody touches.
    """
    fn.__code__ = fn.__code__.replace(co_stacksize=_SLOTS)
    return fn
