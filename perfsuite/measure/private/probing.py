"""What a probe runs: a function made for it, undisturbed by how the process is configured."""

import contextlib
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

_numbers = itertools.count(1)

_MINUTES = "jax_persistent_cache_min_compile_time_secs"
_NEVER = 1e9


def fresh_function() -> Callable[..., Any]:
    """A function that nothing knows yet, with a name of its own: other threads may trace and run what they like."""

    def probed(x: Any, n: int = 0) -> Any:
        return x

    probed.__name__ = probed.__qualname__ = f"perfsuite_probe_{next(_numbers)}"
    return probed


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, jitted functions compile and run, and put nothing into a persistent cache."""
    before = getattr(jax.config, _MINUTES, None)
    with jax.disable_jit(False), jax.no_tracing(False), jax.transfer_guard("allow"):
        try:
            if before is not None:
                jax.config.update(_MINUTES, _NEVER)
            yield
        finally:
            if before is not None:
                jax.config.update(_MINUTES, before)


@contextlib.contextmanager
def hearing(hear: Callable[[str, dict[str, Any], list[FrameType]], None]) -> Iterator[None]:
    """Call `hear` with the event, its facts and the stack for each stage that this thread begins inside."""
    thread = threading.get_ident()

    def on_start(event: str, value: float, **facts: str | int) -> None:
        if threading.get_ident() == thread:
            hear(event, facts, [frame for frame, _ in traceback.walk_stack(sys._getframe(1))])

    jax.monitoring.register_scalar_listener(on_start)
    try:
        yield
    finally:
        with contextlib.suppress(AssertionError, ValueError):  # something has removed all listeners
            jax.monitoring.unregister_scalar_listener(on_start)
