"""JAX's persistent compilation cache: the key of a program, why two keys differ, and what a second process compiles."""

import contextlib
import dataclasses
import itertools
import os
import platform
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

import perfsuite.measure
from perfsuite.measure.call import Call
from perfsuite.measure.hlo.locations import number_locations
from perfsuite.measure.hlo.module import SourceFrame, Stack
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.persistent_cache import COMPUTATION, CachedProgram, ProgramKey, key_of, watching_cache
from perfsuite.measure.program.lowering import lower_call, with_lower
from perfsuite.measure.program.program import place_of, source_of
from perfsuite.measure.words import plural

INSTRUMENT = "perf.cache_key"

_MISSES_SHOWN = 5
_PLACES_SHOWN = 3
_LONGEST = 120
"""Characters of a line that are shown; a constant may have millions."""

_VALUE = re.compile(r"%\w+")
_REORDERED = "the same operations in another order; code that iterates over a set does that, and sorted(...) does not"

_MEASURE = os.path.join(os.path.dirname(perfsuite.measure.__file__), "")
"""What asked for the trace: neither it nor the test around it is where a line comes from."""

FOLDER = "jax_compilation_cache_dir"
NO_FOLDER = f"JAX's cache is off: {FOLDER} is not set, so each process compiles all its programs"
OFF = "JAX does not use its cache: jax_enable_compilation_cache is off, or this device's programs cannot be kept"
GONE = "it was put into the cache, and its entry is not there any more: raise jax_compilation_cache_max_size"
ANOTHER = "the first process compiled no program of that name"

_OF_A_PROCESS: tuple[tuple[Any, str], ...] = (
    (jax, "process_index"),
    (socket, "gethostname"),
    (platform, "node"),
    (os, "getpid"),
    (time, "time"),
)
"""What a process can ask about itself, and what must be no part of a program. JAX asks for the time itself."""

Line = tuple[str, Stack]


