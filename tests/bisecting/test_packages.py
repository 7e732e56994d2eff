"""Which of several packages it takes, whatever combinations cannot be installed."""

from hypothesis import given
from hypothesis import strategies as st

from perfsuite.bisecting.packages import responsible

NAMES = ["flax", "jax", "libtpu", "optax"]
SETS = st.sets(st.sampled_from(NAMES))


def asked_for(guilty, broken=frozenset()):
    asked = []

    def tried(names):
        asked.append(frozenset(names))
        if frozenset(names) in broken:
            return "skipped"
        return "bad" if guilty <= set(names) else "good"

    return responsible(NAMES, tried), asked


@given(SETS.filter(bool))
def test_exactly_those_that_it_takes(guilty):
    found, asked = asked_for(guilty)
    assert set(found) == guilty
    assert len(asked) <= 2 * len(NAMES)
    assert len(set(asked)) == len(asked)


@given(SETS.filter(bool), st.sets(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3)))
def test_what_cannot_be_tried_only_leaves_more_of_them(guilty, broken):
    found, _ = asked_for(guilty, broken)
    assert set(found) >= guilty


def test_each_alone_comes_first():
    assert asked_for({"flax"})[1] == [frozenset({"flax"})]


def test_one_package_needs_no_try():
    assert responsible(["jax"], lambda names: 1 / 0) == ["jax"]
