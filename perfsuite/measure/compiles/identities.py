"""Which functions run on a stack, and whether a callable is one of them: what `forbid(only=[...])` compares.

A jitted function is known by its objects, also where only its compile is on the stack. Any other is known by its code,
which all objects of a class have in common. A decorator's code is common to all that it decorates: it is known by its
code together with what it holds.
"""

import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from perfsuite.measure.compiles.callsite import innermost, wrapper_of
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.bound import is_jitted, unbound

_MOST_LAYERS = 100


def identities_of(function: Callable) -> frozenset[int]:
    """What `identities_on_stack` has of a callable: of its function, and of what this wraps. Empty where nothing is."""
    found: set[int] = set()
    for _ in range(_MOST_LAYERS):
        if isinstance(function, FunctionType):
            found.add(_identity_of_code(function))
            following = getattr(function, "__wrapped__", None)
        elif (bound := unbound(function)) is not None:
            following = bound[0]
        elif is_jitted(function):
            return frozenset(found.union(map(id, innermost(function))))
        elif (following := getattr(function, "__wrapped__", None)) is not None:
            found.add(id(function))  # `wrapper_of` finds it
        else:
            following = _called_of(function)
        if following is None:
            break
        function = following
    return frozenset(found)


def identities_on_stack(frame: FrameType) -> frozenset[int]:
    """Which functions run on the stack, and which one compiles: the identities of their code and of their objects."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    compiling = jax_stack.compiling_function(frames)
    called = [compiling.function] if compiling else []
    called += [wrapper for each in frames if (wrapper := wrapper_of(each)) is not None]
    objects = {id(part) for function in called for part in innermost(function)}
    return frozenset(objects.union(identity for each in frames for identity in _identities_of_frame(each)))


def _called_of(function: Any) -> Any:
    """What runs when a class or an object is called, where that is Python's; None for what is written in C."""
    called = getattr(function, "__init__", None) if isinstance(function, type) else type(function).__call__
    python = isinstance(called, FunctionType) or hasattr(called, "__wrapped__") or unbound(called) is not None
    return called if python else None


def _identity_of_code(function: FunctionType) -> int:
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return id(function.__code__)
    held = [value for value in map(_content, function.__closure__ or ()) if callable(value)]
    # JAX's own, such as `jax.grad`, hold a function that they made of the wrapped one.
    mark = next((value for value in held if value is wrapped), held[0] if held else None)
    return id(function.__code__) if mark is None else _marked(function.__code__, mark)


def _identities_of_frame(frame: FrameType) -> Iterator[int]:
    code = frame.f_code
    yield id(code)
    if code.co_freevars:
        held = frame.f_locals
        yield from (_marked(code, held[name]) for name in code.co_freevars if name in held)


def _marked(code: CodeType, held: Any) -> int:
    return hash((id(code), id(held)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
