"""With --junitxml every perf test has its metrics as properties; pytest-xdist's are in `test_github.py`."""

import xml.etree.ElementTree as ET

import pytest

from perfsuite.gate.verdict import Result, Verdict
from perfsuite.hooks.gating import junit_properties
from perfsuite.measure.metric import Interval, Metric

HOSTILE = ["<a>", "a & b", "'single' \"double\"", "]]>", "<!-- -->", "&lt;", "per cent % {x}", "\u00e9\u4e2d\U0001f600"]


def result(verdict, *, source=None, interval=None, **fields):
    return Result("t", Metric("ratio", 1.0621, "x", "ratio", interval=interval), verdict, source, **fields)


def properties(path):
    """The properties of each test case, by its name, in order."""
    cases = ET.parse(path).getroot().iter("testcase")
    return {
        case.get("name"): [(each.get("name"), each.get("value")) for each in case.iter("property")] for case in cases
    }


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([result(Verdict.NEW)], "1.062 x, new"),
        ([result(Verdict.PASS, source="budget", limit=1.1)], "1.062 x, pass (budget 1.1)"),
        ([result(Verdict.FAIL, source="baseline", limit=1.05, baseline=1.0)], "1.062 x, fail (baseline 1)"),
        ([result(Verdict.PASS, source="budget", limit=0.0)], "1.062 x, pass (budget 0)"),
        (
            [
                result(Verdict.PASS, source="budget", limit=1.1, interval=Interval(1.055, 1.07)),
                result(Verdict.FAIL, source="baseline", limit=1.05, baseline=1.0),
            ],
            "1.062 [1.055, 1.07] x, pass (budget 1.1), fail (baseline 1)",
        ),
    ],
)
def test_a_property_has_interval_unit_and_verdicts(results, text):
    assert junit_properties(results) == [("ratio", text)]


def test_metrics_are_properties_of_their_test_also_where_it_fails(project):
    project.makepyfile(
        test_all="""
        def test_good(perf):
            perf.record("calls", 7, unit="calls", kind="count")
            perf.record("ratio", 1.25, unit="x", kind="ratio", interval=(1.2, 1.3))
        def test_other(): pass
        """
    )
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    file = project.path / "test_all.py"
    file.write_text(file.read_text().replace("7", "8"))
    result = project.runpytest_inprocess("--perf", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, failed=1)
    assert properties(project.path / "out.xml") == {
        "test_good": [("calls", "8 calls, fail (baseline 7)"), ("ratio", "1.25 [1.2, 1.3] x, pass (baseline 1.25)")],
        "test_other": [],
    }


def test_hostile_names_and_units_are_valid_xml(project, perf_test):
    perf_test(*[f"perf.record({name!r}, 3, unit={name!r}, kind='count')" for name in HOSTILE])
    project.runpytest_inprocess("--perf", "--junitxml=out.xml").assert_outcomes(passed=1)
    (found,) = properties(project.path / "out.xml").values()
    assert found == [(name, f"3 {name}, new") for name in HOSTILE]
