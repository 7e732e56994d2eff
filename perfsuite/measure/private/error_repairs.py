"""What an error leaves in JAX's caches of calls and traces, and how to remove it: no public API does.

Where JAX has moved a name, what an error left is not repaired.
"""

import contextlib
import functools
import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from perfsuite.measure.private.names import Attribute, Frame, Moved, Name

_MISS = Frame("jax._src.pjit", "cache_miss", ("fun", "jit_info"))
_INNER_CALL = Frame("jax._src.pjit", "_pjit_call_impl", ("f", "cache_key"))
"""Of a call under jax.grad or jax.vmap."""
_CPP_JIT = Name("jax._src.pjit", "_cpp_pjit")
_CLEAR = Attribute("jax._src.pjit", "_clear_cache")
_CPP_CACHE = Name("jax._src.pjit", "_get_cpp_global_cache")
_EXPLICIT = Attribute("jax._src.pjit", "contains_explicit_attributes")
_REGISTRY = Name("jax._src.tree_util", "dispatch_registry")
_PLACE = Name("jax._src.interpreters.pxla", "cc_shard_arg")
_CPP_FUNCTION = Name("jax._src.lib", "_jax.pjit")
_TRACING = (
    Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr", ("fun",), until="0.11.1"),
    Frame("jax._src.interpreters.partial_eval", "trace_to_jaxpr_nocache", ("fun",), since="0.11.0"),
)
_EVICT = Name("jax._src.interpreters.partial_eval", "trace_to_jaxpr.evict_weakref")
_TRACE_KEYS = Name("jax._src.interpreters.partial_eval", "trace_to_jaxpr.cache_keys")


@contextlib.contextmanager
def _unless_moved() -> Iterator[None]:
    """End what uses a name that JAX has moved, or a function of JAX's that takes other arguments now."""
    with contextlib.suppress(Moved, AttributeError, KeyError, TypeError):
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
    # Only the locals of JAX's frames are read: those of a user's frame would be kept alive.
    if _MISS.runs(frame):
        return functools.partial(_repair_call, weakref.ref(_MISS.local(frame, "fun")), _MISS.local(frame, "jit_info"))
    if _INNER_CALL.runs(frame):
        function, key = (_INNER_CALL.local(frame, name) for name in ("f", "cache_key"))
        return functools.partial(_repair_inner_call, weakref.ref(function), key)
    if not any(each.runs(frame) for each in _TRACING) or has_other_traces(frame):
        return None
    return functools.partial(_repair_trace, weakref.ref(_traced(frame)))


def has_other_traces(frame: FrameType) -> bool:
    """Whether JAX's cache has other traces of the function that is traced.

    An error that ends a trace spoils its place in the cache, which cannot be mended without these.
    """
    function = _traced(frame)
    with _unless_moved():
        references = (key[0] for key in _TRACE_KEYS.get()())
        return any(each() == function for held in references for each in (held if isinstance(held, tuple) else (held,)))
    return False


def _traced(frame: FrameType) -> Any:
    """The function that a frame traces."""
    return next((each.local(frame, "fun") for each in _TRACING if each.runs(frame)), None)


@_unless_moved()
def _repair_call(reference: "weakref.ref[Any]", info: Any) -> None:
    function = reference()
    if function is None:
        return
    jitted = _CPP_JIT.get()(function, info)
    _clear(jitted)
    # After jax.clear_caches(), objects that were jitted before have caches of their own. A function does not know them.
    # Looking through all objects takes 25 ms, only after an error.
    for other in gc.get_referrers(function):
        if isinstance(other, type(jitted)):
            _clear(other)


@_unless_moved()
def _repair_inner_call(reference: "weakref.ref[Any]", key: Any) -> None:
    if (function := reference()) is not None:
        cache = _CPP_CACHE.get()(_EXPLICIT.of(key))
        registry, place = _REGISTRY.get(), _PLACE.get()
        _clear(_CPP_FUNCTION.get()("perfsuite", function, function, [], [], key, registry, place, cache))


@_unless_moved()
def _repair_trace(reference: "weakref.ref[Any]") -> None:
    if (function := reference()) is not None:
        _EVICT.get()(function)


def _clear(jitted: Any) -> None:
    _CLEAR.of(jitted)()
