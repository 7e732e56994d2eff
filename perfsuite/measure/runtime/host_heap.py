"""Which lines allocate what a loop of steps leaves on the heap of the process, in native code too: memray tells.

A step keeps what was allocated while the last steps ran and is not free after them. What a step fills once, such as a
cache, it filled in the steps before.
"""

import dataclasses
import gc
import importlib.util
import os
import re
import sysconfig
import tempfile
from collections.abc import Iterable
from typing import Any

import jax

import perfsuite
from perfsuite.measure.call import Call
from perfsuite.measure.compiles.warmup import borrowed
from perfsuite.measure.installed import install
from perfsuite.measure.io import from_here

STEPS = 10
NAMED = 5
"""How many lines are named."""

_SHARE = 0.01
"""Lines with less than this share of the whole are left out."""

_ALLOCATES = re.compile(r"alloc(ate)?\b|_alloc|memalign|^mmap|operator new|^_?Py|^type_call$|vectorcall|^__GI_|^\?*$")
"""Native functions that say nothing of what is allocated: allocators, and Python's own."""

_ARENAS = re.compile(r"^_PyObject_Arena|^new_arena|^pymalloc_alloc_arena")
_LONGEST = 80
_PERFSUITE = os.path.join(os.path.dirname(perfsuite.__file__), "")
_WORKLOADS = os.path.join(_PERFSUITE, "workloads", "")
_LIBRARIES = (os.path.join(sysconfig.get_path("stdlib"), ""), _PERFSUITE)

Frame = tuple[str, str, int]
"""A function, its file and its line."""


@dataclasses.dataclass(frozen=True)
class HeapLine:
    """A line that allocates what stays. `line` is empty in a thread that runs no Python; `inside` is what it calls."""

    line: str
    function: str
    inside: str
    bytes_a_step: float

    def __str__(self) -> str:
        rate = f"{self.bytes_a_step:,.0f} bytes a step"
        if not self.line:
            return f"{rate} in a thread of native code, in {self.inside}"
        return f"{rate} at {self.line} in {self.function}{self.inside and f', in {self.inside}'}"


def is_available() -> bool:
    """Whether memray is installed."""
    return importlib.util.find_spec("memray") is not None


def heap_lines(call: Call, *, steps: int = STEPS) -> tuple[HeapLine, ...]:
    """Run a call for `steps` steps, and as many more under memray: the lines that allocate what is left of these.

    The most bytes first. A run under memray is slow: time nothing in it. Moves a call that carries on. Raises
    `RuntimeError` where memray runs already.
    """
    import memray  # an optional package

    with tempfile.TemporaryDirectory() as folder, borrowed(call) as subject:
        file = os.path.join(folder, "heap.bin")
        _run(subject, steps)
        with memray.Tracker(file, native_traces=True, trace_python_allocators=True):
            _run(subject, steps)
        with memray.FileReader(file) as reader:
            return _lines(reader.get_leaked_allocation_records(merge_threads=True), steps)


def in_words(call: Call) -> str:
    """A line of text for each of `heap_lines`; without memray what to install."""
    if not is_available():
        return f"which lines allocate what stays is unknown without memray: {install('memray')}"
    try:
        found = heap_lines(call)
    except RuntimeError as error:
        return f"memray cannot name the lines that allocate what stays: {error}"
    if not found:
        return f"memray saw nothing that {STEPS} steps leave on the heap"
    return "\n".join([f"what {STEPS} steps left on the heap (memray):", *(f"  {line}" for line in found)])


def _run(call: Call, steps: int) -> None:
    for _ in range(steps):
        jax.block_until_ready(call.run())
        gc.collect()


def _lines(records: Iterable[Any], steps: int) -> tuple[HeapLine, ...]:
    sizes: dict[tuple[str, str, str], int] = {}
    for record in records:
        python, frames = record.stack_trace(), record.hybrid_stack_trace()
        # What lies in an arena of Python's has a record of its own.
        if not any(_ARENAS.search(name) for name, _, _ in frames) and (where := _place_of(python, frames)):
            sizes[where] = sizes.get(where, 0) + record.size
    least = _SHARE * sum(sizes.values())
    largest = sorted(((size, where) for where, size in sizes.items() if size >= least), reverse=True)
    return tuple(HeapLine(*where, size / steps) for size, where in largest[:NAMED])


def _place_of(python: list[Frame], frames: list[Frame]) -> tuple[str, str, str] | None:
    """The user's line and function, and the function that this line calls; None where perfsuite itself allocates."""
    own = next((frame for frame in python if _is_own(frame[1])), None)
    if own is None and any(file.startswith(_PERFSUITE) for _, file, _ in python):
        return None
    called = python[: python.index(own)] if own else python
    names = [called[-1][0]] if called else [name for name, _, _ in frames]
    if own and not called:
        names = names[: names.index(own[0])]
    inside = next((name for name in names if not _ALLOCATES.search(name)), "")
    inside = inside.replace("(anonymous namespace)::", "").partition("(")[0][:_LONGEST]
    return (f"{from_here(own[1])}:{own[2]}", own[0], inside) if own else ("", "", inside or "an unknown function")


def _is_own(file: str) -> bool:
    library = "-packages" in file or file.startswith(("<frozen", *_LIBRARIES))
    return not library or file.startswith(_WORKLOADS)
