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
import itertools
import mmap
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.compiles import steady_state, telling_nobody
from perfsuite.measure.compiles.settle import borrowed, collector_off, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.first_call import apart, at_stages, first_run
from perfsuite.measure.first_call.watch import UserLine, is_users
from perfsuite.measure.installed import valgrind_version
from perfsuite.measure.metric import INSTRUCTIONS, OTHERS, Metric
from perfsuite.measure.private.jax_stack import forget_calls

_DUMPS = "instructions.out"

_LEFT_OUT = (
    "find_name_in_mro*",
    "_PyHamt_Find*",
    "jax::ReentrantHashSet<*FindInternal<jax::WeakValueInterner*",
    "xla::ifrt::PjRtClient::MakeArrayFromHostBuffer*>)",
    "Eigen::ThreadPoolTempl<*>::MaybeGetTask*",
    "xla::AbstractTrackedDeviceBuffer::AddUsageEvent*",
)
"""Functions that are left out with all that they call, because what they cost depends on addresses, or on time.

How Python finds a name that its table of attributes lacks, because another name may take its place there: in one
process of four it changed an `equinox.tree_at` by 1.5 % (Python 3.11). How it finds a context variable: in two
processes of 14 that changed an `np.sort` of 1,000 numbers by 0.4 %. How JAX finds that it has a description of an
array already, for which it may compare others: in three processes of ten that changed `jnp.asarray` of ten arrays by
0.8 %. How JAX takes an array of NumPy, which it copies unless it lies at a multiple of 64 bytes: that changed a jitted
call of one small array by 4 %. How the threads of XLA look for work, which they do for as long as there is none: a call
over eight devices took 1.3 to 5.9 million in the windows of one process. How XLA notes who reads an array, which it
tidies up in every fourth call: the windows of a call differed by 2 to 4 % (jax 0.10.2).
"""

VALGRIND = (
    *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--compress-strings=no"),
    *(f"--toggle-collect={function}" for function in _LEFT_OUT),
    "--collect-atstart=yes",  # the last: each of those before turns it off
)
"""Starts a program that can count."""

_OF_CHANCE = re.compile(
    r"^fn=(?:_int_\w+|unlink_chunk\S*|malloc_consolidate|sysmalloc"
    r"|_PyObject_(?:Malloc|Free|Realloc)|allocate_from_new_pool"
    r"|(?:nanobind::detail::nb_type_c2p|jax::PyTreeRegistry::Lookup)\(.*"
    r"|(?:std::pair<)?absl::\w+::container_internal::raw_hash_set<.*)(?:'\d+)?\n"
    r"(?:(?!fn=|fl=|ob=).+\n)*",
    re.MULTILINE,
)
"""Functions that are left out, without what they call.

How the C library and Python find and merge memory depends on what was freed before: between the windows of one process
they changed the count of a call that makes 500 strings by 3 %, and that of a step of ten arrays by 0.3 % (jax 0.10.2,
Python 3.11). How C++ finds what is in a table depends on addresses, and on the seed that the table draws: between two
series of processes a step of 600 arrays differed by 0.3 %, and between two processes one of 100 by 0.6 %.
"""

MALLOC = "glibc.malloc.tcache_count=65535:glibc.malloc.mxfast=0:glibc.malloc.mmap_threshold=65536"
"""GLIBC_TUNABLES with which the C library takes and frees memory in the same way, whatever was freed before.

Without them half of the windows of a step of 300 arrays were 2 % above the others, because the C library tidied up;
with them the middle ones of two processes differed by 0.01 to 0.15 % (a load of 10 on 2 cores, jax 0.10.2).
The last maps what has 64 KiB and more: so a large array that a call makes never lies at a multiple of 64 bytes.
"""

_CODE = bytes.fromhex("4889f831d248c1c70348c1c70d48c1c73d48c1c7334887db4889d0c3")
"""A client request of x86-64, as a function of the address of its six words.

`mov rax, rdi; xor edx, edx; rol rdi, 3; rol rdi, 13; rol rdi, 61; rol rdi, 51; xchg rbx, rbx; mov rax, rdx; ret`: the
rotations change nothing, and Valgrind knows them (https://valgrind.org/docs/manual/manual-core-adv.html). Written down
here, it needs no compiler; pytest-codspeed's wheel has requests that start and stop, and none that reads the counts.
"""

_REQUESTS = (0x43540001, 0x43540000, 0x43540004, 0x43540005, 0x1001)
"""Callgrind's to zero, dump, start and stop, and Valgrind's that asks whether it runs the process."""

