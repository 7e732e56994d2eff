"""`report.sarif`: what code scanning needs, at the lines that failed tests blame."""

import json

from hypothesis import given, settings
from support.report_samples import HEADER, metric, perf_test, reports

from perfsuite.gate.verdict import Verdict
from perfsuite.report.files import sarif
from perfsuite.report.model import Report


def results(*tests):
    (run,) = json.loads(sarif(Report(HEADER, tests)))["runs"]
    return run["results"]


def test_a_failed_test_is_a_result_at_the_line_that_it_blames():
    worse = perf_test(
        "test_step", metric(verdict=Verdict.FAIL), outcome="failed", message="step is 2", blamed=("models/model.py", 42)
    )
    (found,) = results(worse, perf_test("test_other", metric()))
    assert (found["ruleId"], found["level"]) == ("worse", "error")
    assert found["message"]["text"] == "test_it.py::test_step: step is 2"
    assert found["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "models/model.py", "uriBaseId": "ROOT"},
                "region": {"startLine": 42},
            }
        }
    ]


def test_without_a_line_to_blame_it_is_that_of_the_test():
    (found,) = results(perf_test(outcome="error", message="no such fixture"))
    assert found["ruleId"] == "failed"
    (place,) = found["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "test_it.py"
    assert place["physicalLocation"]["region"] == {"startLine": 3}


@settings(max_examples=40)
@given(reports)
def test_any_report_is_sarif_of_its_failures(report):
    written = json.loads(sarif(report))
    assert written["version"] == "2.1.0"
    (run,) = written["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {found["ruleId"] for found in run["results"]} <= rules
    assert len(run["results"]) == len(report.failures)
    assert all(
        place["physicalLocation"].get("region", {"startLine": 1})["startLine"] >= 1
        for found in run["results"]
        for place in found["locations"]
    )
