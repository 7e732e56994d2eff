"""The closing lines: few, whatever the number of metrics, within the width, and with the commonest reasons."""

from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.terminal.overview import Line, explanations, fitted, overview

VERDICTS = (
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_COMPARABLE,
    Verdict.IMPROVED,
    Verdict.NEW,
    Verdict.PASS,
    Verdict.INFO,
)


def result(name="step", verdict=Verdict.PASS, *, test="t.py::test_step", value=1.5, interval=None, **fields):
    return Result(test, Metric(name, value, "x", "ratio", interval=interval), verdict, **fields)


def closing(*results, gone=(), saving=False, width=100):
    return rows(overview(results, gone, saving=saving), width)


def rows(lines, width=100, most=10):
    return [line.text for line in fitted(lines, width, most)]


def test_verdicts_are_counted_metric_by_metric():
    both = result("a", Verdict.PASS, source="budget"), result("a", Verdict.FAIL, source="baseline")
    assert closing(*both, result("b"), result("c", Verdict.INFO, test="t.py::test_other")) == [
        "3 metrics of 2 tests: 1 fail, 1 pass, 1 info"
    ]


def test_open_metrics_have_their_commonest_reasons_and_what_would_settle_one():
    narrow = {"interval": Interval(0.9, 1.1), "source": "budget", "limit": 1.0, "to_settle": "about 39 more seconds"}
    said = closing(
        result("a", Verdict.INCONCLUSIVE),
        *(result(name, Verdict.INCONCLUSIVE, **narrow) for name in "bc"),
        result("d", Verdict.NOT_COMPARABLE, incomparable="host processor differs (A, now B)"),
    )
    assert said[1:] == [
        "inconclusive: 2 with the limit inside the interval; 1 without an interval",
        "  b: about 39 more seconds",
        "over the limit and undecided: b 1.5 x (limit 1), c 1.5 x (limit 1)",
        "not comparable: 1 host processor differs (A, now B)",
    ]


def test_what_a_save_would_record_is_one_line_each():
    better = [result(name, Verdict.IMPROVED, value=value, baseline=2.0) for name, value in (("a", 1.9), ("b", 1.0))]
    assert closing(*better, result("c", Verdict.NEW), result("d", Verdict.NEW))[1:] == [
        "improved: b (-50 %), and 1 more: pytest --perf-save records it",
        "new: 2 metrics have no baseline: pytest --perf-save records them",
    ]


def test_a_save_says_nothing_of_baselines():
    verdicts = [result(name, verdict) for name, verdict in zip("abcdefg", VERDICTS, strict=True)]
    assert closing(*verdicts, saving=True) == [
        "7 metrics of 1 test",
        "inconclusive: 1 without an interval",
        "  b: its interval: perf.record(..., interval=(low, high)), or (value, value) where it is exact",
    ]


def test_tests_that_are_gone_are_folded():
    gone = [result("a", Verdict.MISSING, test=f"t.py::test_{number}") for number in range(3)]
    assert closing(result(), gone=gone, width=140)[1:] == [
        "missing: t.py::test_0 is gone or does not use perf, and has 1 baseline (a): pytest --perf-save removes it; "
        "2 more tests too"
    ]


def test_calls_that_changed_places_are_folded():
    moved = [result(name, recorded_as="c") for name in "ab"]
    assert closing(*moved, width=200)[1:] == [
        "moved: 2 metrics of calls that changed places: give each its name=, or run pytest --perf-save: "
        "a of t.py::test_step"
    ]


def test_where_there_is_no_room_entries_are_cut_from_the_last_on_and_then_those_left_out_that_need_no_action():
    long = "word " * 30
    lines = [Line(f"a {long}", {}), Line("b", {}, optional=True), Line(f"c {long}", {"red": True}), Line("d", {})]
    assert [len(rows(lines, most=most)) for most in (None, 6, 5, 4, 3)] == [6, 6, 5, 4, 3]
    assert [row[:2].strip() for row in rows(lines, most=5)] == ["a", "", "b", "c", "d"]
    assert [row[:2].strip() for row in rows(lines, most=3)] == ["a", "c", "d"]
    assert [row.endswith(" ...") for row in rows(lines, most=3)] == [True, True, False]
    assert fitted(lines, 100, 3)[1].markup == {"red": True}
    assert len(rows([Line("word " * 100, {})])) == 2
    assert len(rows([Line("word " * 100, {})], most=None)) == 6


def test_with_v_what_is_known_beside_the_change_is_written_out_the_failures_first():
    found = explanations(
        [
            result("c", Verdict.INCONCLUSIVE, note="c is too noisy"),
            result("b", Verdict.NOT_COMPARABLE, incomparable="other device"),
            result("d", Verdict.FAIL, note="d got worse", cause="a sleep"),
            result("a", Verdict.FAIL, note="the table says all of it"),
            result("f", Verdict.FAIL, note="f got worse", cause="another sleep", where="t.py:12"),
            result("e", note="never shown"),
        ]
    )
    assert [line.text for line in found] == [
        "fail: t.py::test_step: d got worse\nlikely cause: a sleep",
        "fail: t.py::test_step at t.py:12: f got worse\nlikely cause: another sleep",
        "inconclusive: t.py::test_step: c is too noisy",
        "not comparable: t.py::test_step: b: other device",
    ]
    assert found[0].markup == {"red": True}


def test_with_v_calls_that_changed_places_and_every_test_that_is_gone_are_written_out():
    gone = [result("a", Verdict.MISSING, test=f"t.py::test_{number}") for number in range(3)]
    moved, *lost = [line.text for line in explanations([result("a", recorded_as="c"), result("b")], gone)]
    assert moved.startswith("pass: t.py::test_step: compared with the baseline of c, because calls changed places")
    assert [line.partition(" is gone")[0] for line in lost] == [f"missing: t.py::test_{number}" for number in range(3)]


def test_what_was_skipped_for_a_library_is_one_line_with_its_reason():
    moves, runs = "perf.transfers does not work with jax 0.14.0", "perf.dispatches does not work with jax 0.14.0"
    results = [
        result("a", Verdict.NOT_COMPARABLE, incomparable=moves),
        result("b", Verdict.NOT_COMPARABLE, incomparable="another"),
    ]
    lines = overview(results, (), saving=False, lost=[moves, moves])
    assert [line.text for line in lines] == [
        "2 metrics of 1 test: 2 not comparable",
        f"2 tests skipped: {moves}",
        "not comparable: 1 another",
    ]
    (only,) = overview([], (), saving=False, lost=[runs, moves, moves])
    assert only.text == f"3 tests skipped: 2 {moves}; 1 {runs}"
