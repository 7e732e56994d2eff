"""Equinox's functions on the stack, between a user's call and JAX. Where Equinox moves them, a message names them."""

from types import FrameType

from perfsuite.measure.private.names import Functions

_FILTER_JIT = Functions("equinox._jit")
_MODULE = Functions("equinox._module")


def passes_call_on(frame: FrameType) -> bool:
    """Whether a frame is of `filter_jit`, which passes a user's call on to JAX."""
    return _FILTER_JIT.runs(frame)


def binds_method(frame: FrameType) -> bool:
    """Whether a frame is of a module, such as the one that binds a method before it calls it."""
    return _MODULE.runs(frame)
