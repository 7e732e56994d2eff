"""Private names, taken away as if the library had moved them."""

import contextlib
from collections.abc import Iterator

from perfsuite.measure.private import capabilities
from perfsuite.measure.private.capabilities import Capability
from perfsuite.measure.private.names import Attribute, Declared, Frame, Functions, Name, Text

MOVED = "_moved"


def places(declared: Declared) -> list[str]:
    """What can be taken away of a declared name: the name itself (""), and each local variable of a frame."""
    return ["", *declared.locals] if isinstance(declared, Frame) else [""]


@contextlib.contextmanager
def taken_away(declared: Declared, variable: str = "") -> Iterator[None]:
    """Have a declared name look for something that is not there; with `variable`, only that variable of a frame."""
    match declared:
        case Frame() if variable:
            field, value = "locals", tuple(name + MOVED * (name == variable) for name in declared.locals)
        case Frame():
            field, value = "function", declared.function + MOVED
        case Attribute():
            field, value = "name", declared.name + MOVED
        case Functions():
            field, value = (
                ("prefix", declared.prefix + MOVED) if declared.prefix else ("module", declared.module + MOVED)
            )
        case Text():
            field, value = "text", declared.text + MOVED
        case Name():
            field, value = ("path", declared.path + MOVED) if declared.path else ("module", declared.module + MOVED)
    before = getattr(declared, field)
    object.__setattr__(declared, field, value)
    try:
        yield
    finally:
        object.__setattr__(declared, field, before)


@contextlib.contextmanager
def without(capability: Capability) -> Iterator[None]:
    """All names of a capability taken away, and its probe's answer with them."""
    with contextlib.ExitStack() as stack:
        for declared in capability.names():
            stack.enter_context(taken_away(declared))
        capabilities.forget()
        stack.callback(capabilities.forget)
        yield
