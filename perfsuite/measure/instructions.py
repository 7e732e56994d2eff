"""`count_instructions`: what one warm call executes, native code included, under Valgrind's Callgrind.

`stage_instructions` counts what it takes to trace, lower and compile it.

It needs no hardware counter, and Valgrind emulates one processor: the same code takes the same path on every host that
has AVX2. Only a process that Valgrind started can count (`VALGRIND`); the tests of such a process run at a fiftieth of
their speed, and the windows that are counted more slowly still.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import mmap
import os
import platform
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.compiles import steady_state, telling_nobody
from perfsuite.measure.compiles.settle import borrowed, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.first_call import apart, at_stages, first_run
from perfsuite.measure.first_call.watch import UserLine, is_users
from perfsuite.measure.installed import valgrind_version
from perfsuite.measure.metric import INSTRUCTIONS, Metric
from perfsuite.measure.private.jax_stack import forget_calls

_DUMPS = "instructions.out"

VALGRIND = (
    *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--compress-strings=no"),
    *("--toggle-collect=_int_malloc", "--toggle-collect=_int_free", "--collect-atstart=yes"),
)
"""Starts a program that can count.

How the C library finds and merges memory is left out: it depends on what was freed before. With it the
middle windows of a step of 100 arrays differed by 0.19 % between two processes with other tests before, without it by
0.06 % (a load of 10 on 2 cores, jax 0.10.2).
"""

MALLOC = "glibc.malloc.tcache_count=65535:glibc.malloc.mxfast=0"
"""GLIBC_TUNABLES with which the C library takes and frees memory in the same way, whatever was freed before.

Without them half of the windows of a step of 300 arrays were 2 % above the others, because the C library tidied up;
with them the middle ones of two processes differed by 0.01 to 0.15 % (a load of 10 on 2 cores, jax 0.10.2).
"""

_CODE = bytes.fromhex("4889f831d248c1c70348c1c70d48c1c73d48c1c7334887db4889d0c3")
"""A client request of x86-64, as a function of the address of its six words.

