"""What compiles from the start of a session is remembered. One that compiles nothing imports nothing for that."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import jax


@contextlib.contextmanager
def observing() -> Iterator[Callable[[], None]]:
    """`compiles.observe`, which begins when JAX first traces, lowers or compiles, in any thread.

    Gives what begins it at once: what waits for that must not be part of a measurement.
    """
    with contextlib.ExitStack() as observed:
        begun, lock = False, threading.RLock()

        def begin() -> None:
            nonlocal begun
            with lock:
                if not begun:
                    begun = True
                    from perfsuite.measure.compiles import compiles  # 30 ms

                    observed.enter_context(compiles.observe())

        def hear(event: str, value: float, **_: str | int) -> None:
            # Stays registered: JAX goes on with the listeners that this adds, and would leave one out.
            if not begun and event.startswith("/jax/"):
                begin()

        def begin_now() -> None:
            silence()
            begin()

        def silence() -> None:
            # It may be silent, or something has removed all listeners.
            with contextlib.suppress(AssertionError, ValueError):
                jax.monitoring.unregister_scalar_listener(hear)

        jax.monitoring.register_scalar_listener(hear)
        observed.callback(silence)
        yield begin_now
