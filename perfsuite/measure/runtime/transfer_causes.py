"""Why something moves between host and device, in words, read off the stack and the arguments of a call."""

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.call import label_of
from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.description import text_of_array

Words = tuple[str, str]
"""Cause and advice."""

UNKNOWN: Words = ("no cause known", "")

_BEHIND = ("jax", "jaxlib", "numpy", "scipy")
"""Their frames lie between the user's line and the transfer."""

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
    "_item": "x.item()",
    "device_get": "jax.device_get",
    "device_put": "jax.device_put to another sharding",
    "tobytes": "x.tobytes()",
    "tolist": "x.tolist()",
}
"""The function of JAX that reads an array, and what the user wrote."""

_READ = "np.asarray(x), or a NumPy function of x"
_READ_ADVICE = "the host waits for it; keep it on the device, or fetch it every so many steps with jax.device_get"
_PUT_ADVICE = "put it on the device before the step, with jax.device_put"
_NUMBER_ADVICE = f"{_PUT_ADVICE}, let the step return it, or make it static if it never changes"
_EAGER_ADVICE = "move it into a jitted function"


def said(words: Callable[[], Words]) -> Words:
    """The words. Where the stack is unlike what is known, a transfer is still one."""
    try:
        return words()
    except Exception:
        return UNKNOWN


def line(frame: FrameType) -> str:
    """The user's `file:line`, behind JAX and NumPy."""
    found: FrameType | None = frame
    while found is not None and found.f_back is not None and _module(found) in _BEHIND:
        found = found.f_back
    return callsite.location(found or frame)


def library_line(frame: FrameType) -> str:
    """The `file:line` of an installed library, such as "flax/nnx/nn/attention.py:660", whose operation it was.

    "" where JAX and NumPy alone lie between the transfer and the user's line, or a wrapper of a jitted function does.
    """
    found: FrameType | None = frame
    while found is not None and _module(found) in _BEHIND:
        found = found.f_back
    if found is None or callsite.wraps_call(found):
        return ""
    name, filename = found.f_globals.get("__name__") or "", found.f_code.co_filename
    if "-packages" not in filename or not callsite.belongs_to_library(name, filename):
        return ""
    return f"{filename.rpartition('-packages')[2][1:]}:{found.f_lineno}"


def of_read(frame: FrameType, *, explicit: bool) -> Words:
    """The outermost thing that has a name of its own between the user's line and an array that is read."""
    read = "x.copy_to_host_async()" if explicit else _READ
    found: FrameType | None = frame
    while found is not None and _module(found) in _BEHIND:
        name = found.f_code.co_qualname.removesuffix(".<locals>.<genexpr>").rpartition(".")[2]
        if name in _READS:
            read = _READS[name]
        elif _module(found) == "numpy" and hasattr(np, name):
            read = f"np.{name}(x)"
        found = found.f_back
    return read, "" if explicit else _READ_ADVICE


def of_put(moved: str, frame: FrameType, *, explicit: bool) -> Words:
    """What moves a host value outside JAX's fast path: the argument of a call, or an operation."""
    if explicit:
        return "jax.device_put", ""
    site = callsite.read(frame)
    label = label_of(site.function) if site.function is not None else site.through
    if site.through or site.eager or site.function is None:
        return f"a host value in the operation `{_operation(frame, label)}` outside jit", _EAGER_ADVICE
    # Which of several that are alike moves now cannot be told.
    leaves = [(path, leaf) for path, leaf in _leaves_with_paths(site.args, site.kwargs) if _is_of_host(leaf)]
    alike = [(path, leaf) for path, leaf in leaves if text_of_array(jax.typeof(leaf)) == moved]
    if not alike:
        return f"`{label}` was called with a host value", _PUT_ADVICE
    return _of_argument(label, " or ".join(path for path, _ in alike), alike[0][1])


