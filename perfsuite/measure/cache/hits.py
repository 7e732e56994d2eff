"""What a second process compiles although the first has run the same call with the same cache, and why."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from perfsuite.measure.cache.differences import difference
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey, watching_cache
from perfsuite.measure.words import number, plural

_TOO_QUICK = re.compile(r"because it took < ([\d.]+) seconds to compile")
_TOO_SMALL = re.compile(r"since its size \((\d+) bytes\) is less than threshold \((\d+) bytes\)")
_MISSES_SHOWN = 5

OFF = "JAX does not use its cache: jax_enable_compilation_cache is off, or this device's programs cannot be kept"
CALLS_PYTHON = (
    "it calls Python (jax.debug.print, pure_callback, io_callback): JAX keeps no such program. Leave the call out, or "
    "make it in a small program of its own"
)
GONE = (
    "it was put into the cache, and its entry is not there any more: jax_compilation_cache_max_size takes old ones out"
)
ANOTHER = "the first process compiled no program of that name"


@dataclasses.dataclass(frozen=True)
class Miss:
    """A program that the second process compiled, so many times, and why: the first line is the reason."""

    program: str
    times: int
    why: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CacheHits:
    """What the second process found. `programs` is how many it needed, and `hits` how many of them it found."""

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
        said = []
        for miss in self.misses[:_MISSES_SHOWN]:
            first, *further = miss.why
            times = f" ({miss.times} times)" if miss.times > 1 else ""
            said += [f"{miss.program}{times}: {first}", *(f"  {line}" for line in further)]
        if (more := len(self.misses) - _MISSES_SHOWN) > 0:
            said.append(f"and {plural(more, 'program')} more")
        return said

    def __str__(self) -> str:
        return "\n".join([self.in_words(), *self.why()])


def run_with_cache(call: Call, folder: Path) -> list[CachedProgram]:
    """Run a call once in this process, with JAX's persistent cache in `folder`, and say what became of its programs.

    JAX's caches in memory are emptied, so that all that the call runs is compiled or found.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()
    jax.clear_caches()
    with watching_cache() as programs:
        jax.block_until_ready(call.run())
    return programs


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
    places: Counter[str] = Counter()
    for program in second:
        same = [each for each in first if each.name == program.name]
        place = places[program.name]
        places[program.name] += 1
        yield program, same[place] if place < len(same) else None


def _why(program: CachedProgram, first: Sequence[CachedProgram], counterpart: CachedProgram | None) -> list[str]:
    if program.key is None:
        return [OFF]
    twin = next((each for each in first if _key(each.key) == program.key.key), None)
    if twin is not None:
        return [_not_kept(twin.not_kept) if twin.not_kept else GONE]
    if counterpart is None or counterpart.key is None:
        return [ANOTHER]
    head, *further = difference(counterpart.key, program.key, ("first process", "second process"))
    return [f"its key is another in each process: {head}", *further]


def _key(key: ProgramKey | None) -> str:
    return "" if key is None else key.key


def _not_kept(said: str) -> str:
    if quick := _TOO_QUICK.search(said):
        return (
            f"it compiled in less than {number(float(quick[1]))} s: "
            "jax_persistent_cache_min_compile_time_secs=0 keeps it too"
        )
    if small := _TOO_SMALL.search(said):
        size, least = (number(float(each)) for each in small.groups())
        return (
            f"its entry has {size} bytes, fewer than jax_persistent_cache_min_entry_size_bytes={least}: -1 keeps it too"
        )
    return CALLS_PYTHON if "host callbacks" in said else said
