"""The closing lines: few, whatever the number of metrics, within the width, and with the commonest reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.gate.verdict import Gate
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.terminal.overview import explanations, overview

VERDICTS = ("fail", "inconclusive", "not comparable", "improved", "new", "pass", "info")


def gate(name="step", verdict="pass", *, test="t.py::test_step", value=1.5, interval=None, **fields):
    return Gate(test, Metric(name, value, "x", "ratio", interval=interval), verdict, **fields)


def closing(*gates, gone=(), saving=False, width=100):
    return [line for line, _ in overview(gates, gone, saving=saving, width=width)]


def test_verdicts_are_counted_metric_by_metric():
    both = gate("a", "pass", source="budget"), gate("a", "fail", source="baseline")
    assert closing(*both, gate("b"), gate("c", "info", test="t.py::test_other")) == [
        "3 metrics of 2 tests: 1 fail, 1 pass, 1 info"
    ]


def test_open_metrics_have_their_commonest_reasons_and_what_would_settle_one():
    narrow = {"interval": Interval(0.9, 1.1), "source": "budget", "limit": 1.0, "to_settle": "about 39 more seconds"}
    said = closing(
        gate("a", "inconclusive"),
        *(gate(name, "inconclusive", **narrow) for name in "bc"),
        gate("d", "not comparable", incomparable="host processor differs (A, now B)"),
    )
    assert said[1:] == [
        "inconclusive: 2 with the limit inside the interval; 1 without an interval",
        "  b: about 39 more seconds",
        "not comparable: 1 host processor differs (A, now B)",
    ]


def test_what_a_save_would_record_is_one_line_each():
    better = [gate(name, "improved", value=value, baseline=2.0) for name, value in (("a", 1.9), ("b", 1.0))]
    assert closing(*better, gate("c", "new"), gate("d", "new"))[1:] == [
        "improved: b (-50 %), and 1 more: pytest --perf-save records it",
        "new: 2 metrics have no baseline: pytest --perf-save records them",
    ]


def test_a_save_says_nothing_of_baselines():
    verdicts = [gate(name, verdict) for name, verdict in zip("abcdefg", VERDICTS, strict=True)]
    assert closing(*verdicts, saving=True) == [
        "7 metrics of 1 test",
        "inconclusive: 1 without an interval",
        "  b: its interval: perf.record(..., interval=(low, high)), or (value, value) where it is exact",
    ]


def test_tests_that_are_gone_are_folded():
    gone = [gate("a", "missing", test=f"t.py::test_{number}") for number in range(3)]
    assert closing(gate(), gone=gone, width=140)[1:] == [
        "missing: t.py::test_0 is gone or does not use perf, and has 1 baseline (a): pytest --perf-save removes it; "
        "2 more tests too"
    ]


def test_calls_that_changed_places_are_folded():
    moved = [gate(name, recorded_as="c") for name in "ab"]
    assert closing(*moved, width=200)[1:] == [
        "moved: t.py::test_step: a compared with the baseline of c, because calls changed places in the test: "
        "give each its name=, or record them anew with pytest --perf-save (1 more)"
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(VERDICTS), st.integers(0, 12), st.sampled_from(["", "long " * 40, "x" * 300])),
        min_size=1,
        max_size=200,
    ),
    st.integers(60, 140),
)
def test_the_number_and_the_width_of_the_lines_do_not_grow_with_the_metrics(made, width):
    gates = [
        gate(f"{name}{place} ", verdict, test=f"t.py::test_{test}", incomparable=name, to_settle=name)
        for place, (verdict, test, name) in enumerate(made)
    ]
    lines = "\n".join(closing(*gates, gone=[gate("m", "missing", test="t" * 300)] * 20, width=width)).splitlines()
    assert len(lines) <= 16
    assert max(map(len, lines)) <= width


def test_with_v_what_is_known_beside_the_change_is_written_out_the_failures_first():
    found = explanations(
        [
            gate("c", "inconclusive", note="c is too noisy"),
            gate("b", "not comparable", incomparable="other device"),
            gate("d", "fail", note="d got worse", cause="a sleep"),
            gate("a", "fail", note="the table says all of it"),
            gate("f", "fail", note="f got worse", cause="another sleep", where="t.py:12"),
            gate("e", note="never shown"),
        ]
    )
    assert [line for line, _ in found] == [
        "fail: t.py::test_step: d got worse\nlikely cause: a sleep",
        "fail: t.py::test_step at t.py:12: f got worse\nlikely cause: another sleep",
        "inconclusive: t.py::test_step: c is too noisy",
        "not comparable: t.py::test_step: b: other device",
    ]
    assert found[0][1] == {"red": True}


@pytest.mark.parametrize("verdict", ["inconclusive", "not comparable", "improved", "new"])
def test_a_line_has_the_colour_of_its_verdict(verdict):
    ((_, plain), *found) = overview([gate("a", verdict, incomparable="x")], (), saving=False, width=100)
    assert plain == {}
    assert all(markup for _, markup in found)