def of_call(jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> Iterator[tuple[str, Words]]:
    """What a call on JAX's fast path moves to the device, and why: each argument of the host that the program reads."""
    moved = _host_leaves(args, kwargs, _jax_internals.static_arguments(jitted))
    if not moved:
        return
    used = _used(jitted, args, kwargs)
    # JAX makes one without a name where a transformation such as jax.vmap runs an operation outside jit.
    nameless = not getattr(jitted, "__name__", "")
    eager = nameless or _jax_internals.belongs_to_jax(getattr(jitted, "__wrapped__", jitted))
    label = "jit" if nameless else label_of(jitted)
    for place, path, leaf in moved:
        if used is not None and place < len(used) and not used[place]:
            continue
        if eager:
            words = f"{_kind(leaf)} in the operation `{_operation(frame, label)}` outside jit", _EAGER_ADVICE
        else:
            words = said(lambda path=path, leaf=leaf: _of_passed(label, path, leaf, frame))  # type: ignore[misc]
        yield text_of_array(jax.typeof(leaf)), words


def _of_passed(label: str, path: str, leaf: Any, frame: FrameType) -> Words:
    """The argument as the user passed it, where a wrapper such as `filter_jit` is between."""
    site = callsite.read(frame)
    for passed, value in _leaves_with_paths(site.args, site.kwargs):
        if value is leaf and site.function is not None:
            return _of_argument(label_of(site.function), passed, leaf)
    return _of_argument(label, path, leaf)


def _of_argument(label: str, path: str, leaf: Any) -> Words:
    advice = _NUMBER_ADVICE if type(leaf) in _NUMBERS else _PUT_ADVICE
    return f"`{label}` was called with {_kind(leaf)} at {path}", advice


def _kind(leaf: Any) -> str:
    if type(leaf) in _NUMBERS:
        return f"a Python {type(leaf).__name__}"
    return "a NumPy array" if isinstance(leaf, np.ndarray | np.generic) else "a host value"


def _operation(frame: FrameType, otherwise: str) -> str:
    """The name by which the user called an operation, where the stack has it: `asarray` rather than `stage`."""
    operation = otherwise
    found: FrameType | None = frame
    while found is not None and _module(found) == "jax":
        name = found.f_code.co_name
        if any(hasattr(module, name) for module in (jnp, jax.random, jax.nn)):
            operation = name
        found = found.f_back
    return operation


def _module(frame: FrameType) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]


def _leaves_with_paths(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for base, value in (("args", args), ("kwargs", kwargs)):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield f"{base}{jax.tree_util.keystr(path)}", leaf


def _is_of_host(leaf: Any) -> bool:
    # JAX wraps constants in a type of its own that is like a NumPy array.
    return not isinstance(leaf, jax.Array) and (
        isinstance(leaf, _NUMBERS) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))
    )


def any_of_host(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call was given anything of the host. False where its arguments cannot be taken apart."""
    try:
        traced = _traced(args, kwargs, _jax_internals.static_arguments(jitted))
        return any(_is_of_host(leaf) for leaf in jax.tree.leaves(traced))
    except Exception:
        return False


def _traced(
    args: tuple, kwargs: dict[str, Any], static: tuple[tuple[int, ...], tuple[str, ...]] | None
) -> tuple[tuple, dict[str, Any]]:
    """The arguments without the static ones."""
    numbers, names = static or ((), ())
    left_out = {number % len(args) for number in numbers if -len(args) <= number < len(args)}
    dynamic = tuple(None if i in left_out else arg for i, arg in enumerate(args))
    return dynamic, {name: value for name, value in kwargs.items() if name not in names}


def _host_leaves(
    args: tuple, kwargs: dict[str, Any], static: tuple[tuple[int, ...], tuple[str, ...]] | None
) -> list[tuple[int, str, Any]]:
    """The leaves that lie on the host: their places among the traced leaves, their paths, and themselves."""
    # The usual call has only arrays, and should cost no paths.
    if not any(_is_of_host(leaf) for leaf in jax.tree.leaves((args, kwargs))):
        return []
    leaves = enumerate(_leaves_with_paths(*_traced(args, kwargs, static)))
    return [(place, path, leaf) for place, (path, leaf) in leaves if _is_of_host(leaf)]


def _used(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> list[bool] | None:
    """Which of the traced leaves the program reads, as JAX moves no other; None where that cannot be told."""
    try:
        jaxpr = jitted.trace(*args, **kwargs).jaxpr.jaxpr  # it was traced: JAX answers from its cache
    except Exception:
        return None
    needed = {id(out) for out in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(out) in needed for out in equation.outvars):
            needed.update(map(id, equation.invars))
    return [id(variable) in needed for variable in jaxpr.invars]
