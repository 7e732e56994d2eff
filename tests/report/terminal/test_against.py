"""The terminal's tables of `perfsuite against`."""

import re

from support.against import change, check

from perfsuite.against.changes import TestChange
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.report.terminal.against import check_lines


def test_what_changed_is_listed_and_the_rest_is_counted():
    slower = change("worse", interval=Interval(1.08, 1.17), processes=10)
    same = change("no change seen", metric="g", interval=Interval(0.9, 1.2), processes=10)
    calls = change("worse", unit="calls", base=0, head=4, ratio=None, grown=(Part("a", 4),))
    text = "\n".join(check_lines(check(slower, same, calls, notes=("the machine was busy",))))
    assert "packages that differ: lib 1 -> 2" in text
    assert "note: the machine was busy" in text
    assert re.search(r"  f +100 us +112 us +\+12 % \[\+8 %, \+17 %\] +worse", text)
    assert not re.search(r"^  g", text, re.MULTILINE)
    assert re.search(r"  f +0 calls +4 calls +\+4 +worse\n +more calls of a \(\+4\)", text)
    assert "\n".join(check_lines(check(slower, same), everything=True)).count("\n  g ") == 1
    assert "3 metrics: 2 worse, 1 no change seen" in text
    assert text.endswith("worse: 2 metrics")


def test_what_is_exact_and_undecided_is_listed_an_undecided_time_is_counted():
    lines = check_lines(check(change("undecided", metric="ratio"), change("undecided", metric="g", processes=10)))
    assert [line.split()[0] for line in lines if line.endswith(" undecided") and line.startswith("  ")] == ["ratio"]
    assert lines[-1] == "nothing is known to be worse: 2 undecided"


def test_tests_that_did_not_pass_on_both_sides_are_listed():
    lost, new = TestChange("a", "passed", "not run", "head: ImportError"), TestChange("b", "failed", "passed", "why")
    text = "\n".join(check_lines(check(tests=(lost, new))))
    assert "  a: passed -> not run\n    head: ImportError\n  b: failed -> passed\n    why" in text
    assert text.endswith("worse: 0 metrics and 1 test no longer passes")
    assert check_lines(check(tests=(new,)))[-1] == "all tests are new: nothing to compare"


def test_a_change_for_the_worse_says_where_and_what_else_changed():
    known = change("worse", processes=10, line="test_a.py:7", changed=("the host calls", "f host calls"))
    unknown = change("worse", processes=10, metric="g")
    lost = change("worse", metric="f alias bytes", unit="bytes", base=4.0, head=0.0, ratio=0.0)
    better = change("better", processes=10, metric="h", line="test_a.py:9", changed=("the host calls",))
    text = "\n".join(check_lines(check(known, unknown, lost, better)))
    assert "changed in this test: the host calls, f host calls\n      measured at test_a.py:7" in text
    assert text.count("cause unknown: nothing that is exact changed in this test") == 1
    assert text.count("lost donation: fewer bytes of donated arguments are reused for outputs") == 1
    assert "test_a.py:9" not in text
