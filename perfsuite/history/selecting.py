"""Choose metrics of a baseline file by name, kind and provenance."""

import fnmatch
from collections.abc import Collection

from perfsuite.gate.baseline import Baselines, name_of


def matches(pattern: str | None, *names: str) -> bool:
    """Whether one of the names contains `pattern`, or matches it with `*` and `?`; ignores case."""
    if pattern is None:
        return True
    wanted = pattern.casefold()
    # First whether it contains the pattern: fnmatch reads the brackets of a test's parameters as a set of letters.
    return any(wanted in text.casefold() or fnmatch.fnmatchcase(text.casefold(), wanted) for text in names)


def select(
    baselines: Baselines,
    pattern: str | None = None,
    kinds: Collection[str] = (),
    provenances: Collection[str] = (),
) -> Baselines:
    """The metrics that match the pattern and have one of the kinds and provenances; an empty choice means all.

    Those of other processors are among them, by a name that says so.
    """
    metrics = {
        test: {
            id: entry
            for id, entry in entries.items()
            if matches(pattern, test, id, name_of(id, entry))
            and (not kinds or entry.kind in kinds)
            and (not provenances or entry.provenance in provenances)
        }
        for test, entries in baselines.by_name.items()
    }
    metrics = {test: entries for test, entries in metrics.items() if entries}
    revisions = {test: each for test, each in baselines.revisions.items() if test in metrics}
    return Baselines(baselines.device, metrics, revisions)
