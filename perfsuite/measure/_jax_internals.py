"""The private names of JAX that perfsuite uses, all of them here.

They are local variables of functions on its stack, because nothing public says which function object is being
compiled and which of its arguments are static; and one method, to repair what an error does to a fast path. Where a
name has moved, messages say less and `tests/test_jax_internals.py` fails and says which.
"""

import dataclasses
import gc
from collections.abc import Iterable
from types import FrameType
from typing import Any

_AHEAD_OF_TIME = ("jit_lower", "jit_trace", "jit_eval_shape")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The function that a stack is compiling, and which of its arguments `jax.jit` was told are static.

    `ahead_of_time` is true for `.lower`, `.trace` and `.eval_shape`, whose own first argument is the jitted function.
    """

    function: Any
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    ahead_of_time: bool


def compiled_function(frames: Iterable[FrameType]) -> Compiled | None:
    """The function being compiled, from the innermost frame that knows it; `None` where no frame does."""
    for frame in frames:
        if not frame.f_globals.get("__name__", "").startswith("jax."):
            continue
        name = frame.f_code.co_name
        if name == "cache_miss" and "fun" in (held := frame.f_locals):
            return _compiled(held["fun"], held.get("jit_info"), False)
        if name in _AHEAD_OF_TIME and "jit_func" in (held := frame.f_locals):
            return _compiled(held["jit_func"].__wrapped__, getattr(held["jit_func"], "_jit_info", None), True)
    return None


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """The positions and names of the static arguments of what `jax.jit` or `nnx.jit` returned; `None` if unknown."""
    info = getattr(getattr(jitted, "jitted_fn", jitted), "_jit_info", None)
    found = None if info is None else _compiled(None, info, False)
    return None if found is None else (found.static_argnums, found.static_argnames)


def belongs_to_jax(function: Any) -> bool:
    """Whether JAX itself defined the function: an operation that runs by itself, outside any jitted function."""
    module = getattr(function, "__module__", None) or ""
    return (module == "jax" or module.startswith("jax.")) and module != "jax._src.pmap"


def restore_fast_path(functions: Iterable[Any]) -> None:
    """Let calls of these functions use JAX's fast path again, after errors that were raised while they compiled.

    A `jax.jit` call that ends with an error marks its signature, and from then on every such call takes the slow path,
    with some 140 Python calls instead of 1 (jax 0.10.2). Nothing that was compiled is dropped: the next call of each
    signature takes the slow path once.
    """
    functions = [function for function in functions if function is not None]
    if not functions:
        return
    # Nothing leads from a function to its jitted objects. Looking through all objects takes 25 ms, after an error only.
    for holder in gc.get_referrers(*functions):
        clear = getattr(holder, "_clear_cache", None) if type(holder).__name__ == "PjitFunction" else None
        if clear is not None:
            clear()


def _compiled(function: Any, info: Any, ahead_of_time: bool) -> Compiled:
    argnums = tuple(getattr(info, "static_argnums", ()))
    argnames = tuple(getattr(info, "static_argnames", ()))
    return Compiled(function, argnums, argnames, ahead_of_time)
