"""The terminal of a session with --perf: its header, the table of -v, the closing summary, and the traces.

A session closes with a few lines, whatever its metrics: each kind of note is one line, and names a few of its metrics.
-v has all of them.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.version import Version

import perfsuite
from perfsuite.gate import messages
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.merging import Change
from perfsuite.gate.messages import change_in_words, relative_change
from perfsuite.gate.verdict import Reach, Result, Verdict
from perfsuite.measure.io import relative
from perfsuite.measure.metric import Metric
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.tables import PAGE_WIDTH, clipped, metric_table
from perfsuite.session.judge import Judge
from perfsuite.session.records import TestRecord, TraceRecord
from perfsuite.session.session import PerfSession


def session_header(judge: Judge, rootpath: Path) -> list[str]:
    """Device, versions and baseline files, for the top of the session; a line for each named target."""
    environment = judge.environment
    libraries = ((name, getattr(environment, name)) for name in ("jax", "jaxlib", "equinox"))
    versions = [f"{name} {version}" for name, version in libraries if version]
    devices = f"{environment.device_count} x {environment.device_kind}"
    if environment.process_count > 1:
        devices += f" in {environment.process_count} processes"
    lines = [
        f"{devices} ({environment.processor}), {', '.join(versions)}",
        *_newer(environment.jax),
        f"baselines {_baselines(judge, None, rootpath)}, size {judge.options.size}",
        *(f"{name}: {_baselines(judge, name, rootpath)}" for name in judge.options.targets),
    ]
    return [f"perfsuite: {line}" for line in lines]


def _newer(jax: str) -> list[str]:
    """That jax is newer than any that perfsuite was tested with. A rebuilt release, 0.12.0.1 of 0.12.0, is none."""
    newest = perfsuite.tested[-1]
    if Version(jax).release[:3] <= Version(newest).release:
        return []
    return [f"jax {jax} is newer than {newest}, the newest that it knows: what it cannot measure there is skipped"]


def _baselines(judge: Judge, target: str | None, rootpath: Path) -> str:
    count = sum(map(len, judge.baselines_of(target).metrics.values()))
    none = "no metrics yet" + ("" if judge.options.save else ": pytest --perf-save records them")
    recorded = plural(count, "metric") if count else none
    return f"{relative(judge.path_of(target), rootpath)} ({recorded})"


class Line(NamedTuple):
    """A line, and pytest's markup of it."""

    text: str
    markup: dict[str, bool]


_LONGEST_NAME = 30

_REASONS = 2
"""How many reasons a line names, the commonest first."""


def painted(verdict: Verdict) -> dict[str, bool]:
    """The markup of a verdict, as pytest's reporter takes it."""
    return {verdict.color: True} if verdict.color else {}


def overview(results: Sequence[Result], *, saving: bool, lost: Sequence[str] = ()) -> list[Line]:
    """The entries of the closing lines.

    `lost` says of each test that was skipped for it what does not work with the libraries that are installed.
    """
    verdicts: dict[tuple[str, str], Verdict] = {}
    for result in results:
        key = result.test, result.metric.title
        verdicts[key] = max(result.verdict, verdicts.get(key, result.verdict))
    counts = collections.Counter(verdicts.values())
    said = f"{plural(len(verdicts), 'metric')} of {plural(len({test for test, _ in verdicts}), 'test')}"
    if verdicts and not saving:
        said += f": {messages.verdict_counts(verdicts.values())}"
    lines = [Line(said, {})] if verdicts else []
    lines += _lost(lost)
    lines += _open(Verdict.INCONCLUSIVE, results, messages.why_open)
    if over := [result for result in results if result.open_over]:
        lines.append(Line(f"over the limit and undecided: {messages.short(over)}", painted(Verdict.INCONCLUSIVE)))
    if not saving:
        others = [result for result in results if result.incomparable not in lost]
        lines += _open(Verdict.NOT_COMPARABLE, others, lambda result: result.incomparable)
        lines += _to_record([result for result in results if result.verdict == Verdict.IMPROVED], counts[Verdict.NEW])
        lines += _moved([result for result in results if result.recorded_as])
    return lines


