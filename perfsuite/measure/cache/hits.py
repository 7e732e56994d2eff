"""What a second process compiles although the first has run the same call with the same cache, and why."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from perfsuite.measure.cache.keys import difference
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.persistent_cache import CachedProgram, watching_cache
from perfsuite.measure.words import plural

_MISSES_SHOWN = 5

OFF = "JAX does not use its cache: jax_enable_compilation_cache is off, or this device's programs cannot be kept"
GONE = "it was put into the cache, and its entry is not there any more: raise jax_compilation_cache_max_size"
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
    left = list(first)
    for program in second:
        counterpart = next((each for each in left if each.name == program.name), None)
        if counterpart is not None:
            left.remove(counterpart)
        yield program, counterpart


def _why(program: CachedProgram, first: Sequence[CachedProgram], counterpart: CachedProgram | None) -> list[str]:
    if program.key is None:
        return [OFF]
    twin = next((each for each in first if each.key is not None and each.key.key == program.key.key), None)
    if twin is not None:
        return [twin.not_kept or GONE]
    if counterpart is None or counterpart.key is None:
        return [ANOTHER]
    head, *further = difference(counterpart.key, program.key, ("first process", "second process"))
    return [f"its key is another in each process: {head}", *further]
