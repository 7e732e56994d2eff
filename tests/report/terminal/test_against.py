"""The terminal's tables of `perfsuite against`."""

import re
from pathlib import Path

from support.against import TEST

from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.found import Check, MetricChange, TestChange
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.report.terminal.against import check_lines
from perfsuite.report.terminal.output import colored


def check(*changes, tests=()):
    made = [VirtualEnvironment(Path(), (f"lib=={v}",), {"lib": str(v), "jax": "1"}, ()) for v in (1, 2)]
    return Check(*made, tests, changes, (5, 5), ("the machine was busy",))


def change(where, called, **more):
    values = {"metric": "f", "unit": "us", "before": 100.0, "after": 112.0, "ratio": 1.12}
    return MetricChange(where=where, called=called, test=TEST, **{**values, **more})


def test_what_changed_is_listed_by_where_and_the_rest_is_counted():
    slower = change("dispatch", "worse", interval=Interval(1.08, 1.17), processes=10)
    same = change("dispatch", "no change seen", metric="g", interval=Interval(0.9, 1.2), processes=10)
    calls = change("host calls", "worse", unit="calls", before=0, after=4, ratio=None, grown=(Part("a", 4),))
    text = "\n".join(check_lines(check(slower, same, calls)))
    assert "what differs: lib 1 -> 2" in text
    assert "note: the machine was busy" in text
    assert "dispatch: 1 worse, 1 no change seen" in text
    assert re.search(r"  f +100 us +112 us +\+12 % \[\+8 %, \+17 %\] +worse", text)
    assert not re.search(r"^  g", text, re.MULTILINE)
    assert re.search(r"  f +0 calls +4 calls +\+4 +worse\n +more calls of a \(\+4\)", text)
    assert "\n".join(check_lines(check(slower, same), everything=True)).count("\n  g ") == 1
    assert "from 10 processes on each side" in text
    assert text.endswith("worse: 2 metrics")


def test_tests_that_no_longer_pass_are_listed_and_counted():
    lost = TestChange("a", "passed", "not run", "after: ImportError")
    text = "\n".join(check_lines(check(tests=(lost,))))
    assert "  a: passed -> not run\n    after: ImportError" in text
    assert text.endswith("worse: 0 metrics and 1 test no longer passes")


def test_colours_only_where_asked_for():
    slower = change("device", "worse")
    assert "\033" not in "".join(check_lines(check(slower)))
    assert "\033[31m" in "".join(check_lines(check(slower), paint=colored))
