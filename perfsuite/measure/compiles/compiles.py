"""Traces, lowerings and backend compiles: counted, forbidden, or only remembered.

JAX calls perfsuite only when it compiles, so a warm call pays nothing. The error is raised when a forbidden stage
starts, before its work.
"""

import contextlib
from collections.abc import Iterator

from perfsuite.measure.compat.jax_stack import restore_fast_path
from perfsuite.measure.compiles.listeners import is_heard, open_contexts, telling
from perfsuite.measure.compiles.tally import BUILDING_INPUTS, CompileEvent, Compiles, FunctionCompiles
from perfsuite.measure.errors import MeasurementError, RecompilationError

__all__ = ["CompileEvent", "Compiles", "FunctionCompiles", "count", "forbid", "forbidden", "observe"]


@contextlib.contextmanager
def count() -> Iterator[Compiles]:
    """Count what compiles inside, in any thread; asserts nothing.

    `with count() as counted: step(state, batch)`, then `counted.compiles` and the others.
    """
    watch = Compiles()
    with telling(watch):
        yield watch
        _check_heard()


@contextlib.contextmanager
def forbid() -> Iterator[Compiles]:
    """Raise `RecompilationError` at any trace, lowering or backend compile inside, in any thread, before its work.

    The error names the function, the user's line, and what differs from the nearest known call. If something catches
    it, or it is another thread's, it is raised again when the context closes. Build inputs in the yielded object's
    `building_inputs()`.
    """
    __tracebackhide__ = True
    watch = Compiles(forbids=True)
    with telling(watch):
        try:
            yield watch
        except RecompilationError as error:
            # JAX notes that it removed frames: of this error they are all perfsuite's and JAX's own.
            if hasattr(error, "__notes__"):
                error.__notes__ = [note for note in error.__notes__ if "JAX_TRACEBACK_FILTERING" not in note]
            raise
        finally:
            restore_fast_path(watch.functions_refused())
        _check_heard()
    watch.raise_refused()


@contextlib.contextmanager
def observe() -> Iterator[None]:
    """Only remember what compiles inside, to compare a later recompilation with it."""
    with telling(Compiles(counts=False)):
        yield


def forbidden() -> bool:
    """Whether compiles are forbidden right now, in this thread."""
    return any(watch.forbids for watch in open_contexts()) and not BUILDING_INPUTS.get()


def _check_heard() -> None:
    if not is_heard():
        raise MeasurementError(
            "something removed perfsuite's monitoring listeners while compiles were being watched, so some may be "
            "missing. Use jax.monitoring.unregister_..._listener instead of jax.monitoring.clear_event_listeners()."
        )
