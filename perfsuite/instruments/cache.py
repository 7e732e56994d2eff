"""`perf.cache_key` and `perf.cache_hits`: whether another process can use what JAX's persistent cache has.

Both make the call in fresh processes, which run the same test up to here. Each is like one on another machine, so that
what must not be part of a program (a hash seed, a host's name) shows where it is.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import judge_budget
from perfsuite.instruments.base import Instrument, declare
from perfsuite.measure.cache import CacheHits, CacheKeys, check_lowers, compare_runs, run_with_cache, take_key
from perfsuite.measure.call import Call, checked
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import PERSISTENT_CACHE
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey
from perfsuite.measure.serialise import from_plain
from perfsuite.session.modes import Elsewhere

T = TypeVar("T")

CACHE_KEY = declare(
    "perf.cache_key",
    {"cache_keys": "keys that processes have for a call, in a persistent cache (default: 1)"},
    needs=("processes", "alone"),
    private=(PERSISTENT_CACHE,),
)
CACHE_HITS = declare(
    "perf.cache_hits",
    {"cache_misses": "programs that a second process compiles, with a persistent cache (default: 0)"},
    needs=("processes", "alone"),
    private=(PERSISTENT_CACHE,),
)


ONE_KEY = Budget(cache_keys=1)
NO_MISSES = Budget(cache_misses=0)


class CacheInstrument(Instrument):
    def cache_key(
        self, call: Call, processes: int = 3, *, budget: Budget = ONE_KEY, name: str | None = None
    ) -> CacheKeys:
        """Fail where JAX's persistent cache has another key for a call in another process, and say what differs.

        The call is lowered, and not compiled, in so many fresh processes: `.keys`, `.distinct`. `Budget(cache_keys=)`
        says how many different keys there may be.
        """
        __tracebackhide__ = True
        limits = self._begin(CACHE_KEY, budget)
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 2:
            raise ValueError(f"perf.cache_key(processes={processes!r}): compare 2 processes or more")
        check_lowers(checked(call, "perf.cache_key"))
        measured = self._recorder.measured("cache_key", call.label, " cache keys", name=name)
        asked = Elsewhere(self._item, measured.id, lambda given: take_key(call), processes)
        values = self._session.mode.elsewhere(asked)
        if values is None:
            return CacheKeys(call.label, ())
        keys = CacheKeys(call.label, tuple(_read(ProgramKey, each, CACHE_KEY.method) for each in values))
        (metric,) = measured.metrics([keys.metric(measured.name)])
        self._recorder.add(metric)
        note = f"{keys.in_words()}: JAX's persistent cache gives a process only what one with the same key compiled"
        self._check(metric, limits.get("cache_keys"), note, keys.why)
        return keys

    def cache_hits(self, call: Call, *, budget: Budget = NO_MISSES, name: str | None = None) -> CacheHits:
        """Fail where a second process compiles what the first one has compiled, and say why: `.misses`, `.hits`.

        Two fresh processes run the call, one after the other, with JAX's persistent cache as the test sets it. A
        temporary folder stands in for that of the cache. `Budget(cache_misses=)` says how many programs the second may
        compile.
        """
        __tracebackhide__ = True
        limits = self._begin(CACHE_HITS, budget)
        checked(call, "perf.cache_hits")
        measured = self._recorder.measured("cache_hits", call.label, " cache misses", name=name)
        with tempfile.TemporaryDirectory(prefix="perfsuite-cache-", ignore_cleanup_errors=True) as temporary:
            asked = Elsewhere(
                self._item,
                measured.id,
                lambda given: run_with_cache(call, Path(given["folder"])),
                processes=2,
                given={"folder": temporary},
            )
            values = self._session.mode.elsewhere(asked)
        if values is None:
            return CacheHits(call.label, 0, 0, ())
        first, second = (_read(list[CachedProgram], each, CACHE_HITS.method) for each in values)
        runs = compare_runs(call.label, first, second)
        misses, hits = measured.metrics(runs.metrics(measured.name))
        self._recorder.add(misses)
        self._recorder.add(hits)
        self._check(misses, limits.get("cache_misses"), runs.in_words(), runs.why)
        return runs

    def _check(self, metric: Metric, limit: float | None, note: str, why: Callable[[], list[str]]) -> None:
        """Apply a budget to a metric. `note` says that it is broken, in place of the figures, and `why` says why."""
        __tracebackhide__ = True
        if limit is None:
            return
        result = judge_budget(self._test, metric, limit)
        result = dataclasses.replace(result, note=note) if result.failed else result
        self._recorder.apply([result], lambda: "\n".join(why()))


def _read(kind: type[T], value: Any, method: str) -> T:
    """What a fresh process handed over."""
    __tracebackhide__ = True
    try:
        return from_plain(kind, value)
    except ValueError as error:
        raise MeasurementError(f"{method}: what a fresh process handed over cannot be read ({error})") from None