_RUNS = 50
"""Before anything is counted: for so long the interpreter still adapts the code that it runs, at a cost of 1 to 6 %."""

_FIRST_WINDOWS = 3
"""Not counted: the first one after the counting starts lacks what was under way, the next fill caches."""
_WINDOWS = 15
_MANY_WINDOWS = 120
_UNSTEADY = 0.007
"""The share by which the windows of the middle half differ, above which there are many: of a call over eight devices,
whose threads wait for each other or not, it was 0.8 to 1.7 %, of most others up to 0.15 % (jax 0.10.2)."""

FEWEST = 5_000
"""Of a call that does nothing the counts of two processes differed by 60 instructions (jax 0.10.2)."""

_MOST_LINES = 100
"""Lines that the code under test begins or returns to before its functions are counted as a whole: 100 windows take
4 s, because each dump has some 100 functions and what they call."""
_MOST_WINDOWS = 300
"""Lines and functions that it begins or returns to before the counts of both end. The rest counts for the last one."""

_NAMED = 0.005
"""The least share of a part that is named; smaller ones go to their library."""


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


def under_valgrind(folder: Path, processor: int) -> list[str]:
    """What begins the command line of a program that can count on one processor, and writes its counts to a folder."""
    # XLA and OpenBLAS split their work by the number of processors: on two a product of 256 x 256 matrices differed by
    # 1.3 % between two processes, on one by 0.2 % (jax 0.10.2). Valgrind runs one thread at a time anyway.
    return ["taskset", "--cpu-list", str(processor), *VALGRIND, f"--callgrind-out-file={folder / _DUMPS}"]


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
        function = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))(address)
        self.zero, self.dump, self._start, self._stop, running = (
            functools.partial(function, (ctypes.c_uint64 * 6)(request)) for request in _REQUESTS
        )
        if not running():
            raise MeasurementError("perf.instructions: this process does not run under Valgrind")

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs inside, in all threads; the collector does not run."""
        gc.collect()
        with collector_off():
            self._start()
            try:
                yield
            finally:
                self._stop()

    def dumps(self) -> list[str]:
        """What was dumped since the last time, in order.

        The format: https://valgrind.org/docs/manual/cl-format.html.
        """
        files = sorted(self._folder.glob(f"{_DUMPS}.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text(errors="replace") for path in files]
        for path in files:
            path.unlink()
        return texts


def _total(dump: str) -> int:
    """All instructions but those of chance."""
    return int(dump.rpartition("totals: ")[2]) - _counted("".join(_OF_CHANCE.findall(dump))).total()


def _by_function(dump: str) -> Counter[str]:
    """Instructions by "library:function", without those of chance."""
    return _counted(_OF_CHANCE.sub("", dump))


def _counted(dump: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    library = name = ""
    called = False  # the next line has what a called function costs, which is counted there
    for line in dump.splitlines():
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


def count_instructions(call: Call, folder: Path) -> Instructions:
    """Count what a warm call executes, in a process that Valgrind started.

    It ends where its outputs are ready, and those of the call before are freed. Takes the middle one of several windows
    of one call, less what the window itself takes: now and then one lacks what another thread does late, so the least
    is no better. `folder` is that of `under_valgrind`. Raises `MeasurementError` where Valgrind does not run this
    process, and for a call of fewer than `FEWEST` instructions.
    """
    __tracebackhide__ = True
    callgrind = _Callgrind(folder)
    with borrowed(call) as subject:
        subject.args, subject.kwargs = _moved(subject.args), _moved(subject.kwargs)
        settle(subject)
        forget_calls()
        for _ in range(_RUNS):
            jax.block_until_ready(subject.run())
        with steady_state(), callgrind.counting():
            outputs = _run_windows(callgrind, subject, _WINDOWS)
            _run_windows(callgrind, Call(lambda *args, **kwargs: outputs, subject.args, subject.kwargs, 0), _WINDOWS)
            lines = _run_by_lines(callgrind, subject)
        dumps = iter(callgrind.dumps())  # now that nothing is counted: to read one takes a tenth of the time
        windows, of_nothing = _by_total(dumps, _WINDOWS), _by_total(dumps, _WINDOWS)
        slices = list(map(_by_function, dumps))
        low, high = (_total(windows[place]) for place in (_WINDOWS // 4, -1 - _WINDOWS // 4))
        if high - low > _UNSTEADY * low:
            with steady_state(), callgrind.counting():
                _run_windows(callgrind, subject, _MANY_WINDOWS)
            windows = _by_total(iter(callgrind.dumps()), _MANY_WINDOWS)
    middle, own = (each[len(each) // 2] for each in (windows, of_nothing))
    total = _total(middle) - _total(own)
    if total < FEWEST:
        raise MeasurementError(
            f"perf.instructions({call.label}): {max(total, 0):,} instructions are too few to tell 1 % of them: "
            f"call it in a loop, for at least {FEWEST:,}"
        )
    by_function = _largest_first(_by_function(middle) - _by_function(own))
    return Instructions(call.label, total, by_function, *_parts_of(lines, slices))


def _moved(argument: Any) -> Any:
    """An argument with its arrays of NumPy at multiples of 64 bytes, which JAX takes over and does not copy."""
    if type(argument) in (tuple, list):
        return type(argument)(map(_moved, argument))
    if type(argument) is dict:
        return {key: _moved(value) for key, value in argument.items()}
    if type(argument) is not np.ndarray or not argument.nbytes:
        return argument
    if argument.dtype.hasobject or not argument.flags.c_contiguous:
        return argument
    room = np.empty(argument.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + argument.nbytes].view(argument.dtype).reshape(argument.shape)
    copy[...] = argument
    return copy


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
    sums = {stage: Counter[str]() for stage in stages}
    for stage, dump in zip(stages, callgrind.dumps(), strict=True):
        sums[stage] += _by_function(dump)
    return {
        stage: Instructions(call.label, amounts.total(), _largest_first(amounts), *_parts_of([None], [amounts]))
        for stage, amounts in sums.items()
    }


def _compiled(first: Any) -> None:
    if isinstance(first, jax.stages.Lowered):
        first.compile()


def _run_windows(callgrind: _Callgrind, call: Call, number: int) -> Any:
    """Run a call in each of several windows. Returns the outputs of the last."""
    ready = jax.block_until_ready  # a global name takes 126 instructions until the interpreter has adapted the loop
    for _ in range(_FIRST_WINDOWS + number):
        fn, args, kwargs = call.fn, call.args, call.kwargs
        callgrind.zero()
        outputs = fn(*args, **kwargs)
        ready(outputs)
        callgrind.dump()
        call.carry_on(outputs)
    return outputs


def _by_total(dumps: Iterator[str], number: int) -> list[str]:
    """So many windows of one call, those with the fewest instructions first."""
    return sorted(itertools.islice(dumps, _FIRST_WINDOWS, _FIRST_WINDOWS + number), key=_total)


def _run_by_lines(callgrind: _Callgrind, call: Call) -> list[UserLine | None]:
    """Run a call with a window for each line of the user's code, and one for the rest. Returns their lines.

    After so many the windows are those of functions.
    """
    lines: list[UserLine | None] = [None]
    callers: list[UserLine | None] = []

    def begin(line: UserLine | None) -> None:
        callgrind.dump()
        lines.append(line)
        if len(lines) > _MOST_WINDOWS:
            sys.settrace(None)
        callgrind.zero()

    def in_users(frame: FrameType, event: str, argument: Any) -> Callable:
        if event == "line":
            code, as_a_whole = frame.f_code, len(lines) > _MOST_LINES
            begin(UserLine(code.co_filename, code.co_qualname, code.co_firstlineno if as_a_whole else frame.f_lineno))
            frame.f_trace_lines = not as_a_whole
        elif event == "return":
            begin(callers.pop())
        return in_users

    def trace(frame: FrameType, event: str, argument: Any) -> Callable | None:
        if not is_users(frame.f_code.co_filename):
            return None
        callers.append(lines[-1])
        if len(lines) > _MOST_LINES:
            in_users(frame, "line", None)
        return in_users

    before = sys.gettrace()
    callgrind.zero()
    try:
        sys.settrace(trace)
        outputs = call.fn(*call.args, **call.kwargs)
    finally:
        sys.settrace(before)
    jax.block_until_ready(outputs)
    callgrind.dump()
    call.carry_on(outputs)
    return lines


def _parts_of(lines: list[UserLine | None], slices: list[Counter[str]]) -> tuple[dict[str, int], dict[str, str]]:
    """Instructions by function and by the user's function that it runs for, and the line of each with the most.

    The lines have those too that are half as large as what is named: a baseline may name them.
    """
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
        share, of_user = by_function[function, users], f" in {users}" if users else ""
        part = (function if share >= least else f"{function.partition(':')[0]}:{OTHERS}") + of_user
        parts[part] += amount
        if line:
            places.setdefault(part, line.place)
            if share >= least / 2:
                places.setdefault(function + of_user, line.place)
    return _largest_first(parts), places


def _largest_first(amounts: Counter[str]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))
