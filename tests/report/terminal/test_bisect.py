"""The terminal's table of `perfsuite bisect`."""

import dataclasses

from support.against import TEST

from perfsuite.against.found import MetricChange
from perfsuite.bisecting.found import About, Answer, Bisection, Step
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.report.terminal.bisect import bisection_lines
from perfsuite.report.terminal.output import colored

STEPS = (
    Step("lib==1", "good", 5, "calls", seconds=3.2),
    Step("lib==4", "bad", 9, "calls", seconds=3.2),
    Step("lib==2", "skipped", reason="no wheel", seconds=1),
    Step("lib==3", "bad", 7, "calls", "other 1 asks for lib>3", 3.2),
)
CHANGES = tuple(
    MetricChange("host calls", TEST, name, "calls", 5, 7, "worse") for name in ("step host calls", "g flops")
)
ANSWER = Answer(
    "lib",
    ("lib==3",),
    "bad",
    (About("lib 3", address="https://notes", packages=("lib 1 -> 3", "dep 1 -> 2")),),
    "lib==1",
    CHANGES,
    (Part("lib:look", 2),),
)


def bisection(answer=ANSWER, **more):
    ids = [step.id for step in STEPS]
    found = Bisection(
        TEST,
        "step host calls",
        "exact",
        ids[0],
        ids[1],
        STEPS,
        frozenset(ids),
        {id: id.replace("==", " ") for id in ids},
        (answer,),
        "kept.json",
    )
    return dataclasses.replace(found, **more)


def test_what_was_tried_and_what_did_it():
    assert bisection_lines(bisection()) == [
        f"{TEST}::step host calls",
        "  step              value    verdict  took",
        "  lib 1 (good end)  5 calls  good     3 s",
        "  lib 4 (bad end)   9 calls  bad      3 s",
        "  lib 2             -        skipped  1 s",
        "      no wheel",
        "  lib 3             7 calls  bad      3 s",
        "      other 1 asks for lib>3",
        "",
        "the first bad release of lib is lib 3",
        "  what differs from the release before: lib 1 -> 3, dep 1 -> 2",
        "  what is new in it: https://notes",
        "  step host calls: 5 -> 7 calls",
        "  the bad end has 9: it moved again after this step; search on with --package lib --good 3",
        "  more calls of lib:look (+2)",
        "  what else changed in this test:",
        "    g flops  5  ->  7  calls  worse",
    ]


def test_a_commit_has_its_message_and_stat():
    about = About("commit abc", "Ada", "2026-01-01", "Do it\n\nBecause.", (" code.py | 2 +-",))
    answer = dataclasses.replace(ANSWER, package="", about=(about,), changes=(), grown=(), before="")
    assert bisection_lines(bisection(answer))[-6:] == [
        "the first bad commit is commit abc",
        "  Ada, 2026-01-01",
        "    Do it",
        "",
        "    Because.",
        " code.py | 2 +-",
    ]


def test_a_range_lists_what_it_may_be():
    answer = Answer("", ("a", "b"), "good", (About("a its subject"), About("b another")))
    assert bisection_lines(bisection(answer, notes=("mind this",)))[-5:] == [
        "note: mind this",
        "",
        "the first good commit is one of 2 (what could not be tried hides it):",
        "  a its subject",
        "  b another",
    ]


def test_kept_steps_are_said():
    assert "2 steps tried before, kept in kept.json: --again tries all again" in bisection_lines(
        bisection(made=frozenset(["lib==3", "lib==2"]))
    )
    assert any(line.startswith("every step was tried before") for line in bisection_lines(bisection(made=frozenset())))


def test_a_time_is_over_the_good_ends():
    timed = dataclasses.replace(STEPS[3], interval=Interval(1.02, 1.04))
    lines = bisection_lines(bisection(looks="timed", steps=(*STEPS[:3], timed)))
    assert any("+3 % [+2 %, +4 %]" in line for line in lines)


def test_verdicts_are_coloured():
    assert any("\x1b[" in line and "lib 2" in line for line in bisection_lines(bisection(), colored))


def test_plain_values_for_json():
    told = bisection().to_dict()
    assert (told["schema"], told["exact"], told["answers"][0]["package"]) == (1, True, "lib")
    assert told["steps"][0]["name"] == "lib 1"
    assert "baselines" not in told["steps"][0]
