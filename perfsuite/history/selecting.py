"""Choose metrics of a baseline file by name, kind and provenance."""

import fnmatch
from collections.abc import Collection

from perfsuite.gate.baseline import Baselines


def matches(pattern: str | None, test: str, name: str) -> bool:
    """Whether the test's id or the metric's name contains `pattern`, or matches it with `*` and `?`; ignores case."""
    if pattern is None:
        return True
    wanted = pattern.casefold()
    # First whether it contains the pattern: fnmatch reads the brackets of a test's parameters as a set of letters.
    return any(wanted in text.casefold() or fnmatch.fnmatchcase(text.casefold(), wanted) for text in (test, name))


def select(
    baselines: Baselines,
    pattern: str | None = None,
    kinds: Collection[str] = (),
    provenances: Collection[str] = (),
) -> Baselines:
    """The metrics that match the pattern and have one of the kinds and provenances; an empty choice means all."""
    metrics = {
        test: {
            name: entry
            for name, entry in entries.items()
            if matches(pattern, test, name)
            and (not kinds or entry.kind in kinds)
            and (not provenances or entry.provenance in provenances)
        }
        for test, entries in baselines.metrics.items()
    }
    return Baselines(baselines.device, {test: entries for test, entries in metrics.items() if entries})
