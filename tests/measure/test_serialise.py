"""`serialise`: every value that travels between processes comes back equal, through JSON."""

import dataclasses
import json
import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.measure.serialise import made, plain


@dataclasses.dataclass(frozen=True)
class Inner:
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["a", "b"]
    value: float
    count: int
    interval: Inner | None
    parts: dict[str, int] | None
    places: dict[str, Inner]
    several: tuple[Inner, ...]
    pair: tuple[str, float]
    listed: list[Inner]
    flag: bool = False


numbers = st.floats(allow_nan=False)
inner = st.builds(Inner, numbers, numbers)


@given(
    st.builds(
        Outer,
        st.text(),
        st.sampled_from("ab"),
        numbers,
        st.integers(),
        st.none() | inner,
        st.none() | st.dictionaries(st.text(), st.integers()),
        st.dictionaries(st.text(), inner),
        st.lists(inner).map(tuple),
        st.tuples(st.text(), numbers),
        st.lists(inner),
        st.booleans(),
    )
)
def test_what_was_made_plain_comes_back_equal(value):
    assert made(Outer, json.loads(json.dumps(plain(value), allow_nan=False))) == value


def test_a_nan_survives():
    assert math.isnan(made(Inner, json.loads(json.dumps(plain(Inner(math.nan, 1.0)), allow_nan=False))).low)


def test_an_unknown_field_is_named():
    with pytest.raises(TypeError, match="Inner has no middle"):
        made(Inner, {"low": 1, "high": 2, "middle": 1.5})


def test_a_missing_field_is_named():
    with pytest.raises(TypeError, match="high"):
        made(Inner, {"low": 1.0})
