"""The calls made while JAX traces and while it lowers, by the user's line: a function for `sys.setprofile`.

It sees JAX's own functions begin and end, so it counts the same calls whichever way the user's code comes to them. What
it does itself is not counted, nor are comparisons, and what other programs of the process decide about. A first call
makes hundreds of thousands of calls, so all that happens at each of them is in `watching`, and all else where the code
of the user or a step of JAX begins or ends.
"""

import dataclasses
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from perfsuite.measure.compiles.callsite import LIBRARIES, STANDARD_LIBRARY
from perfsuite.measure.io import short_path
from perfsuite.measure.private import compile_events

Stage = Literal["trace", "lower"]
Began = compile_events.Step | Literal["user"]
Profile = Callable[[FrameType, str, Any], None]

COMPARES = "__eq__"
"""How often JAX's caches compare two keys depends on the hashes of the keys, so on the hash seed and on addresses."""

MOST_ELEMENTS = 16
"""Constants with more elements are left out of the text of a program: their bytes are counted by themselves."""

_LIBRARIES = (*LIBRARIES, "jaxlib", "numpy", "scipy", "ml_dtypes", "jaxtyping", "beartype", "typeguard")
_HARNESS = os.path.join(Path(__file__).parents[2], "")
_WORKLOADS = os.path.join(_HARNESS, "workloads", "")
_NOTEBOOK = "<ipython"
_INSIDE = re.compile(r"\.<(locals|listcomp|setcomp|dictcomp|genexpr)>")
"""From Python 3.12 on most of these have no frames of their own."""


class UserLine(NamedTuple):
    """A line of the user's code."""

    file: str
    function: str
    line: int

    @property
    def name(self) -> str:
        """`model.py:Block.__call__`: stays the same when lines move."""
        return f"{os.path.basename(self.file)}:{_INSIDE.sub('', self.function)}"

    @property
    def place(self) -> str:
        """`models/model.py:12`, from the working directory or from the folder of the installed packages."""
        return f"{short_path(self.file)}:{self.line}"


@functools.cache
def is_users(filename: str) -> bool:
    """Whether the code of a file is the user's: of no library that JAX programs are written with, and not generated."""
    if filename.startswith("<"):
        return filename.startswith(_NOTEBOOK)
    if filename.startswith(STANDARD_LIBRARY) and "-packages" not in filename:
        return False
    if filename.startswith(_HARNESS):
        return filename.startswith(_WORKLOADS)
    imported = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return not filename.startswith(tuple(os.path.join(os.path.dirname(file), "") for file in imported if file))


@dataclasses.dataclass
class LoweredProgram:
    """A program as JAX lowered it: the closed jaxpr, and the bytes of its StableHLO without the constants."""

    jaxpr: Any
    stablehlo_bytes: int = 0


class _Entered(NamedTuple):
    """A frame of the user's, or a step of JAX's, that has not ended, and what to go on with when it has.

    `depth` is of frames of libraries between it and the frame before it that has not ended, `calls` what was counted
    before it.
    """

    what: Began
    depth: int
    line: UserLine | None
    calls: int


class CallWatch:
    """What a first call does, for as long as `profile` is the profiler of its thread.

    `calls` has the Python and C calls by stage. A trace that is part of a lowering belongs to the lowering, and the
    other way round. `by_line` has the calls while tracing by the user's line that makes them, `traces` the functions
    that JAX traced, each with its file and line.
    """

    def __init__(self) -> None:
        self.calls: Counter[Stage] = Counter()
        self.by_line: Counter[UserLine | None] = Counter()
        self.traces: Counter[tuple[str, str, int]] = Counter()
        self.programs: list[LoweredProgram] = []
        self._libraries: set[str] = set()
        self._stack: list[_Entered] = []
        self._stage: Stage | None = None
        self._line: UserLine | None = None
        self._mark = 0
        self.profile = self._watching()

    def _watching(self) -> Profile:
        calls = depth = 0
        libraries, enters, leaves, returns = self._libraries, self._enters, self._leaves_user, self._returns
        # Functions of libraries that are looked at each time they begin: all others only count.
        looked_at = compile_events.step_functions() | {COMPARES}

        def watching(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal calls, depth
            if event == "call":
                calls += 1
                code = frame.f_code  # its own hash is computed anew each time, those of its names are not
                if code.co_filename in libraries and code.co_name not in looked_at:
                    if not depth:
                        leaves(frame.f_back, calls)
                    depth += 1
                else:
                    depth = enters(frame, depth, calls)
            elif event == "return":
                if depth:
                    depth -= 1
                else:
                    depth = returns(arg, calls)
            elif event == "c_call":
                calls += 1
                if not depth:
                    leaves(frame, calls)

        return watching

    def _enters(self, frame: FrameType, depth: int, calls: int) -> int:
        """A function begins that may be the user's, a step of JAX's, or not counted. Returns the new depth."""
        what = self._what_begins(frame)
        if what is None:
            if not depth:
                self._leaves_user(frame.f_back, calls)
            return depth + 1
        self._stack.append(_Entered(what, depth, self._line, calls - 1))
        if what == "trace":
            self.traces[compile_events.traced_function(frame)] += 1
        elif what == "lower":
            self.programs.append(LoweredProgram(compile_events.lowered_jaxpr(frame)))
        if what in ("trace", "lower") and self._stage is None:
            self._stage, self._mark = what, calls
        return 0

    def _what_begins(self, frame: FrameType) -> Began | None:
        """None for any other function of a library, whose file is remembered."""
        code = frame.f_code
        if code.co_name == COMPARES:
            return "uncounted"
        if (step := compile_events.step_of(frame)) is not None:
            return step
        if is_users(code.co_filename):
            return "user"
        self._libraries.add(code.co_filename)
        return None

    def _leaves_user(self, frame: FrameType | None, calls: int) -> None:
        """The user's code calls a library or a C function, or JAX's own does."""
        if frame is not None and self._stack and self._stack[-1].what == "user":
            # The call itself belongs to the line.
            self._go_on(UserLine(frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno), calls - 1)

    def _returns(self, returned: Any, calls: int) -> int:
        """What began last of what is on the stack ends. Returns the new depth."""
        if not self._stack:  # it began before the watch
            return 0
        ended = self._stack.pop()
        if ended.what == "module" and returned is not None:
            text = compile_events.module_of(returned).operation.get_asm(large_elements_limit=MOST_ELEMENTS)
            self.programs[-1].stablehlo_bytes = len(text.encode())
        if ended.what == "uncounted":
            if all(each.what != "uncounted" for each in self._stack):
                self._mark += calls - ended.calls
            return ended.depth
        self._go_on(ended.line, calls)
        if ended.what == self._stage and all(each.what != self._stage for each in self._stack):
            self._stage = None
        return ended.depth

    def _go_on(self, line: UserLine | None, calls: int) -> None:
        """Count the calls since the last line for it, and go on with another."""
        if self._stage is not None:
            self.calls[self._stage] += calls - self._mark
            if self._stage == "trace":
                self.by_line[self._line] += calls - self._mark
        self._line, self._mark = line, calls
