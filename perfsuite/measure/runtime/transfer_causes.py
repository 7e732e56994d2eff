"""Why something moves between host and device, read from the stack and from the arguments of a call."""

import functools
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.arguments import leaves_with_paths
from perfsuite.measure.call import label_of
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.signature import with_parameter
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.library_functions import ITEM

Words = tuple[str, str]
"""Cause and advice."""

UNKNOWN: Words = ("no cause known", "")

_BEHIND = ("jax", "jaxlib", "numpy", "scipy")
"""Packages whose frames lie between the user's line and the transfer."""

_NUMBERS = (bool, int, float, complex)

_READS = {
    "__bool__": "bool(x), as in `if x:` or `while x < y:`",
    "__complex__": "complex(x)",
    "__float__": "float(x)",
    "__format__": "an f-string or format(x)",
    "__index__": "an index, or range(x)",
    "__int__": "int(x)",
    "__iter__": "iteration over an array that lies on several devices",
    "__reduce__": "pickle of x",
    "__repr__": "print(x) or repr(x)",
    "__str__": "print(x) or str(x)",
    "device_get": "jax.device_get",
    "device_put": "jax.device_put to another sharding",
    "item": "x.item()",
    "tobytes": "x.tobytes()",
    "tolist": "x.tolist()",
}
"""For each function of JAX that reads an array, what the user wrote."""

_READ = "np.asarray(x), or a NumPy function of x"
_READ_ADVICE = "the host waits for it; keep it on the device, or fetch it every so many steps with jax.device_get"
_PUT_ADVICE = "put it on the device before the step, with jax.device_put"
_NUMBER_ADVICE = f"{_PUT_ADVICE}, let the step return it, or make it static if it never changes"
_EAGER_ADVICE = "move it into a jitted function"


def words_or_unknown(words: Callable[[], Words]) -> Words:
    """The words. A transfer counts even if nothing on the stack explains it."""
    try:
        return words()
    except Exception:
        return UNKNOWN


def lines(frame: FrameType) -> tuple[str, str]:
    """The user's `file:line`, and the installed package's whose operation it was, as "flax/nnx/nn/attention.py:660".

    The second is "" where only JAX and NumPy, or a wrapper of a jitted function, lie between the user and the transfer.
    """
    between, outer = _split(frame)
    location = callsite.location(outer or between[-1])
    if outer is None or callsite.wraps_call(outer) or not callsite.is_installed(outer):
        return location, ""
    return location, callsite.line_of(outer)


def of_read(frame: FrameType, *, explicit: bool) -> Words:
    """Why an array is read: the outermost call between the user's line and the read that has a name."""
    read = "x.copy_to_host_async()" if explicit else _READ
    for found in _split(frame)[0]:
        name = found.f_code.co_qualname.removesuffix(".<locals>.<genexpr>").rpartition(".")[2]
        name = "item" if ITEM.runs(found) else name
        if name in _READS:
            read = _READS[name]
        elif _module(found) == "numpy" and hasattr(np, name):
            read = f"np.{name}(x)"
    return read, "" if explicit else _READ_ADVICE


def of_put(moved: str, frame: FrameType, *, explicit: bool) -> Words:
    """Why a host value moves outside JAX's fast path: it is an argument of a call, or of an operation."""
    if explicit:
        return "jax.device_put", ""
    site = callsite.on_stack(frame)
    label = label_of(site.function) if site.function is not None else site.through
    if site.through or site.eager or site.function is None:
        return f"a host value in the operation `{_operation(frame, label)}` outside jit", _EAGER_ADVICE
    # Nothing tells which of several equal arguments moves now.
    leaves = [(path, leaf) for path, leaf in leaves_with_paths(site.args, site.kwargs) if _is_of_host(leaf)]
    alike = [(path, leaf) for path, leaf in leaves if text_of_array(jax.typeof(leaf)) == moved]
    if not alike:
        return f"`{label}` was called with a host value", _PUT_ADVICE
    return _of_argument(site.function, [path for path, _ in alike], alike[0][1])


