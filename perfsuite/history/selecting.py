"""Some metrics of many: by their names, kinds and provenance."""

import fnmatch
from collections.abc import Collection

from perfsuite.gate.baseline import Baselines, Entry


def matches(pattern: str | None, test: str, name: str) -> bool:
    """Whether the test's id or the metric's name contains `pattern`, or matches it with `*` and `?`; in any case."""
    if pattern is None:
        return True
    wanted = pattern.casefold()
    # Contained, first of all: the brackets of a test's parameters are a set to fnmatch.
    return any(wanted in text.casefold() or fnmatch.fnmatchcase(text.casefold(), wanted) for text in (test, name))


def select(
    baselines: Baselines,
    pattern: str | None = None,
    kinds: Collection[str] = (),
    provenances: Collection[str] = (),
) -> Baselines:
    """The metrics that match the pattern and are of one of the kinds and provenances; none given stand for all."""

    def wanted(test: str, name: str, entry: Entry) -> bool:
        return (
            matches(pattern, test, name)
            and (not kinds or entry.kind in kinds)
            and (not provenances or entry.provenance in provenances)
        )

    metrics = {
        test: {name: entry for name, entry in entries.items() if wanted(test, name, entry)}
        for test, entries in baselines.metrics.items()
    }
    return Baselines(baselines.device, {test: entries for test, entries in metrics.items() if entries})
