"""`Report`: the records of one session with --perf. Every report is made of it, and of nothing else.

`report_of` makes it from a finished session; `report.json` is `Report.to_json`.
"""

import collections
import dataclasses
import datetime
import importlib.metadata
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import VERSION_FIELDS, Environment
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.io import relative
from perfsuite.measure.serialise import plain
from perfsuite.session.records import TestRecord
from perfsuite.session.session import PerfSession

SCHEMA = 3

OUTCOMES = ("failed", "error", "skipped", "passed")


@dataclasses.dataclass(frozen=True)
class Header:
    """Where and how the session ran.

    `project` is the name of the root folder, `date` the time of the report (ISO 8601, UTC), `device` the name of the
    device's file in the folder `baselines`.
    """

    project: str
    date: str
    seconds: float
    exit_status: int
    device: str
    environment: Environment
    perfsuite: str
    size: str
    baselines: str

    @property
    def versions(self) -> str:
        """`python 3.11.7, jax 0.10.2, perfsuite 0.2`: what is installed."""
        versions = {name: getattr(self.environment, name) for name in VERSION_FIELDS} | {"perfsuite": self.perfsuite}
        return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


@dataclasses.dataclass(frozen=True)
class Report:
    """One session.

    A metric with a budget and a baseline has two results; one of a test that ended before its baselines were compared
    is not judged. A test that is gone has failed. The files of tests are seen from the project's root, the folders of
    traces from the report. `saved` has the baseline files that --perf-save wrote, seen from the root. `notes` are
    sentences about the session as a whole, such as why no baseline was saved.
    """

    header: Header
    tests: tuple[TestRecord, ...] = ()
    saved: tuple[SaveResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> list[Result]:
        """Those of all tests, in the order of the session."""
        return [result for test in self.tests for result in test.results]

    def of_verdict(self, verdict: Verdict) -> list[Result]:
        """The results with one verdict: failures by weight, others in the order of the session."""
        results = [result for result in self.results if result.verdict == verdict]
        return messages.by_weight(results) if verdict.fails else results

    @property
    def outcomes(self) -> dict[str, int]:
        """How many tests have each outcome, in the order of `OUTCOMES`."""
        counts = collections.Counter(test.outcome for test in self.tests)
        return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}

    @property
    def failures(self) -> list[TestRecord]:
        """The tests that failed."""
        return [test for test in self.tests if test.outcome in ("failed", "error")]

    def to_json(self) -> str:
        """The text of `report.json`: strict JSON in ASCII. An infinite number or a NaN is a text in it."""
        values = {
            "schema": SCHEMA,
            "header": self.header,
            "tests": list(map(_test, self.tests)),
            "saved": list(map(_saved, self.saved)),
            "notes": self.notes,
        }
        return json.dumps(plain(values), allow_nan=False, separators=(",", ":")) + "\n"


def verdict_counts_of(results: Iterable[Result]) -> dict[Verdict, int]:
    """How many results have each verdict, the gravest first."""
    return dict(sorted(collections.Counter(result.verdict for result in results).items(), reverse=True))


def why(test: TestRecord) -> str:
    """The message of a test that failed, and the reasons of the failures that it only names."""
    failures = messages.by_weight(result for result in test.results if result.verdict == Verdict.FAIL)
    others = [messages.explanation(result) for result in failures if messages.reason(result) not in test.message]
    return "\n\n".join([test.message or "no message", *filter(None, others)])


def _test(record: TestRecord) -> dict[str, Any]:
    # Each metric is in a result.
    fields = {name: value for name, value in plain(record).items() if name != "metrics"}
    return {**fields, "results": list(map(_with_sentences, record.results))}


def _with_sentences(result: Result) -> dict[str, Any]:
    sentences = {"title": result.metric.title, "reason": messages.reason(result), "first": messages.first(result)}
    return {**plain(result), **sentences}


def _saved(file: SaveResult) -> dict[str, Any]:
    changes = [
        {
            "test": change.test,
            "name": change.name,
            "action": change.action,
            "direction": change.direction,
            "old": change.old and change.old.value,
            "new": change.new and change.new.value,
            "versions": change.versions,
        }
        for change in file.changes
        if change.action != "keep"
    ]
    return {"path": file.path.as_posix(), "summary": messages.save_summary(file), "changes": changes}


def report_of(
    session: PerfSession,
    rootpath: Path,
    *,
    folder: Path | None = None,
    saved: Sequence[SaveResult] = (),
    not_saved: str = "",
    exit_status: int = 0,
    seconds: float = 0.0,
) -> Report:
    """The report of a session whose tests have ended.

    Paths are relative to `rootpath`; those of traces to `folder`, which will hold the report (default: `rootpath`).
    `saved` and `not_saved` are what --perf-save did.
    """
    notes = [not_saved] if not_saved else []
    notes += [note for record in session.records for note in record.notes]
    header = Header(
        project=rootpath.name,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        exit_status=int(exit_status),
        device=session.judge.device,
        environment=session.judge.environment,
        perfsuite=importlib.metadata.version("perfsuite"),
        size=session.options.size,
        baselines=Path(relative(session.options.baselines, rootpath)).as_posix(),
    )
    return Report(
        header,
        tests=tuple(_in_report(record, folder or rootpath) for record in _records(session)),
        saved=tuple(dataclasses.replace(file, path=Path(relative(file.path, rootpath))) for file in saved),
        notes=tuple(notes),
    )


def _records(session: PerfSession) -> Iterable[TestRecord]:
    """One record a test: of a test that ran again the last, of one that failed once more after its body both as one."""
    records = {record.test: record for record in session.records}
    for record in session.unmeasured:
        if before := records.get(record.test):
            message = "\n".join(filter(None, [before.message, record.message]))
            outcome = before.outcome if before.outcome == "failed" else record.outcome
            record = dataclasses.replace(before, outcome=outcome, message=message)
        records[record.test] = record
    return records.values()


def _in_report(record: TestRecord, folder: Path) -> TestRecord:
    judged = {result.metric.title for result in record.results}
    others = [metric for metric in record.metrics if metric.title not in judged]
    return dataclasses.replace(
        record,
        results=(*record.results, *(Result(record.test, metric, Verdict.NOT_JUDGED) for metric in others)),
        metrics=(),
        file=record.file or record.test.partition("::")[0],
        traces=tuple(dataclasses.replace(each, folder=_seen_from(Path(each.folder), folder)) for each in record.traces),
    )


def _seen_from(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()