def of_call(jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> list[tuple[str, Words]]:
    """What a call on JAX's fast path moves to the device, and why: each host argument that the program reads."""
    try:
        traced = jax_stack.without_statics(args, kwargs, jax_stack.static_arguments(jitted))
        if not any(map(_is_of_host, jax.tree.leaves(traced))):
            return []
    except Exception:  # the call has gone well, so no tree of its arguments may make it fail here
        return []
    try:
        return list(_of_leaves(jitted, args, kwargs, traced, frame))
    except Exception:  # a tree without paths, or a leaf without a description
        return [("a host value", UNKNOWN)]


def _of_leaves(
    jitted: Any, args: tuple, kwargs: dict[str, Any], traced: tuple[tuple, dict[str, Any]], frame: FrameType
) -> Iterator[tuple[str, Words]]:
    used = _used(jitted, args, kwargs)
    # JAX makes a function without a name where a transformation such as jax.vmap runs an operation outside jit.
    nameless = not getattr(jitted, "__name__", "")
    eager = nameless or jax_stack.belongs_to_jax(getattr(jitted, "__wrapped__", jitted))
    label = "jit" if nameless else label_of(jitted)
    for place, (path, leaf) in enumerate(leaves_with_paths(*traced)):
        if not _is_of_host(leaf) or (used is not None and place < len(used) and not used[place]):
            continue
        if eager:
            words = f"{_kind(leaf)} in the operation `{_operation(frame, label)}` outside jit", _EAGER_ADVICE
        else:
            words = words_or_unknown(functools.partial(_of_passed, jitted, path, leaf, frame))
        yield text_of_array(jax.typeof(leaf)), words


def _of_passed(jitted: Any, path: str, leaf: Any, frame: FrameType) -> Words:
    """The argument as the user passed it, also through a wrapper such as `filter_jit`."""
    site = callsite.on_stack(frame)
    for passed, value in leaves_with_paths(site.args, site.kwargs):
        if value is leaf and site.function is not None:
            return _of_argument(site.function, [passed], leaf)
    return _of_argument(jitted, [path], leaf)


def _of_argument(function: Any, paths: list[str], leaf: Any) -> Words:
    advice = _NUMBER_ADVICE if type(leaf) in _NUMBERS else _PUT_ADVICE
    places = " or ".join(with_parameter(path, function) for path in paths)
    return f"`{label_of(function)}` was called with {_kind(leaf)} at {places}", advice


def _kind(leaf: Any) -> str:
    if type(leaf) in _NUMBERS:
        return f"a Python {type(leaf).__name__}"
    return "a NumPy array" if isinstance(leaf, np.ndarray | np.generic) else "a host value"


def _operation(frame: FrameType, otherwise: str) -> str:
    """The name by which the user called an operation, if the stack has it: `asarray` rather than `stage`."""
    operation = otherwise
    for found in _split(frame)[0]:
        name = found.f_code.co_name
        if _module(found) == "jax" and any(hasattr(module, name) for module in (jnp, jax.random, jax.nn)):
            operation = name
    return operation


def _split(frame: FrameType) -> tuple[list[FrameType], FrameType | None]:
    """The frames of JAX and NumPy around a transfer, innermost first, and the first frame of other code."""
    between: list[FrameType] = []
    found: FrameType | None = frame
    while found is not None and _module(found) in _BEHIND:
        between.append(found)
        found = found.f_back
    return between, found


def _module(frame: FrameType) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]


def _is_of_host(leaf: Any) -> bool:
    # JAX wraps constants in a type of its own that is like a NumPy array.
    return not isinstance(leaf, jax.Array) and (
        isinstance(leaf, _NUMBERS) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))
    )


def _used(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> list[bool] | None:
    """Which of the traced leaves the program reads, because JAX moves no other; None if unknown."""
    try:
        jaxpr = jitted.trace(*args, **kwargs).jaxpr.jaxpr  # JAX has traced it before, and answers from its cache
    except Exception:
        return None
    needed = {id(out) for out in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(out) in needed for out in equation.outvars):
            needed.update(map(id, equation.invars))
    return [id(variable) in needed for variable in jaxpr.invars]
