"""`CompilerWatch`: which passes of the compiler take how long, from a profiler trace of what a block compiles.

JAX and XLA do not promise the names of these events. They are from traces of jax 0.10.0, 0.10.2 and 0.12.0, which
compiled for a CPU, and of libtpu 0.0.42.1, which compiled for a TPU that was not present; no GPU was at hand.

`backend_compile_and_load` is a compile as its caller sees it. The CPU's compiler works in the caller's thread (0.12),
or in one of `tf_PjRtCompilerThreadPool` (0.10), and in those of `tf_xla-cpu-codegen`. libtpu has threads of its own.
Passes are nested: those of HLO in pipelines, those of MLIR in `FusionCompiler::Compile`.
"""

import contextlib
import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.passes import LONGEST, CompilerPass, CompilerPasses
from perfsuite.measure.profiler.trace_recording import record
from perfsuite.measure.profiler.traces import HOST, Span, length, merged, planes_of
from perfsuite.measure.words import in_a_line

NO_COMPILE = "the compiler did not run: the program came from a cache"
NO_EVENTS = "the compiler leaves no passes in a profiler trace here"

COMPILE = "backend_compile_and_load"
_WRAPPERS = frozenset({COMPILE, "PjRtCApiCompiler::Compile"})
"""These last as long as the compile, and do nothing of it themselves."""
_WAITS = frozenset(
    {
        *("JitCompiler::Compile", "ThunkEmitter::ConsumeKernels"),
        *("TpuCompiler::Compile", "XLA::TPU run hlo passes", "XLA::TPU HLO optimization", "XLA::TPU run backend"),
        "XLA::TPU lowering and optimization",
    }
)
"""These wait for other threads of the compiler, or work themselves while none of those does."""
_PROGRAMS = ("tf_XLAEigen", "tf_XLAPjRtCpuClient")
"""Threads of the CPU that run programs."""
_OF_THREADS = "ThreadpoolListener::"
_OF_MODULE = re.compile(r" ?\([^()]*\)$")


class Event(NamedTuple):
    """Something that a thread did, in nanoseconds of the trace's own clock."""

    name: str
    start: float
    end: float


class CompilerWatch:
    """The passes of the compiler in a block, which is the first call of `call`. They are known when it has ended.

    Where the profiler fails, or runs already, the passes have a note, and the block goes on.
    """

    def __init__(self, call: str):
        self.passes = CompilerPasses(call, note=NO_COMPILE)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="perfsuite-passes-") as folder:
            recording, block = None, contextlib.ExitStack()
            with self._noting(folder):
                recording = block.enter_context(record(folder, perfetto=False))
            try:
                yield
            except BaseException:  # the block's own, which nothing of the profiler may replace
                with contextlib.suppress(Exception):
                    block.close()
                raise
            if recording is not None:
                with self._noting(folder):
                    block.close()
                    assert recording.path is not None
                    self.passes = read_passes(recording.path, self.passes.call)

    @contextlib.contextmanager
    def _noting(self, folder: str) -> Iterator[None]:
        """What goes wrong inside becomes the note."""
        try:
            yield
        except MeasurementError as error:
            self._note(str(error).removeprefix(f"{folder}: "))
        except Exception as error:  # of the profiler
            self._note(in_a_line(error))

    def _note(self, note: str) -> None:
        self.passes = CompilerPasses(self.passes.call, note=note)


def read_passes(path: Path, call: str) -> CompilerPasses:
    """The passes in an `.xplane.pb` file. Raises `MeasurementError`, naming the file, if it is no such file."""
    lines = _host_lines(path)
    compiles = merged((each.start, each.end) for events in lines for each in events if each.name == COMPILE)
    if not compiles:
        return CompilerPasses(call, note=NO_COMPILE)
    inside = (
        [each for each in events if any(start <= each.start <= end for start, end in compiles)] for events in lines
    )
    own = [each for events in inside for each in _own_spans(events) if each[0].name not in _WRAPPERS]
    return _longest(call, _worked(own))


def _worked(own: list[tuple[Event, list[Span]]]) -> list[tuple[Event, float]]:
    """The nanoseconds in which each event did not wait for another, from its own spans."""
    working = [each for each in own if each[0].name not in _WAITS]
    worked = [(event, length(spans)) for event, spans in working]
    busy = merged(span for _, spans in working for span in spans)
    # The last to begin waits for none of the others, but these may wait for it.
    for event, spans in sorted((each for each in own if each[0].name in _WAITS), key=lambda each: -each[0].start):
        worked.append((event, _without(spans, busy)))
        busy = merged([*busy, *spans])
    return worked


def _longest(call: str, passes: list[tuple[Event, float]]) -> CompilerPasses:
    if not passes:
        return CompilerPasses(call, note=NO_EVENTS)
    totals: dict[str, list[float]] = defaultdict(list)
    for each, ns in passes:
        totals[each.name].append(ns / 1e9)
    found = [CompilerPass(name, sum(seconds), len(seconds)) for name, seconds in totals.items()]
    found.sort(key=lambda each: (-each.seconds, each.name))
    return CompilerPasses(call, tuple(found[:LONGEST]), len(found), sum(each.seconds for each in found))


def _host_lines(path: Path) -> list[list[Event]]:
    """What each thread of the host did, apart from those that run programs."""
    lines: list[list[Event]] = []
    # See `traces._read` for the warning.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in planes_of(path):
            if plane.name == HOST:
                kept = (line for line in plane.lines if not line.name.startswith(_PROGRAMS))
                lines += map(_events, kept)
    return lines


def _events(line: Any) -> list[Event]:
    """The events of one thread, without those that ran an operation. A pass is named without the module it is for."""
    events = []
    for raw in line.events:
        name = raw.name
        if name.startswith(_OF_THREADS) or not raw.duration_ns:
            continue
        if all(stat != "hlo_op" for stat, _ in raw.stats):
            events.append(Event(_OF_MODULE.sub("", name), raw.start_ns, raw.end_ns))
    return events


def _own_spans(line: Iterable[Event]) -> list[tuple[Event, list[Span]]]:
    """Each event of one line with the spans in which nothing inside it runs."""
    found: list[tuple[Event, list[Span]]] = []
    around: list[int] = []  # places in `found` of the events that have not ended
    now = 0.0

    def go_on(until: float) -> None:
        """Give the time until then to the innermost event, and to those around it when it has ended."""
        nonlocal now
        while around and now < until:
            event, spans = found[around[-1]]
            if (stop := min(event.end, until)) > now:
                spans.append((now, stop))
                now = stop
            if event.end <= now:
                around.pop()
        now = max(now, until)

    for event in sorted(line, key=lambda event: (event.start, -event.end)):
        go_on(event.start)
        around.append(len(found))
        found.append((event, []))
    go_on(max((event.end for event, _ in found), default=0.0))
    return found


def _without(spans: list[Span], others: list[Span]) -> float:
    """The length of what `spans` cover and `others` do not."""
    covered = merged(others)
    return length(merged([*spans, *covered])) - length(covered)
