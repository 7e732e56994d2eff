"""What compiles from the start of a session is remembered. One that compiles nothing imports nothing for that."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import jax


@contextlib.contextmanager
def observing_compiles() -> Iterator[Callable[[], None]]:
    """`compiles.observe`, which begins when JAX first traces, lowers or compiles, in any thread.

    Gives what begins it at once: what waits for that must not be part of a measurement.
    """
    with contextlib.ExitStack() as observed:
        begun, lock = False, threading.RLock()

        def begin(*_: object, **__: object) -> None:
            nonlocal begun
            with lock:
                if not begun:
                    begun = True
                    from perfsuite.measure.compiles import compiles  # 30 ms

                    observed.enter_context(compiles.observe())

        def silence() -> None:
            # It may be silent, or something has removed all listeners.
            with contextlib.suppress(AssertionError, ValueError):
                jax.monitoring.unregister_scalar_listener(begin)

        def begin_now() -> None:
            silence()
            begin()

        # Stays registered: JAX goes on with the listeners that this adds, and would leave one out.
        jax.monitoring.register_scalar_listener(begin)
        observed.callback(silence)
        yield begin_now
