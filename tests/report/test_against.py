"""`perfsuite against` and `bisect` for people: the terminal's tables, and the Markdown."""

import dataclasses
import math
import re

from support.against import TEST, change, check

from perfsuite.against.bisection import Bisection, Step
from perfsuite.against.changes import TestChange
from perfsuite.gate.verdict import Part, Verdict
from perfsuite.measure.metric import Interval
from perfsuite.report.against import against_markdown, bisection_lines, check_lines
from perfsuite.report.tables import colored

OPEN = Interval(0.0, math.inf)


def test_what_changed_is_listed_and_the_rest_is_counted():
    slower = change(Verdict.FAIL, interval=Interval(1.08, 1.17))
    same = change(Verdict.PASS, "g", interval=Interval(0.9, 1.2))
    calls = change(Verdict.FAIL, unit="calls", base=0, head=4, grown=(Part("a", 4),))
    text = "\n".join(check_lines(check(slower, same, calls, notes=("the machine was busy",))))
    assert "packages that differ: lib 1 -> 2" in text
    assert "note: the machine was busy" in text
    assert re.search(r"  f +112 us +100 +\+12 % \[\+8 %, \+17 %\] +fail", text)
    assert not re.search(r"^  g", text, re.MULTILINE)
    assert re.search(r"  f +4 calls +0 +from 0 +fail\n +more calls of a \(\+4\)", text)
    assert "\n".join(check_lines(check(slower, same), everything=True)).count("\n  g ") == 1
    assert "3 metrics: 2 fail, 1 pass" in text
    assert text.endswith("worse: 2 metrics")


def test_what_is_exact_and_undecided_is_listed_an_undecided_time_is_counted():
    lines = check_lines(check(change(Verdict.INCONCLUSIVE, "ratio"), change(Verdict.INCONCLUSIVE, "g", interval=OPEN)))
    assert [line.split()[0] for line in lines if line.endswith(" inconclusive") and line.startswith("  ")] == ["ratio"]
    assert lines[-1] == "nothing is known to be worse: 2 inconclusive"


def test_tests_that_did_not_pass_on_both_sides_are_listed():
    lost, new = TestChange("a", "passed", "not run", "head: ImportError"), TestChange("b", "failed", "passed", "why")
    text = "\n".join(check_lines(check(tests=(lost, new))))
    assert "  a: passed -> not run\n    head: ImportError\n  b: failed -> passed\n    why" in text
    assert text.endswith("worse: 0 metrics and 1 test no longer passes")
    assert check_lines(check(tests=(new,)))[-1] == "all tests are new: nothing to compare"


FOUND = Bisection(
    TEST,
    "step host calls",
    (
        Step("lib 1", "good", 5, "calls"),
        Step("lib 4", "bad", 9, "calls"),
        Step("lib 2", "skipped", reason="no wheel"),
        Step("lib 3", "bad", 7, "calls", reason="other 1 asks for lib>3"),
    ),
    "bad",
    ("lib 3",),
    ("what is new in it: https://notes",),
    (change(Verdict.FAIL, "step host calls", "calls", 5, 7, grown=(Part("lib:look", 2),)),),
    ("lib 1 -> 3", "dep 1 -> 2"),
)


def test_what_was_tried_and_what_did_it():
    assert list(bisection_lines(FOUND)) == [
        f"{TEST}::step host calls",
        "  step   value    verdict",
        "  lib 1  5 calls  good",
        "  lib 4  9 calls  bad",
        "  lib 2  -        skipped",
        "      no wheel",
        "  lib 3  7 calls  bad",
        "      other 1 asks for lib>3",
        "",
        "the first bad step: lib 3",
        "  what is new in it: https://notes",
        "  packages that differ: lib 1 -> 3, dep 1 -> 2",
        "what changed in this test, from the better step to the worse one:",
        "metric             value    against  change  verdict",
        TEST,
        "  step host calls  7 calls  5        +40 %   fail",
        "      more calls of lib:look (+2)",
    ]


def test_a_time_is_over_the_good_ends_and_verdicts_are_coloured():
    timed = dataclasses.replace(FOUND.steps[3], interval=Interval(1.02, 1.04))
    lines = list(bisection_lines(dataclasses.replace(FOUND, steps=(timed,)), colored))
    assert any("+3 % [+2 %, +4 %]" in line and "\x1b[31m" in line for line in lines)


SLOWER = change(Verdict.FAIL, interval=Interval(1.08, 1.17), where="test_a.py:7")
FASTER = change(Verdict.IMPROVED, "g", head=90.0)
SAME = change(Verdict.PASS, "<h|i>", head=100.0)


def test_the_comment_has_regressions_first_and_folds_what_did_not_change():
    lost = TestChange("test_b.py::test_c", "passed", "failed", "head: TypeError: <no>")
    text = against_markdown(check(SAME, FASTER, SLOWER, tests=(lost,)))
    assert text.startswith("## perfsuite: worse: 1 metric and 1 test no longer passes\n")
    assert "| test | metric | base | head | change |" in text
    assert "| `test_a.py::test_step` | `f` | 100 | 112 us | **+12 % \\[+8 %, +17 %\\]** |" in text
    order = ["### 1 fail", "### 1 improved", "### 1 test did not pass", "<summary>1 pass</summary>"]
    assert sorted(order, key=text.index) == order
    assert "measured at test_a.py:7" in text
    assert "`<h\\|i>`" in text
    assert "TypeError: \\<no\\>" in text
