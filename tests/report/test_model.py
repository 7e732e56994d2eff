"""What every report is made of: its round trip through JSON, and what it counts."""

import json
import math

from hypothesis import given, settings
from support.report_samples import HEADER, metric, perf_test, reports

from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import Interval
from perfsuite.report.model import Report, verdict_counts_of


@settings(max_examples=30)
@given(reports)
def test_a_report_is_strict_json_in_ascii_with_every_result(report):
    text = report.to_json()
    assert text.isascii()
    values = json.loads(text, parse_constant=_refuse)
    names = [[each["title"] for each in test["results"]] for test in values["tests"]]
    assert names == [[result.metric.title for result in test.results] for test in report.tests]


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")


def test_numbers_that_json_lacks_are_texts():
    unbounded = metric("p99", 1.5, kind="time", interval=Interval(1.0, math.inf), limit=math.inf)
    values = json.loads(Report(HEADER, (perf_test("test_step", unbounded),)).to_json())
    (written,) = values["tests"][0]["results"]
    assert (written["metric"]["interval"], written["limit"]) == ({"low": 1.0, "high": "inf"}, "inf")


def test_counts_are_in_the_order_in_which_a_reader_wants_them():
    metrics = [
        metric(verdict=verdict) for verdict in (Verdict.INFO, Verdict.PASS, Verdict.PASS, Verdict.NEW, Verdict.FAIL)
    ]
    report = Report(HEADER, (perf_test("test_a", *metrics), perf_test("test_b", outcome="error")))
    assert list(verdict_counts_of(report.results).items()) == [
        (Verdict.FAIL, 1),
        (Verdict.NEW, 1),
        (Verdict.PASS, 2),
        (Verdict.INFO, 1),
    ]
    assert list(report.outcomes.items()) == [("error", 1), ("passed", 1)]
    assert [test.test for test in report.failures] == ["test_it.py::test_b"]
