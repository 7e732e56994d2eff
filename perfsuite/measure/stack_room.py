"""Room on Python's own stack, so that the depth at which a call is measured does not decide what it takes.

CPython keeps the frames of Python functions in chunks of 16 KiB. A call whose frame does not fit into the last chunk
maps a new one into memory, and returning from it unmaps that. Where the code under test makes small calls in a loop
just there, each of them takes 7 us in place of 0.05, with two system calls and a page fault (CPython 3.11, 3.12 and
3.13; depth 141 of a small recursive function and no other of the first 400). One frame more or less above it, and it
takes 0.05 us again: another test runner, another helper, the other side of a comparison.
"""

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable)

SLOTS = 1 << 15
"""Of 8 bytes. A chunk is twice as large as the power of two that holds the frame: so there is as much room again, 256
KiB, for a thousand frames of the code under test. No usual chunk has that much left, so it is always a new one."""


def with_room(fn: _Function) -> _Function:
    """Decorate a function that samples calls: what it calls has a large chunk to itself, most of which nobody touches.

    The function says that it needs a larger frame than it does, which is all that makes CPython take such a chunk.
    """
    fn.__code__ = fn.__code__.replace(co_stacksize=SLOTS)
    return fn
