"""The fingerprint of a call over generated sources and values."""

import copy
import tempfile
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fingerprinted import SOURCE, fingerprint_of

from perfsuite.measure.fingerprint.values import Describer

LINES = SOURCE.splitlines()

comments = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20).map(
    lambda text: f"# {text}"
)
spaces = st.integers(0, 12).map(lambda count: " " * count)
added = st.lists(
    st.tuples(st.integers(0, len(LINES)), st.one_of(st.just(""), st.builds(str.__add__, spaces, comments)))
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
hashable = st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.tuples(st.integers(), st.text(max_size=3))
arrays = st.builds(
    lambda shape, dtype, fill, jax_array: (jnp.asarray if jax_array else np.asarray)(np.full(shape, fill, dtype)),
    st.sampled_from([(), (2,), (2, 3), (3, 2)]),
    st.sampled_from(["float32", "int32", "bool"]),
    st.integers(0, 1),
    st.booleans(),
)


def text_of(value) -> str:
    return Describer()(value)


@cache
def fingerprint_without_them():
    with tempfile.TemporaryDirectory() as folder:
        return fingerprint_of(SOURCE, Path(folder))


@settings(max_examples=20, deadline=None)
@given(added)
def test_comments_and_blank_lines_change_nothing(lines):
    source = list(LINES)
    for place, line in sorted(lines, reverse=True):
        source.insert(place, line)
    with tempfile.TemporaryDirectory() as folder:
        assert fingerprint_of("\n".join(source), Path(folder)) == fingerprint_without_them()


WRITTEN = {"SCALE = {}": 3, "by={}": 7, "at={}": 11, "operator.add, {}": 13, "x, {}\n": 17, "return {}\n": 19}
"""Numbers in `SOURCE`: a global, two defaults, one of a partial, one in the code, and one behind a cache."""


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(WRITTEN)), st.integers(0, 10**6))
def test_another_number_is_seen(where, number):
    before, after = where.format(WRITTEN[where]), where.format(number)
    assert SOURCE.count(before) == 1
    with tempfile.TemporaryDirectory() as folder:
        python = fingerprint_of(SOURCE.replace(before, after), Path(folder))["python"]
    assert (python == fingerprint_without_them()["python"]) == (before == after)


@given(plain)
def test_a_copy_of_a_value_has_its_text(value):
    assert text_of(copy.deepcopy(value)) == text_of(value)


@given(plain, plain)
def test_two_values_have_one_text_only_where_they_are_written_alike(one, other):
    assert (text_of(one) == text_of(other)) == (repr(one) == repr(other))


@given(st.lists(hashable, unique=True))
def test_the_order_of_a_set_does_not_matter(members):
    assert text_of(set(members)) == text_of({*members[::-1]}) != text_of(frozenset(members))


@given(arrays, arrays)
def test_two_arrays_have_one_text_only_where_they_are_alike(one, other):
    alike = (
        type(one) is type(other)
        and (one.shape, one.dtype) == (other.shape, other.dtype)
        and np.array_equal(np.asarray(one), np.asarray(other))
    )
    assert (text_of(one) == text_of(other)) == alike


@given(st.lists(plain, min_size=1, max_size=3))
def test_a_value_that_holds_itself_has_a_text(values):
    def looped():
        made = copy.deepcopy(values)
        made.append(made)
        return made

    assert text_of(looped()) == text_of(looped()) != text_of(values)
