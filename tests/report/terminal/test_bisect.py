"""The terminal's table of `perfsuite bisect`."""

import dataclasses

from support.against import TEST

from perfsuite.against.bisection import Bisection, Step
from perfsuite.against.changes import MetricChange
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.report.terminal.bisect import bisection_lines
from perfsuite.report.terminal.output import colored

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
    (MetricChange(TEST, "step host calls", "calls", 5, 7, "worse", 1.4, grown=(Part("lib:look", 2),)),),
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
        "metric             base     head     change  called",
        TEST,
        "  step host calls  5 calls  7 calls  +40 %   worse",
        "      more calls of lib:look (+2)",
    ]


def test_a_range_lists_what_it_may_be():
    found = dataclasses.replace(FOUND, suspects=("lib 2", "lib 3"), first="good", about=())
    assert list(bisection_lines(found))[-3:] == [
        "the first good step is one of these: what could not be tried hides it",
        "  lib 2",
        "  lib 3",
    ]


def test_a_time_is_over_the_good_ends_and_verdicts_are_coloured():
    timed = dataclasses.replace(FOUND.steps[3], interval=Interval(1.02, 1.04))
    lines = list(bisection_lines(dataclasses.replace(FOUND, steps=(timed,)), colored))
    assert any("+3 % [+2 %, +4 %]" in line and "\x1b[31m" in line for line in lines)