def explanations(results: Iterable[Result]) -> list[Line]:
    """For -v: what is known of metrics that failed beside their change, and the reasons of open ones."""
    open_ones = (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
    explained = [
        result
        for result in results
        if result.verdict in open_ones or result.recorded_as or (result.failed and _explains(result))
    ]
    explained.sort(key=lambda result: result.verdict, reverse=True)
    return [
        Line(
            f"{result.verdict}: {result.test}{result.where and f' at {result.where}'}: {messages.in_full(result)}",
            painted(result.verdict),
        )
        for result in explained
    ]


def _explains(result: Result) -> bool:
    """Whether more is known of a failure than the table of -v has."""
    return bool(result.grown or result.versions or messages.cause(result) or result.program or result.strict)


def _open(verdict: Verdict, results: Sequence[Result], why: Callable[[Result], str]) -> list[Line]:
    """How many metrics have an open verdict and why; an example of the commonest reason, and what would settle it."""
    by_metric = {
        (result.test, result.metric.title): result for result in reversed(results) if result.verdict == verdict
    }
    found = list(reversed(by_metric.values()))
    if not found:
        return []
    reasons = collections.Counter(map(why, found))
    lines = [Line(_reasons(str(verdict), reasons), painted(verdict))]
    example = next(result for result in found if why(result) == reasons.most_common(1)[0][0])
    name = clipped(example.metric.title, _LONGEST_NAME)
    settles = messages.to_settle(example)
    if advice := example.cause.partition("\n")[0] or example.note or (settles and f"{name}: {settles}"):
        lines.append(Line(f"  {advice}", painted(verdict)))
    return lines


def _reasons(what: str, counts: collections.Counter[str]) -> str:
    """The commonest reasons, each with its count: `not comparable: 12 another Python; 3 others`."""
    named = [f"{count:,} {reason}" for reason, count in counts.most_common(_REASONS)]
    others = counts.total() - sum(count for _, count in counts.most_common(_REASONS))
    return f"{what}: {'; '.join(named)}{f'; {others:,} others' if others else ''}"


def _to_record(improved: Sequence[Result], new: int) -> list[Line]:
    """What a save would record: improvements with the largest of them, and metrics without a baseline."""
    lines: list[Line] = []
    if improved:
        best = max(improved, key=lambda result: abs(relative_change(result) or 0.0))
        by = f" ({change_in_words(best)})" if change_in_words(best) else ""
        more = f", and {len(improved) - 1:,} more" if improved[1:] else ""
        name = clipped(best.metric.title, _LONGEST_NAME)
        lines.append(Line(f"improved: {name}{by}{more}: pytest --perf-save records it", painted(Verdict.IMPROVED)))
    if new:
        lines.append(Line(f"new: {messages.without_baseline(new)}", painted(Verdict.NEW)))
    return lines


def _moved(moved: Sequence[Result]) -> list[Line]:
    """Calls that changed places: how many metrics, and the first of them."""
    if not moved:
        return []
    metrics = f"{plural(len(moved), 'metric')} of calls that changed places"
    remedy = "give each its name=, or run pytest --perf-save"
    return [Line(f"moved: {metrics}: {remedy}: {moved[0].metric.title} of {moved[0].test}", {"yellow": True})]


def _lost(lost: Sequence[str]) -> list[Line]:
    """How many tests were skipped for what does not work with the libraries that are installed."""
    if not lost:
        return []
    skipped = f"{plural(len(lost), 'test')} skipped"
    said = f"{skipped}: {lost[0]}" if len({*lost}) == 1 else _reasons(skipped, collections.Counter(lost))
    return [Line(said, {"yellow": True})]


_CHANGE_COLORS: dict[str, dict[str, bool]] = {"better": {"green": True}, "worse": {"red": True}}


def session_summary(
    reporter: pytest.TerminalReporter,
    session: PerfSession,
    rootpath: Path,
    saved: Sequence[SaveResult],
    not_saved: str,
) -> None:
    """How the gates of the session ended, in few lines; with -v a table of all before. Then what was saved.

    Failures are in pytest's own section, each once.
    """
    results = [result for record in session.records for result in record.results]
    verbose = reporter.config.get_verbosity() > 0
    lines: list[Line] = []
    lost = {record.test: record.lost for record in (*session.records, *session.unmeasured) if record.lost}
    if results or lost:
        reporter.section("perfsuite", sep="=")
        if verbose:
            # Of a pipe or a log pytest knows no width.
            width = reporter.config.get_terminal_writer().fullwidth
            page = width if reporter.isatty else max(width, PAGE_WIDTH)
            for line, result in metric_table(results, page) if results else ():
                reporter.line(line, **(painted(result.verdict) if result else {}))
            _write(reporter, explanations([result for record in session.records for result in _untold(record)]))
        lines += overview(results, saving=session.options.save, lost=list(lost.values()))
    lines += _programs(session, rootpath, every=verbose)
    _write(reporter, lines)
    for file in saved:
        _saved(reporter, file, rootpath)
    _reaches(reporter, session.judge.reaches(session.records, saved) if saved else [], every=verbose)
    if not_saved:
        reporter.line(not_saved, red=True, bold=True)


def _untold(record: TestRecord) -> list[Result]:
    """The gates without the one that the message of a failed test explains."""
    failed = [result for result in record.results if result.failed]
    told = messages.by_weight(failed)[0] if failed and not record.passed else None
    return [result for result in record.results if result is not told]


def _write(reporter: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
    for line in lines:
        reporter.line(line.text, **line.markup)


def _programs(session: PerfSession, rootpath: Path, *, every: bool) -> list[Line]:
    """How many programs were compiled, and kernels without an estimate: the first, or `every` one."""
    lines = []
    compiled = sum(record.compiled for record in session.records)
    cached = sum(record.cached for record in session.records)
    if compiled or cached:
        where = f"the cache ({relative(session.cache, rootpath)})" if session.cache else "a cache"
        said = f"{plural(compiled + cached, 'program')}: {compiled} compiled, {cached} from {where}"
        lines.append(Line(said, {}))
    kernels = list(dict.fromkeys(kernel for record in session.records for kernel in record.unestimated))
    if every:
        return lines + [Line(messages.without_estimate([kernel]), {"yellow": True}) for kernel in kernels]
    return lines + ([Line(messages.without_estimate(kernels), {"yellow": True})] if kernels else [])


def _saved(reporter: pytest.TerminalReporter, file: SaveResult, rootpath: Path) -> None:
    reporter.line(f"{Path(relative(file.path, rootpath)).as_posix()}: {messages.save_summary(file)}")
    worse, better, other = (file.of("update", each) for each in ("worse", "better", "not comparable"))
    gone = file.of("trim")
    for changes, about in (
        (worse, f"{len(worse)} got worse and {'was' if len(worse) == 1 else 'were'} accepted"),
        (gone, f"{len(gone)} removed, because no test makes {'it' if len(gone) == 1 else 'them'} any more"),
        (better, f"{len(better)} better"),
        (other, f"{len(other)} replaced, because the two cannot be compared"),
    ):
        if changes:
            reporter.line(f"  {about}:", **_CHANGE_COLORS.get(changes[0].direction, {}))
            for each in changes:
                reporter.line(f"    {_in_words(each)}")


def _reaches(reporter: pytest.TerminalReporter, reaches: Sequence[Reach], *, every: bool) -> None:
    """From what worsening on the saved ratios and times fail: the noisy ones, or `every` one; the rest in one line."""
    shown = [each for each in reaches if every or each.noisy]
    for each in shown:
        advice = ": save it again on a machine without other processes" if each.noisy else ""
        limit = f"limit {number(each.limit)} {each.metric.unit}"
        reporter.line(
            f"  {each.test}: {each.metric.title} is {number(each.metric.value)} {each.metric.unit}, and its gate fails "
            f"from {percent(each.share)} on ({limit}){advice}",
            yellow=each.noisy,
        )
    if others := [each.share for each in reaches if each not in shown]:
        at_most = "" if len(others) == 1 else "at most "
        gates = plural(len(others), "gate of a ratio or a time fails", "gates of ratios and times fail")
        reporter.line(f"  {gates} from {at_most}{percent(max(others))} on")


def _in_words(saved: Change) -> str:
    where = f"{saved.test}: {saved.name}"
    if saved.new is None or saved.old is None:
        return where
    versions = f" ({', '.join(saved.versions)})" if saved.versions else ""
    return f"{where}: {number(saved.old.value)} -> {number(saved.new.value)} {saved.new.unit}{versions}"


HOW = "open a perfetto_trace.json.gz with https://ui.perfetto.dev, or a folder with TensorBoard's profile plugin, xprof"


def trace_summary(reporter: pytest.TerminalReporter, session: PerfSession, rootpath: Path) -> None:
    """Device time, wall time, idle share and the longest operations, trace by trace."""
    root = session.options.traces
    if root is None:
        return
    reporter.section("perfsuite traces", sep="=")
    for record in session.records:
        if record.traces:
            reporter.line(record.test)
        for trace in record.traces:
            _trace(reporter, trace, root)
    count = sum(len(record.traces) for record in session.records)
    reporter.line(f"{plural(count, 'trace')} below {relative(root, rootpath)}: {HOW}")


def _trace(reporter: pytest.TerminalReporter, trace: TraceRecord, root: Path) -> None:
    folder = relative(Path(trace.folder), root)
    if trace.note:
        reporter.line(f"  {trace.name}: no metrics ({trace.note}): {folder}", yellow=True)
        return
    metrics = ", ".join(_trace_metric(trace.name, metric) for metric in trace.metrics)
    reporter.line(f"  {trace.name}: {metrics} ({plural(trace.runs, 'run')}): {folder}")
    for name, us, count in trace.longest:
        reporter.line(f"    {number(us):>9} us  {number(count):>5} x  {name}")


def _trace_metric(trace: str, metric: Metric) -> str:
    """`device 31.2 us`, `idle share 0.012`."""
    what = metric.name.removeprefix(f"{trace} trace ")
    return f"{what} {metric.value:.3f}" if metric.unit == "share" else f"{what} {number(metric.value)} us"
