"""The tests of one function side by side: which metrics are the same, and which gate of one is shown."""

import pytest
from support.report_samples import metric, perf_test

from perfsuite.report.variants import variants_of


def names(*tests) -> list[str]:
    (made,) = variants_of(tests)
    return [row.name for row in made.metrics]


def test_metrics_are_the_same_but_for_the_parameter_in_their_names():
    tests = [
        perf_test(
            f"test_tax[{name}]", metric(f"{name}/list ratio"), metric(f"{name} to return"), metric("list to return")
        )
        for name in ("filter_jit", "eqx.Module", "nnx.jit")
    ]
    assert names(*tests) == [
        "\N{HORIZONTAL ELLIPSIS}/list ratio",
        "\N{HORIZONTAL ELLIPSIS} to return",
        "list to return",
    ]


def test_a_parameter_is_replaced_as_a_word_only():
    tests = [perf_test(f"test_a[{name}]", metric(f"filter_{name} calls"), metric("calls")) for name in ("jit", "vmap")]
    assert names(*tests) == ["calls"]


def test_numbers_are_replaced_where_that_makes_metrics_the_same():
    tests = [
        perf_test(f"test_a[{layer}-None]", metric(f"layer {layer} flops"), metric("line R^2")) for layer in (2, 11, 23)
    ]
    assert names(*tests) == ["layer \N{HORIZONTAL ELLIPSIS} flops", "line R^2"]


def test_metrics_of_several_targets_are_side_by_side():
    tests = [
        perf_test(f"test_a[{target}]", metric("step flops", target=target, title=f"step flops @ {target}"))
        for target in ("tpu-v5e", "tpu-v6e")
    ]
    assert names(*tests) == ["step flops"]


def test_a_metric_of_one_variant_is_left_out_and_a_gap_stays_a_gap():
    tests = (
        perf_test("test_a[x]", metric("both"), metric("two")),
        perf_test("test_a[y]", metric("both")),
        perf_test("test_a[z]", metric("both"), metric("two"), metric("one")),
    )
    (made,) = variants_of(tests)
    assert [(row.name, [cell is not None for cell in row.cells]) for row in made.metrics] == [
        ("both", [True, True, True]),
        ("two", [True, False, True]),
    ]


@pytest.mark.parametrize("order", [("pass", "fail"), ("fail", "pass")])
def test_the_worse_of_two_gates_of_one_metric_is_shown(order):
    tests = [perf_test(f"test_a[{name}]", *(metric("calls", verdict=verdict) for verdict in order)) for name in "xy"]
    (made,) = variants_of(tests)
    assert [cell.verdict for cell in made.metrics[0].cells] == ["fail", "fail"]


@pytest.mark.parametrize("tests", [(), (perf_test("test_a[x]", metric()),), (perf_test("test_a"), perf_test("test_b"))])
def test_single_tests_are_no_variants(tests):
    assert variants_of(tests) == []
