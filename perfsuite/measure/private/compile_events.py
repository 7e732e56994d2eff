"""What `jax.monitoring` calls the stages of a compile: the functions are public, the names of the events are not."""

from typing import Any, Literal

import jax
import numpy as np

from perfsuite.measure.private.names import Moved, Text
from perfsuite.measure.private.probing import fresh_function, hearing, undisturbed

Stage = Literal["trace", "lower", "compile"]

_TRACE = Text("jax._src.dispatch", "/jax/core/compile/jaxpr_trace_duration")
"""JAX sends it also around a call whose trace is cached."""
_LOWER = Text("jax._src.dispatch", "/jax/core/compile/jaxpr_to_mlir_module_duration")
_COMPILE = Text("jax._src.dispatch", "/jax/core/compile/backend_compile_duration")
_HIT = Text("jax._src.compiler", "/jax/compilation_cache/cache_hits")


def stage_of(event: str) -> Stage | None:
    """The stage that an event of `jax.monitoring` is about; None for any other event."""
    known: tuple[tuple[Text, Stage], ...] = ((_TRACE, "trace"), (_LOWER, "lower"), (_COMPILE, "compile"))
    return next((stage for each, stage in known if each.text == event), None)


def is_cache_hit(event: str) -> bool:
    """Whether an event says that a program came from the persistent cache."""
    return event == _HIT.text


def probe() -> None:
    """Compile a function. Raises `Moved` where the start of a stage, or its end, is not heard with its name."""
    function = fresh_function()
    begun: list[Stage | None] = []
    ended: list[Stage | None] = []

    def begin(event: str, facts: dict[str, Any], _: object) -> None:
        if function.__name__ in str(facts.get("fun_name")):
            begun.append(stage_of(event))

    def end(event: str, duration_secs: float, **facts: str | int) -> None:
        if function.__name__ in str(facts.get("fun_name")):
            ended.append(stage_of(event))

    jax.monitoring.register_event_duration_secs_listener(end)
    try:
        with undisturbed(), hearing(begin):
            jax.jit(function)(np.float32(1))
    finally:
        jax.monitoring.unregister_event_duration_listener(end)
    for what, stages in (("start", begun), ("end", ended)):
        if [stage for stage in stages if stage] != ["trace", "lower", "compile"]:
            raise Moved(f"jax.monitoring tells the {what} of these stages of a compile: {stages}")
