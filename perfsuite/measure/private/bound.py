"""What a callable calls, where it is no function of its own: a partial, a bound method, or an object with `__call__`.

JAX knows the jitted function alone, with all of its arguments: for it a method's object is the first of them.
"""

import functools
import types
from typing import Any

from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.frameworks import is_bound_method, is_filter_jit, is_partial

_MOST_LAYERS = 100
"""A partial that holds itself must not hang."""

Bound = tuple[Any, tuple, dict[str, Any]]
"""A function with the arguments that are bound to it."""


def is_jitted(fn: Any) -> bool:
    """Whether `fn` is what `jax.jit`, `filter_jit` or `nnx.jit` returned, so that its arguments are the program's."""
    return is_filter_jit(fn) or jax_stack.static_arguments(fn) is not None


def unbound(fn: Any) -> Bound | None:
    """What calling `fn` calls, with the arguments that this adds in front; None where `fn` adds none.

    Of objects these are only those whose class jits `__call__`.
    """
    if isinstance(fn, types.MethodType) or is_bound_method(fn):
        return fn.__func__, (fn.__self__,), {}
    if isinstance(fn, functools.partial) or is_partial(fn):
        # A partial with a `.lower` of its own is a jitted function to whoever made it.
        return None if hasattr(fn, "lower") else (fn.func, tuple(fn.args), dict(fn.keywords))
    called = type(fn).__call__
    return (called, (fn,), {}) if is_jitted(called) and not hasattr(fn, "lower") else None


def behind_bound(fn: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Bound:
    """The function behind partials, bound methods and objects, with all of its arguments."""
    kwargs = kwargs or {}
    for _ in range(_MOST_LAYERS):
        if (found := unbound(fn)) is None:
            break
        fn, args, kwargs = found[0], (*found[1], *args), {**found[2], **kwargs}
    return fn, args, kwargs


def calls_the_same(one: Any, other: Any) -> bool:
    """Whether two callables are one: a bound method is made anew each time that somebody asks for it."""
    if one is other:
        return True
    (fn, args, kwargs), (other_fn, other_args, other_kwargs) = behind_bound(one), behind_bound(other)
    return (
        fn is other_fn
        and len(args) == len(other_args)
        and kwargs.keys() == other_kwargs.keys()
        and all(mine is its for mine, its in zip(args, other_args, strict=True))
        and all(kwargs[name] is other_kwargs[name] for name in kwargs)
    )
