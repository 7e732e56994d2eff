"""Baseline files for people: what one holds, and what differs between two, in lines of text."""

import collections
from collections.abc import Sequence

from perfsuite.gate.baseline import Baselines, Revision, name_of
from perfsuite.gate.environment import VERSION_FIELDS, Environment
from perfsuite.gate.messages import verdict_counts
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import plural
from perfsuite.report.tables import Paint, aligned, by_test, clipped, result_lines, uncolored
from perfsuite.sources import Source, version_lines

_LISTED = (
    Verdict.FAIL, Verdict.MISSING, Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.NEW, Verdict.IMPROVED
)  # fmt: skip


def file_lines(source: Source, selected: Baselines, paint: Paint = uncolored) -> list[str]:
    """The header of a file, and its selected metrics, test by test."""
    return [*_header(source, selected, paint), "", *_metrics(selected, paint)]


def header_lines(source: Source, paint: Paint = uncolored) -> list[str]:
    """A file, how many metrics it has, and their environments."""
    return _header(source, source.baselines, paint)


def difference_lines(
    old: Source, new: Source, results: Sequence[Result], everything: bool = False, paint: Paint = uncolored
) -> list[str]:
    """What differs between two files: a table of each verdict that a reader wants, or of all; then their numbers.

    New and missing metrics are counted by their tests.
    """
    lines = [paint(f"{old.name} -> {new.name}", "bold")]
    if old.baselines.device != new.baselines.device:
        lines.append(
            f"different devices, {old.baselines.device} and {new.baselines.device}: counts and sizes of programs are "
            "compared, where a test has them on both; ratios and times are not comparable"
        )
    lines += [f"versions: {line}" for line in version_lines(results)]
    for verdict in sorted({each.verdict for each in results}, reverse=True):
        if everything or verdict in _LISTED:
            of_verdict = [each for each in results if each.verdict == verdict]
            by_test = verdict in (Verdict.NEW, Verdict.MISSING) and not everything
            body = _counted_by_test(of_verdict) if by_test else result_lines(_under_one_heading(of_verdict))
            lines += ["", paint(f"{len(of_verdict):,} {verdict}", verdict.color or "faint"), *body]
    return [*lines, "", verdict_counts(each.verdict for each in results) or "no metrics"]


def _environment_line(environment: Environment) -> str:
    """`8 x cpu (Xeon), python 3.11.7, jax 0.10.2, x64, XLA_FLAGS=...`."""
    parts = [f"{environment.device_count} x {environment.device_kind}"]
    if environment.processor:
        parts[0] += f" ({environment.processor})"
    parts += [f"{name} {version}" for name in VERSION_FIELDS if (version := getattr(environment, name, None))]
    parts += [f"{name} {version}" for name, version in environment.packages]
    if environment.x64:
        parts.append("x64")
    if environment.xla_flags:
        parts.append(f"XLA_FLAGS={environment.xla_flags}")
    return ", ".join(parts)


def _header(source: Source, selected: Baselines, paint: Paint) -> list[str]:
    every = source.baselines.entries
    some = len(selected.entries)
    of_all = f"{some:,} of {len(every):,} metrics" if some < len(every) else plural(some, "metric")
    tests = plural(len(selected.metrics), "test")
    lines = [paint(f"{source.name}: {source.baselines.device}, {of_all} of {tests}", "bold")]
    counts = collections.Counter(entry.environment for entry in every)
    without = counts.pop(None, 0)
    if saved := _same_revision(selected):
        lines.append(f"  saved at {saved}")
    for environment, count in counts.most_common():
        if environment is not None:
            lines.append(f"  {_environment_line(environment)}: {plural(count, 'metric')}")
    if without:
        lines.append(f"  no environment: {plural(without, 'metric')}")
    return lines


def _same_revision(selected: Baselines) -> Revision | None:
    """The revision at which every test was saved last, but for metrics of documents; None where they differ."""
    made = (
        test
        for test, entries in selected.metrics.items()
        if any(entry.provenance != "reported" for entry in entries.values())
    )
    revisions = {selected.revisions.get(test) for test in made}
    return revisions.pop() if len(revisions) == 1 else None


def _metrics(selected: Baselines, paint: Paint) -> list[str]:
    rows, tests = [], []
    revisions = {} if _same_revision(selected) else selected.revisions
    for test, entries in sorted(selected.metrics.items()):
        saved = f"  (saved at {revisions[test]})" if test in revisions else ""
        for id, entry in sorted(entries.items()):
            tests.append(f"{test}{saved}")
            kind = f"{entry.kind}, higher is better" if entry.better == "higher" else entry.kind
            origin = f"reported: {entry.source}" if entry.source else entry.provenance
            rows.append(
                (f"  {clipped(name_of(id, entry))}", span(entry.value, entry.interval), entry.unit, kind, origin)
            )
    return _under_their_tests(("metric", "value", "unit", "kind", "provenance"), rows, tests, paint)


def _under_their_tests(
    columns: Sequence[str], rows: Sequence[Sequence[str]], tests: Sequence[str], paint: Paint
) -> list[str]:
    head, lines = by_test(columns, rows, tests)
    return [paint(head, "bold"), *(line for line, _ in lines)]


def _under_one_heading(results: Sequence[Result]) -> list[Result]:
    """The results in their order, but those of a test together, where its first one stands."""
    tests = {test: place for place, test in enumerate(dict.fromkeys(each.test for each in results))}
    return sorted(results, key=lambda each: tests[each.test])


def _counted_by_test(results: Sequence[Result]) -> list[str]:
    counts = collections.Counter(each.test for each in results)
    return aligned([(f"  {plural(count, 'metric')}", test) for test, count in sorted(counts.items())])
