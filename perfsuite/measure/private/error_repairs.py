"""The mark that an error leaves in JAX's cache of calls, and how to remove it: no public API does.

A call that raises marks its signature, in a cache that all jitted objects of one function share. Every later call with
it takes the slow path: some 140 Python calls instead of 1 (jax 0.10.2). The public `clear_cache()` of a jitted function
drops its traces as well, and what was inferred of all others.
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


@contextlib.contextmanager
def _unless_moved() -> Iterator[None]:
    """End what uses a name that JAX has moved, or a function of JAX's that takes other arguments now."""
    with contextlib.suppress(Moved, AttributeError, KeyError, TypeError):
        yield


def repairs(frame: FrameType) -> list[Callable[[], None]]:
    """What removes the marks, once an error has ended the calls on the stack; nothing where JAX has moved a name.

    It drops no compiled program: each signature takes the slow path once more.
    """
    found: list[Callable[[], None]] = []
    for each, _ in traceback.walk_stack(frame):
        # Only the locals of JAX's frames are read: those of a user's frame would be kept alive.
        with _unless_moved():
            if _MISS.runs(each):
                function, info = _MISS.local(each, "fun"), _MISS.local(each, "jit_info")
                found.append(functools.partial(_repair_call, weakref.ref(function), info))
            elif _INNER_CALL.runs(each):
                function, key = _INNER_CALL.local(each, "f"), _INNER_CALL.local(each, "cache_key")
                found.append(functools.partial(_repair_inner_call, weakref.ref(function), key))
    return found


@_unless_moved()
def _repair_call(reference: "weakref.ref[Any]", info: Any) -> None:
    function = reference()
    if function is None:
        return
    jitted = _CPP_JIT.get()(function, info)
    _CLEAR.of(jitted)()
    # After jax.clear_caches(), objects that were jitted before have caches of their own. A function does not know them.
    # Looking through all objects takes 25 ms, only after an error.
    for other in gc.get_referrers(function):
        if isinstance(other, type(jitted)):
            _CLEAR.of(other)()


@_unless_moved()
def _repair_inner_call(reference: "weakref.ref[Any]", key: Any) -> None:
    if (function := reference()) is not None:
        cache = _CPP_CACHE.get()(_EXPLICIT.of(key))
        registry, place = _REGISTRY.get(), _PLACE.get()
        made = _CPP_FUNCTION.get()("perfsuite", function, function, [], [], key, registry, place, cache)
        _CLEAR.of(made)()