`mov rax, rdi; xor edx, edx; rol rdi, 3; rol rdi, 13; rol rdi, 61; rol rdi, 51; xchg rbx, rbx; mov rax, rdx; ret`: the
rotations change nothing, and Valgrind knows them (https://valgrind.org/docs/manual/manual-core-adv.html). Written down
here, it needs no compiler; pytest-codspeed's wheel has requests that start and stop, and none that reads the counts.
"""

_RUNNING = 0x1001
_ZERO, _DUMP, _START, _STOP = (0x43540000 + number for number in (1, 0, 4, 5))

_FIRST_WINDOWS = 3
"""Not counted: the first one after the counting starts lacks what was under way, the next fill caches."""
_WINDOWS = 25
_FEWEST_WINDOWS = 7
_MOST_INSTRUCTIONS = 250_000_000
"""In all windows of a call together."""
FEWEST = 5_000
"""Of a call that does nothing the counts of two processes differed by 60 instructions (jax 0.10.2)."""

_MOST_LINES = 100
"""Lines that the code under test begins before the counts of its lines end."""

_NAMED = 0.005
"""The least share of a part that is named; smaller ones go to their library."""

OTHERS = "others"

_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Instructions:
    """Instructions of one warm call, in all threads. `by_function` maps "library:function" to them, the most first.

    `parts` has them by the user's function too: "libc.so.6:malloc in step.py:train". They are counted while Python
    tells of each line, and add up to more. `places` has the line of each part with the most.
    """

    label: str
    total: int
    by_function: dict[str, int]
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    places: dict[str, str] = dataclasses.field(default_factory=dict)

    def metrics(self, name: str) -> list[Metric]:
        """One size with its parts, and where they are."""
        parts, places = self.parts or None, self.places or None
        return [Metric(f"{name} instructions", self.total, INSTRUCTIONS, "size", detail=parts, places=places)]


def why_no_instructions() -> str:
    """Why no process that can count can be started here, and what to do; empty where one can."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return f"perf.instructions counts on x86-64 Linux, this is {system} on {machine}"
    if valgrind_version() is None:
        return "perf.instructions needs Valgrind: apt-get install valgrind"
    return ""


def under_valgrind(folder: Path) -> list[str]:
    """What begins the command line of a program that can count, and writes its counts to a folder."""
    return [*VALGRIND, f"--callgrind-out-file={folder / _DUMPS}"]


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """Have processes that are started inside, and this thread, run on one processor.

    Valgrind runs one thread at a time anyway. XLA and OpenBLAS split their work by the number of processors: on two a
    product of 256 x 256 matrices differed by 1.3 % between two processes, on one by 0.2 % (jax 0.10.2).
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {random.SystemRandom().choice(sorted(before))})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class _Callgrind:
    """Counts windows, for the process that Valgrind started. `folder` is where it writes what it counts.

    Raises `MeasurementError` where Valgrind does not run this process, or no memory may hold code.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        try:
            self._code = mmap.mmap(-1, len(_CODE), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        except OSError as error:
            raise MeasurementError(f"perf.instructions: this system lets no memory hold code ({error})") from None
        self._code.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self._function = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)
        self.zero, self.dump = self.request(_ZERO), self.request(_DUMP)
        if not self.request(_RUNNING)():
            raise MeasurementError("perf.instructions: this process does not run under Valgrind")

    def request(self, number: int) -> Callable[[], int]:
        """A function that makes a client request without arguments."""
        words = (ctypes.c_uint64 * 6)(number)
        request = functools.partial(self._function, ctypes.addressof(words))
        request.words = words  # type: ignore[attr-defined]
        return request

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs inside, in all threads; the collector does not run."""
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        self.request(_START)()
        try:
            yield
        finally:
            self.request(_STOP)()
            if collecting:
                gc.enable()

    def counts(self) -> list["_Counts"]:
        """What was dumped since the last time, in order."""
        files = sorted(self._folder.glob(f"{_DUMPS}.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text(errors="replace") for path in files]
        for path in files:
            path.unlink()
        return [_Counts(text) for text in texts]


class _Counts:
    """What Callgrind dumped: instructions, in all and by "library:function".

    The format: https://valgrind.org/docs/manual/cl-format.html.
    """

    def __init__(self, text: str):
        self._text = text
        totals = _TOTALS.search(text)
        self.total = int(totals[1]) if totals else 0

    def by_function(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        library = name = ""
        called = False  # the next line has what a called function costs, which is counted there
        for line in self._text.splitlines():
            if line.startswith("ob="):
                library = line.rpartition("/")[2].removeprefix("ob=")
            elif line.startswith("fn="):
                name = _name(library, line.removeprefix("fn="))
            elif line.startswith("calls="):
                called = True
            elif line[:1] in "0123456789+-*" and line:
                counts[name] += 0 if called else int(line.split()[1])
                called = False
        return counts


def _name(library: str, function: str) -> str:
    """A function of a library without arguments and templates. Code that XLA compiled is in no library."""
    if function.startswith(("0x", "???")):
        function = ""
    plain = re.sub(r"\(anonymous namespace\)::|operator\(\)|'\d+$|@@.*", "", function)
    short = re.split(r"[(<]", plain, maxsplit=1)[0].split(" ")[-1].removesuffix("::")
    return f"{'compiled code' if library == '???' else library}:{short or OTHERS}"


class _Lines:
    """A function for `sys.settrace` that ends a window, and begins another, where a line of the user's code begins."""

    def __init__(self, callgrind: _Callgrind):
        self._callgrind = callgrind
        self._stack: list[UserLine | None] = []
        self._line: UserLine | None = None
        self.lines: list[UserLine | None] = []
        """Of each window."""

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable | None:
        """Python calls it where a function begins."""
        if not is_users(frame.f_code.co_filename):
            return None
        self._stack.append(self._line)
        return self._in_users

    def _in_users(self, frame: FrameType, event: str, argument: Any) -> Callable:
        if event == "line":
            code = frame.f_code
            self.go_on(UserLine(code.co_filename, code.co_qualname, frame.f_lineno))
        elif event == "return":
            self.go_on(self._stack.pop())
        return self._in_users

    def go_on(self, line: UserLine | None) -> None:
        """End the window of a line, and begin that of another."""
        self._callgrind.dump()
        self.lines.append(self._line)
        self._line = line
        if len(self.lines) == _MOST_LINES:
            sys.settrace(None)
        self._callgrind.zero()


def count_instructions(call: Call, folder: Path) -> Instructions:
    """Count what a warm call executes until its outputs are ready, in a process that Valgrind started.

    Takes the middle one of several windows of one call, less what the window itself takes: now and then one lacks what
    another thread does late, so the least is no better. `folder` is that of `under_valgrind`. Raises `MeasurementError`
    where Valgrind does not run this process, and for a call of fewer than `FEWEST` instructions.
    """
    __tracebackhide__ = True
    callgrind = _Callgrind(folder)
    with borrowed(call) as subject:
        settle(subject)
        forget_calls()
        with steady_state(), callgrind.counting():
            for _ in range(_FIRST_WINDOWS):
                outputs = _run_window(callgrind, subject)
            size = max(callgrind.counts()[-1].total, 1)
            for _ in range(max(_FEWEST_WINDOWS, min(_WINDOWS, _MOST_INSTRUCTIONS // size))):
                outputs = _run_window(callgrind, subject)
            windows = callgrind.counts()
            empty = Call(lambda *args, **kwargs: outputs, subject.args, subject.kwargs, 0)
            for _ in range(_FIRST_WINDOWS + _FEWEST_WINDOWS):
                _run_window(callgrind, empty)
            harness = callgrind.counts()[_FIRST_WINDOWS:]
            lines = _run_by_lines(callgrind, subject)
        slices = [counts.by_function() for counts in callgrind.counts()]
    middle, own = (sorted(each, key=lambda counts: counts.total)[len(each) // 2] for each in (windows, harness))
    total = middle.total - own.total
    if total < FEWEST:
        raise MeasurementError(
            f"perf.instructions({call.label}): {max(total, 0):,} instructions are too few to tell 1 % of them: "
            f"call it in a loop, for at least {FEWEST:,}"
        )
    return Instructions(
        call.label,
        total,
        _largest_first(middle.by_function() - own.by_function()),
        *_parts_of(lines, slices),
    )


def stage_instructions(call: Call, folder: Path) -> dict[str, Instructions]:
    """Count what it takes to trace, to lower and to compile a call, by stage, as if JAX had never seen it.

    A first time fills the caches that are not JAX's own. A stage inside another belongs to the outer one.
    """
    __tracebackhide__ = True
    callgrind = _Callgrind(folder)
    stages: list[str] = []

    def ended(stage: str) -> None:
        callgrind.dump()
        stages.append(stage)

    with borrowed(call) as subject, telling_nobody():
        once = first_run(subject)
        with apart():
            _compiled(once())
        with apart(), callgrind.counting(), at_stages(callgrind.zero, ended):
            _compiled(once())
    counts = callgrind.counts()
    sums = {stage: Counter[str]() for stage in stages}
    for stage, each in zip(stages, counts, strict=True):
        sums[stage] += each.by_function()
    return {
        stage: Instructions(
            f"{call.label} {stage}", amounts.total(), _largest_first(amounts), *_parts_of([None], [amounts])
        )
        for stage, amounts in sums.items()
    }


def _compiled(first: Any) -> None:
    if isinstance(first, jax.stages.Lowered):
        first.compile()


def _run_window(callgrind: _Callgrind, call: Call) -> Any:
    fn, args, kwargs = call.fn, call.args, call.kwargs
    callgrind.zero()
    outputs = fn(*args, **kwargs)
    jax.block_until_ready(outputs)
    callgrind.dump()
    call.carry_on(outputs)
    return outputs


def _run_by_lines(callgrind: _Callgrind, call: Call) -> list[UserLine | None]:
    """Run a call with a window for each line of the user's code, and one for the rest. Returns their lines."""
    lines, before = _Lines(callgrind), sys.gettrace()
    callgrind.zero()
    try:
        sys.settrace(lines.trace)
        outputs = call.fn(*call.args, **call.kwargs)
    finally:
        sys.settrace(before)
    jax.block_until_ready(outputs)
    lines.go_on(None)
    call.carry_on(outputs)
    return lines.lines


def _parts_of(lines: list[UserLine | None], slices: list[Counter[str]]) -> tuple[dict[str, int], dict[str, str]]:
    """Instructions by function and by the user's function that it runs for, and the line of each with the most."""
    least = _NAMED * sum(each.total() for each in slices)
    amounts: Counter[tuple[str, UserLine | None]] = Counter()
    for line, counts in zip(lines, slices, strict=True):
        for function, amount in counts.items():
            amounts[function, line] += amount
    by_function: Counter[tuple[str, str]] = Counter()
    for (function, line), amount in amounts.items():
        by_function[function, line.name if line else ""] += amount
    parts: Counter[str] = Counter()
    places: dict[str, str] = {}
    for (function, line), amount in amounts.most_common():
        users = line.name if line else ""
        named = function if by_function[function, users] >= least else f"{function.partition(':')[0]}:{OTHERS}"
        part = f"{named} in {users}" if users else named
        parts[part] += amount
        if line:
            places.setdefault(part, line.place)
    return _largest_first(parts), places


def _largest_first(amounts: Counter[str]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))
