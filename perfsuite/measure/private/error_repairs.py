"""What an error leaves in JAX's caches of calls and traces, and how to remove it: no public API does.

When JAX moves a name, what an error left is not repaired, and `tests/private/test_error_repairs.py` fails.
"""

import contextlib
import functools
import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from jax._src import pjit, tree_util
from jax._src.interpreters import partial_eval, pxla
from jax._src.lib import _jax

from perfsuite.measure.private.jax_stack import TRACING


@contextlib.contextmanager
def _unless_moved() -> Iterator[None]:
    """End what uses a name that JAX has moved, or a function of JAX's that takes other arguments now."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        yield


def repairs(frame: FrameType) -> list[Callable[[], None]]:
    """What makes JAX as it was before, after an error has ended the calls and traces on the stack.

    A call that raises marks its signature, in a cache that all jitted objects of one function share. Every later call
    with it takes the slow path: some 140 Python calls instead of 1 (jax 0.10.2). The repair drops no compiled program:
    each signature takes the slow path once more. A trace that raises is never cached any more. To repair that, the
    traces of the function are dropped, unless it has others.
    """
    found: list[Callable[[], None]] = []
    for each, _ in traceback.walk_stack(frame):
        with _unless_moved():
            if (repair := _repair_of(each)) is not None:
                found.append(repair)
    return found


def _repair_of(frame: FrameType) -> Callable[[], None] | None:
    place = frame.f_globals.get("__name__"), frame.f_code.co_name
    if place not in {(pjit.__name__, "cache_miss"), (pjit.__name__, "_pjit_call_impl"), *TRACING}:
        return None  # Reading the locals of a user's frame would keep them alive.
    held = frame.f_locals
    if place == (pjit.__name__, "cache_miss"):
        return functools.partial(_repair_call, weakref.ref(held["fun"]), held["jit_info"])
    if place == (pjit.__name__, "_pjit_call_impl"):  # of a call under jax.grad or jax.vmap
        return functools.partial(_repair_inner_call, weakref.ref(held["f"]), held["cache_key"])
    return None if has_other_traces(frame) else functools.partial(_repair_trace, weakref.ref(held["fun"]))


def has_other_traces(frame: FrameType) -> bool:
    """Whether JAX's cache has other traces of the function that is traced.

    An error that ends a trace spoils its place in the cache, which cannot be mended without these.
    """
    function = frame.f_locals.get("fun")
    with _unless_moved():
        references = (key[0] for key in partial_eval.trace_to_jaxpr.cache_keys())
        return any(each() == function for held in references for each in (held if isinstance(held, tuple) else (held,)))
    return False


@_unless_moved()
def _repair_call(reference: "weakref.ref[Any]", info: Any) -> None:
    function = reference()
    if function is None:
        return
    pjit._cpp_pjit(function, info)._clear_cache()
    # After jax.clear_caches(), objects that were jitted before have caches of their own. A function does not know them.
    # Looking through all objects takes 25 ms, only after an error.
    for jitted in gc.get_referrers(function):
        if type(jitted).__name__ == "PjitFunction":
            jitted._clear_cache()


@_unless_moved()
def _repair_inner_call(reference: "weakref.ref[Any]", key: Any) -> None:
    if (function := reference()) is not None:
        cache = pjit._get_cpp_global_cache(key.contains_explicit_attributes)
        registry, place = tree_util.dispatch_registry, pxla.cc_shard_arg
        _jax.pjit("perfsuite", function, function, [], [], key, registry, place, cache)._clear_cache()


@_unless_moved()
def _repair_trace(reference: "weakref.ref[Any]") -> None:
    if (function := reference()) is not None:
        partial_eval.trace_to_jaxpr.evict_weakref(function)
