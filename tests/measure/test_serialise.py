"""`serialise`: every value that travels between processes comes back equal, through JSON."""

import dataclasses
import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.measure.serialise import from_plain, plain


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
    assert from_plain(Outer, json.loads(json.dumps(plain(value), allow_nan=False))) == value


RIGHT = plain(Outer("n", "a", 1.5, 3, Inner(0, 1), None, {"p": Inner(0, 1)}, (), ("x", 1.0), [], True))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("name", wrong) for wrong in (3, None, ["n"])),
        *(("kind", wrong) for wrong in ("c", None, [])),
        *(("value", wrong) for wrong in ("many", None, True, [1.5])),
        *(("count", wrong) for wrong in (1.5, "3", True, None)),
        *(("interval", wrong) for wrong in (3, [], "ab", {"low": 1}, {"low": 1, "high": 2, "middle": 3})),
        *(("parts", wrong) for wrong in (["p"], {"p": "3"}, 3)),
        *(("several", wrong) for wrong in ("", {}, 3, [3])),
        *(("pair", wrong) for wrong in ("xy", ["x"], ["x", 1.0, 2.0])),
        *(("listed", wrong) for wrong in ("", {}, None)),
        *(("flag", wrong) for wrong in (1, "yes", None)),
    ],
)
def test_a_value_of_another_type_is_refused(field, wrong):
    assert plain(from_plain(Outer, RIGHT)) == RIGHT
    with pytest.raises(ValueError):  # noqa: PT011  (a text for each type)
        from_plain(Outer, {**RIGHT, field: wrong})


def test_an_unknown_field_is_named():
    with pytest.raises(ValueError, match="Inner has no middle"):
        from_plain(Inner, {"low": 1, "high": 2, "middle": 1.5})
