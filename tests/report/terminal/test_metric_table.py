"""The table of -v: within the width, with the change of each metric."""

import pytest

from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.terminal.metric_table import metric_table, relative_change

TEST = "tests/test_a.py::test_step"


def result(name="step to ready", value=1.5, verdict=Verdict.PASS, *, test=TEST, unit="x", interval=None, **fields):
    return Result(test, Metric(name, value, unit, "ratio", interval=interval), verdict, **fields)


def lines(*results, width=100):
    return [line for line, _ in metric_table(results, width)]


def test_a_row_has_value_baseline_change_and_verdict():
    head, test, row = lines(
        result(interval=Interval(1.4, 1.6), verdict=Verdict.FAIL, source="baseline", limit=1.26, baseline=1.2)
    )
    assert head.split() == ["metric", "value", "against", "change", "verdict"]
    assert test == TEST
    assert row.split() == ["step", "to", "ready", "1.5", "[1.4,", "1.6]", "x", "1.2", "+25", "%", "fail"]


def test_a_budget_is_what_a_metric_is_held_against():
    assert lines(result("overhead", 3.5, limit=0.0, source="budget"))[2].split()[-4:] == ["x", "0", "(budget)", "pass"]


@pytest.mark.parametrize(("baseline", "share"), [(1.2, 0.25), (0.0, None), (-3.0, None), (None, None)])
def test_a_change_is_relative_to_a_baseline_above_zero(baseline, share):
    assert relative_change(result(baseline=baseline)) == (share if share is None else pytest.approx(share))


def test_columns_line_up_and_numbers_keep_their_digits():
    head, _, first, second = lines(result("a", 1.5), result("1e3", 23_600_000, unit="FLOP"))
    assert head.index("value") == first.index("1.5 x") == second.index("23,600,000 FLOP")
    assert head.index("verdict") == first.index("pass") == second.index("pass")


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("length", [10, 60, 300])
def test_no_line_is_wider_than_the_terminal(width, length):
    results = [
        result(
            "n" * length, 1234.5, interval=Interval(1.23456e3, 9.87654e3), baseline=1111.0, test=f"t.py::{'t' * 300}"
        ),
        Result(TEST, Metric("a" * length, 12_345_678, "bytes", "size", target="tpu-v5e"), Verdict.NOT_COMPARABLE),
        result("s" * length, 2.0, limit=1.5, source="budget", verdict=Verdict.INCONCLUSIVE),
    ]
    found = lines(*results, width=width)
    assert max(map(len, found)) <= width
    assert found[4].split("  ")[1].endswith(" @ tpu-v5e")


def test_a_target_that_the_id_of_the_test_has_is_not_said_again():
    flops = Metric("sharded_step float32 products", 5, "products", "count", target="gpu-h100")
    assert "@" not in lines(Result(f"{TEST}[gpu-h100]", flops, Verdict.PASS), width=80)[2]
    assert lines(Result(f"{TEST}[4]", flops, Verdict.PASS), width=80)[2].startswith(
        "  sharded_step float32 products @ gpu-h100  "
    )


def test_where_there_is_room_names_are_whole_and_intervals_are_shown():
    made = result("n" * 70, interval=Interval(1.4, 1.6))
    assert "n" * 70 in lines(made, width=160)[2]
    assert "[1.4, 1.6]" in lines(made, width=160)[2]
    assert "[1.4, 1.6]" not in lines(made, width=50)[2]
