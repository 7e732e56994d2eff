"""Equinox's functions on the stack, between a user's call and JAX. Where Equinox moves them, a message names them."""

from types import FrameType

from perfsuite.measure.private.names import Functions

_MODULE = Functions("equinox._module")


def binds_method(frame: FrameType) -> bool:
    """Whether a frame is of a module, such as the one that binds a method before it calls it."""
    return _MODULE.runs(frame)
