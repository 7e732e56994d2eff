"""Lowering as a wrapper's `.lower` does it: for any platform, and with what JAX knows of the trace that it lowers.

`jax.jit(f).trace(...).lower(lowering_platforms=...)` is public, but `filter_jit`, `nnx.jit` and a project's own
wrappers have `.lower` only. All of them end in `Traced.lower`, which `lowering` replaces.

For the present device nothing here raises where a name has moved: then less is known.
"""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.private.capabilities import LOWERING
from perfsuite.measure.private.jax_stack import static_arguments, without_statics
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name

_LOWER = LOWERING.needs(Name("jax._src.stages", "Traced.lower"))
_CALLER = LOWERING.needs(Frame("jax._src.pjit", "jit_lower", ("jit_func", "args", "kwargs")))
_BACKEND = LOWERING.needs(Name("jax._src.interpreters.mlir", "ModuleContext.get_backend"))
_PLATFORMS = LOWERING.needs(Attribute("jax._src.interpreters.mlir", "platforms"))
_MAKE_CALLBACK = LOWERING.needs(Attribute("jax._src.callback", "make_python_callback_from_host_send_and_recv"))
_LOWERING = LOWERING.needs(Attribute("jax._src.stages", "_lowering"))
_OPTIONS = LOWERING.needs(Attribute("jax._src.interpreters.pxla", "_compiler_options_kvs"))
_DEBUG_INFO = LOWERING.needs(Attribute("jax._src.core", "debug_info"))
_ARGUMENT_NAMES = LOWERING.needs(Attribute("jax._src.linear_util", "arg_names"))
_SOURCE = LOWERING.needs(Attribute("jax._src.core", "source_info"))
_SUMMARIZE = LOWERING.needs(Name("jax._src.source_info_util", "summarize"))


@dataclasses.dataclass
class Lowering:
    """What `lowering` saw: the trace that was lowered, and its leaves in the order of `Lowered.args_info`.

    `leaves` is None where they could not be told from static arguments.
    """

    traced: jax.stages.Traced | None = None
    leaves: list[Any] | None = None


@contextlib.contextmanager
def lowering(platform: str | None) -> Iterator[Lowering]:
    """Lower for `platform` whatever this thread lowers inside; None is the platform of the arguments.

    For another platform raises `Moved` where a name has moved, so ask for the capability first.
    """
    seen, thread = Lowering(), threading.get_ident()

    def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(self: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
            if threading.get_ident() == thread:
                seen.traced, seen.leaves = self, _leaves(sys._getframe(1))
                if platform is not None:
                    options["lowering_platforms"] = (platform,)
            return original(self, **options)

        return lower

    with contextlib.ExitStack() as replaced:
        if platform is not None:
            replaced.enter_context(_without_device(platform))
        if platform is not None or not _LOWER.missing():
            replaced.enter_context(_LOWER.replaced(seeing))
        yield seen


class _NoDevice:
    """Stands in for the runtime of an absent device, which JAX hands the functions to call back.

    They are no part of the program's text, and the program will not run.
    """

    def __getattr__(self, name: str) -> Any:
        if name != _MAKE_CALLBACK.name:
            raise AttributeError(name)
        return lambda *_, **__: None


def _without_device(platform: str) -> contextlib.AbstractContextManager[None]:
    """Let calls of the host be lowered for a platform without its runtime, in this thread.

    JAX needs the runtime for nothing else in a program for a TPU or a GPU.
    """
    thread = threading.get_ident()

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except (ValueError, RuntimeError):  # of another platform, or not installed
                if threading.get_ident() != thread or tuple(_PLATFORMS.of(self, ())) != (platform,):
                    raise
                return _NoDevice()

        return get_backend

    return _BACKEND.replaced(replacing)


def compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any] | None:
    """The `compiler_options` that `jax.jit` was given, which the lowered text lacks; None where they are not known."""
    if LOWERING.lost():
        return None
    options = _OPTIONS.of(_LOWERING.of(lowered))
    return None if options is None else dict(options)


def argument_names(traced: jax.stages.Traced) -> tuple[str, ...]:
    """JAX's names of all leaves of the arguments, which the program's parameters have too; empty where unknown."""
    return tuple(_ARGUMENT_NAMES.of(_DEBUG_INFO.of(traced.jaxpr.jaxpr)) or ())


def line_of(equation: Any) -> str:
    """The user's line that made an equation, `model.py:42:8 (step)`; "" where it is not known."""
    source = _SOURCE.of(equation)
    try:
        return "" if source is None else _SUMMARIZE.get()(source)
    except Moved:
        return ""


def _leaves(caller: FrameType) -> list[Any] | None:
    """The leaves of the arguments that the caller of `Traced.lower` was given, without the static ones."""
    jitted, args, kwargs = (_CALLER.local(caller, name) for name in _CALLER.locals)
    if not _CALLER.runs(caller) or args is None or kwargs is None or (statics := static_arguments(jitted)) is None:
        return None
    return jax.tree.leaves(without_statics(args, kwargs, statics))
