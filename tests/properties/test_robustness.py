"""Whatever is given from outside: files, marker arguments, option values, names. Accepted, or refused in clear words."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfsuite.gate.budget import Budget
from perfsuite.measure.metric import Metric
from perfsuite.options import MarkerArguments, add_options, marker_arguments
from properties.edits import outcome

# Numbers that no float can hold, and texts that no terminal can show, are JSON as well as any.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2, 10**400, -(10**400), 1e308, -1e308, 5e-324, 0.5, -0.0]),
    st.text(max_size=8),
    st.sampled_from(["cpu", "count", "measured", "reported", "lower", "", "\ud800", "a\nb", "x" * 5000]),
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


# Numbers.

finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300)


# Marker arguments.


arguments = st.one_of(
    scalars,
    st.floats(),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    json_values,
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.sampled_from([np.float32(0.5), np.int64(1), np.array([1.0, 2.0]), len, int]),
)


MARKER_ARGUMENTS = MarkerArguments.__annotations__.keys()


@given(st.dictionaries(st.sampled_from([*MARKER_ARGUMENTS, "tolerence"]), arguments | st.booleans(), max_size=2))
@example({"seconds": 10**400})
@example({"tolerance": ["x"] * 10**5})
@example({"seconds": {i: {j: [10**40] * 6 for j in range(4)} for i in range(4)}})
def test_any_argument_of_the_marker_is_taken_or_refused_with_its_name(given_arguments):
    marker = pytest.mark.perf(**given_arguments).mark
    item = SimpleNamespace(nodeid="test_a.py::test_marked", iter_markers=lambda name: [marker])
    taken, refusal = outcome(pytest.UsageError, marker_arguments, item)
    if refusal is not None:
        said = str(refusal)
        assert said.startswith("test_a.py::test_marked: @pytest.mark.perf")
        assert any(f"({name}=...)" in said or f"no argument {name!r}" in said for name in given_arguments)
        assert len(said) < 500
    else:
        assert taken.keys() == given_arguments.keys() <= MARKER_ARGUMENTS
        assert type(taken.pop("quiet", True)) is bool
        assert all(type(value) is float and 0 < value < float("inf") for value in taken.values())


@given(finite | st.floats() | st.sampled_from([10**400, True, "1", None]))
@example(10**400)
def test_any_metric_and_any_budget_is_taken_or_refused_with_its_name(value):
    for make, words in (
        (lambda: Metric("the metric", value, "us", "time"), "the metric: "),
        (lambda: Budget(p99_us=value), "Budget(p99_us="),
    ):
        _, refusal = outcome((TypeError, ValueError), make)
        said = str(refusal)
        assert refusal is None or (said.startswith(words) and len(said) < 500)


# Option values.


class Parser(argparse.ArgumentParser):
    """Says what pytest's own parser says, as an exception."""

    def getgroup(self, *_):
        return self

    def addoption(self, *names, **how):
        self.add_argument(*names, **how)

    def addini(self, *_, **__):
        pass

    def error(self, message):
        raise pytest.UsageError(message)


PARSER = Parser(prog="pytest", allow_abbrev=False)
add_options(PARSER)

option_values = st.text(max_size=12) | st.sampled_from(
    [
        "1",
        "0",
        "-1",
        "1.5",
        "1e-300",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "9" * 5000,
        "1_0",
        "\uff11",
        "0x10",
        "",
        "small",
        "%s",
    ]
)


@given(
    st.sampled_from(["--perf-seconds", "--perf-size", "--perf-trace"]),
    option_values,
)
@settings(max_examples=200)
def test_any_value_of_an_option_is_taken_or_refused_with_the_options_name(option, text):
    taken, refusal = outcome(pytest.UsageError, PARSER.parse_args, [f"{option}={text}"])
    if refusal is not None:
        assert f"argument {option}: " in str(refusal)
        return
    value = getattr(taken, option.strip("-").replace("-", "_"))
    if option == "--perf-seconds":
        assert 0 < value < float("inf")
    else:
        assert value == text