@dataclasses.dataclass(frozen=True)
class CacheKeys:
    """What each process has for one call. `processes` is empty where the session starts no others."""

    label: str
    processes: tuple[ProgramKey, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of each process."""
        return tuple(each.key for each in self.processes)

    @property
    def distinct(self) -> int:
        """How many different keys there are: 1 where the processes can share a program, or where there are none."""
        return len(set(self.keys)) or 1

    def metric(self, name: str) -> Metric:
        """How many keys the processes have, as a metric."""
        return Metric(f"{name} cache keys", self.distinct, "keys", "count")

    def why(self) -> list[str]:
        """Why there are several keys, each line a sentence or two texts side by side; empty for one key."""
        if self.distinct < 2:
            return []
        other = next(number for number, key in enumerate(self.keys) if key != self.keys[0])
        return difference(self.processes[0], self.processes[other], ("process 1", f"process {other + 1}"))

    def in_words(self) -> str:
        """`step has 3 keys in 3 processes`."""
        return f"{self.label} has {plural(self.distinct, 'key')} in {plural(len(self.keys), 'process', 'processes')}"

    def __str__(self) -> str:
        return "\n".join([self.in_words(), *self.why()])


def check_lowers(call: Call) -> None:
    """Raise `MeasurementError` for a call that no process could lower, before any process is started."""
    __tracebackhide__ = True
    with_lower(call, INSTRUMENT)


def take_key(call: Call) -> ProgramKey:
    """Lower a call in this process, and make the key of its program without compiling it.

    JAX's caches in memory are emptied: it makes no key of a program that was compiled before.
    """
    __tracebackhide__ = True
    jax.clear_caches()
    with _noting_questions() as questions:
        key = key_of(lower_call(call, asked_by=INSTRUMENT).lowered)
    return dataclasses.replace(key, questions=tuple(questions))


@contextlib.contextmanager
def _noting_questions() -> Iterator[dict[tuple[str, str, int, str], None]]:
    """What is asked about this process inside, with the file, line and function that asks."""
    questions: dict[tuple[str, str, int, str], None] = {}

    def noting(module: Any, name: str) -> None:
        original = getattr(module, name)

        def asked(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__", "").partition(".")[0] not in ("jax", "logging"):
                code = frame.f_code
                questions[f"{module.__name__}.{name}()", code.co_filename, frame.f_lineno, code.co_qualname] = None
            return original(*args, **kwargs)

        setattr(module, name, asked)
        restored.callback(setattr, module, name, original)

    with contextlib.ExitStack() as restored:
        for module, name in _OF_A_PROCESS:
            noting(module, name)
        yield questions


def difference(first: ProgramKey, second: ProgramKey, names: tuple[str, str]) -> list[str]:
    """How the different keys of two processes, called `names`, differ."""
    lines: list[str] = []
    for part in (part for part in first.parts if first.parts[part] != second.parts.get(part)):
        if part == COMPUTATION:
            lines += _computation(first.text, second.text, names)
        else:
            lines.append(f"the part {part!r} of the key differs")
    if questions := dict.fromkeys((*first.questions, *second.questions)):
        asked = [f"{each[0]} at {place_of(SourceFrame(*each[1:]))}" for each in questions]
        lines.append(f"  each process has its own answer to {', '.join(asked)}")
    return lines or ["the keys differ, and JAX does not log their parts"]


def _computation(first: str, second: str, names: tuple[str, str]) -> list[str]:
    one, other = (number_locations(text).lines() for text in (first, second))
    pairs = enumerate(itertools.zip_longest(one, other, fillvalue=("", ())))
    differ = [(number, a[0], b[0]) for number, (a, b) in pairs if a[0] != b[0]]
    if not differ:
        return [
            f"the part {COMPUTATION!r} of the key differs, and no line of StableHLO does: "
            "jax_compilation_cache_include_metadata_in_key puts places of the source into the key"
        ]
    head = f"the program differs in {len(differ):,} of {plural(len(one), 'line')} of StableHLO"
    if len(one) != len(other):
        head = f"the program has {len(one):,} lines of StableHLO in {names[0]} and {len(other):,} in {names[1]}"
        differ = differ[:1]  # those after it differ by their numbers alone
    elif Counter(_VALUE.sub("", text) for text, _ in one) == Counter(_VALUE.sub("", text) for text, _ in other):
        head += f": {_REORDERED}"
    longer = max(one, other, key=len)
    by_place = {_place(longer, number): (number, a, b) for number, a, b in reversed(differ)}
    lines = [head]
    for place, (number, a, b) in sorted(by_place.items(), key=lambda item: item[1])[:_PLACES_SHOWN]:
        lines.append(f"  line {number + 1:,}{place and f', from {place}'}")
        lines += _side_by_side(a, b, names)
    more = len(by_place) - _PLACES_SHOWN
    return [*lines, f"  and from {plural(more, 'more place')}"] if more > 0 else lines


def _place(lines: list[Line], number: int) -> str:
    """The line of Python that a line comes from. JAX says only of what uses a constant where that is."""
    text, stack = lines[number]
    name = text.partition(" ")[0]
    if "stablehlo.constant" in text:
        uses = (used for line, used in lines[number + 1 :] if re.search(rf"{re.escape(name)}\b", line))
        stack = next((used for used in uses if _in_words(used)), stack)
    return _in_words(stack)


def _in_words(stack: Stack) -> str:
    """`model.py:10 in step (through numpyro/infer/elbo.py:275 in loss)`: the user's line, and the innermost."""
    traced = tuple(itertools.takewhile(lambda frame: not frame.file.startswith(_MEASURE), stack))
    source = source_of(traced)
    if source is None:
        return ""
    innermost = place_of(traced[0]).rpartition("-packages/")[2]
    return innermost if source == traced[0] else f"{place_of(source)} (through {innermost})"


def _side_by_side(first: str, second: str, names: tuple[str, str]) -> list[str]:
    """Both texts, from a little before where they begin to differ."""
    differ = (number for number, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    long = max(len(first), len(second)) > _LONGEST
    begin = max(0, next(differ, min(len(first), len(second))) - _LONGEST // 2) if long else 0
    cut = [text[begin : begin + _LONGEST] + ("..." if begin + _LONGEST < len(text) else "") for text in (first, second)]
    return [f"    {name}: {'...' if begin else ''}{text}" for name, text in zip(names, cut, strict=True)]


@dataclasses.dataclass(frozen=True)
class Miss:
    """A program that the second process compiled, so many times, and why: the first line is the reason."""

    program: str
    times: int
    why: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CacheHits:
    """What the second process found. `programs` is how many it needed, and `hits` how many of them it found.

    There are none where the session starts no processes.
    """

    label: str
    programs: int
    hits: int
    misses: tuple[Miss, ...]

    @property
    def missed(self) -> int:
        """How many programs the second process compiled."""
        return self.programs - self.hits

    def metrics(self, name: str) -> list[Metric]:
        """The misses, by program, and the hits."""
        detail: Counter[str] = Counter()
        for miss in self.misses:
            detail[miss.program] += miss.times
        return [
            Metric(f"{name} cache misses", self.missed, "programs", "count", detail=dict(detail)),
            Metric(f"{name} cache hits", self.hits, "programs", "info"),
        ]

    def in_words(self) -> str:
        """`step: the second process compiled 2 programs, and found 1 in the cache`."""
        compiled = plural(self.missed, "program")
        return f"{self.label}: the second process compiled {compiled}, and found {self.hits:,} in the cache"

    def why(self) -> list[str]:
        """A few lines for each program that was missed."""
        lines = []
        for miss in self.misses[:_MISSES_SHOWN]:
            first, *further = miss.why
            times = f" ({miss.times} times)" if miss.times > 1 else ""
            lines += [f"{miss.program}{times}: {first}", *(f"  {line}" for line in further)]
        if (more := len(self.misses) - _MISSES_SHOWN) > 0:
            lines.append(f"and {plural(more, 'program')} more")
        return lines

    def __str__(self) -> str:
        return "\n".join([self.in_words(), *self.why()])


def run_with_cache(call: Call, folder: Path) -> list[CachedProgram]:
    """Run a call once in this process, with the persistent cache that is set, and say what became of its programs.

    `folder` stands in for the folder that is set, so that nothing is read from it or put there. Where none is set, JAX
    has no cache. JAX's caches in memory are emptied, so that all that the call runs is compiled or found.
    """
    if is_set := bool(getattr(jax.config, FOLDER)):
        jax.config.update(FOLDER, str(folder))
        compilation_cache.reset_cache()
    jax.clear_caches()
    with watching_cache() as programs:
        jax.block_until_ready(call.run())
    return programs if is_set else [dataclasses.replace(each, key=None, not_kept=NO_FOLDER) for each in programs]


def compare_runs(label: str, first: Sequence[CachedProgram], second: Sequence[CachedProgram]) -> CacheHits:
    """What the second process compiled, and why, by what the first did."""
    missed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for program, counterpart in _paired(first, second):
        if not program.found:
            missed[program.name, tuple(_why(program, first, counterpart))] += 1
    misses = tuple(Miss(name, times, why) for (name, why), times in missed.items())
    return CacheHits(label, len(second), sum(each.found for each in second), misses)


def _paired(
    first: Sequence[CachedProgram], second: Sequence[CachedProgram]
) -> Iterator[tuple[CachedProgram, CachedProgram | None]]:
    """Each program of the second process with that of its name, and of its place among those, in the first."""
    left = list(first)
    for program in second:
        counterpart = next((each for each in left if each.name == program.name), None)
        if counterpart is not None:
            left.remove(counterpart)
        yield program, counterpart


def _why(program: CachedProgram, first: Sequence[CachedProgram], counterpart: CachedProgram | None) -> list[str]:
    if program.key is None:
        return [program.not_kept or OFF]
    twin = next((each for each in first if each.key is not None and each.key.key == program.key.key), None)
    if twin is not None:
        return [twin.not_kept or GONE]
    if counterpart is None or counterpart.key is None:
        return [ANOTHER]
    head, *further = difference(counterpart.key, program.key, ("first process", "second process"))
    return [f"its key is another in each process: {head}", *further]
