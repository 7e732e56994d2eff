"""`measure.runtime.host_calls` over generated trees."""

import jax
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.measure.call import call
from perfsuite.measure.runtime.host_calls import host_calls

trees = st.recursive(
    st.integers(),
    lambda children: (
        st.lists(children, max_size=6)
        | st.lists(children, max_size=6).map(tuple)
        | st.dictionaries(st.text(max_size=3), children, max_size=6)
    ),
    max_leaves=60,
)


def touch(leaf):
    return leaf


def over_leaves(tree):
    for leaf in jax.tree.leaves(tree):
        touch(leaf)


def count(tree):
    return host_calls(call(over_leaves, tree))


NO_LEAVES = count([])


@settings(max_examples=40)
@given(trees)
def test_the_count_is_exactly_linear_in_the_leaves_whatever_the_tree(tree):
    leaves = len(jax.tree.leaves(tree))
    counted = count(tree)
    assert counted.total == NO_LEAVES.total + leaves
    assert counted.by_function.get(f"{__name__}:touch", 0) == leaves


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["python", "c", "both"]), max_size=30))
def test_every_call_is_counted_once_and_as_what_it_is(plan):
    def python():
        pass

    def both():
        len("")

    def body():
        for step in plan:
            if step == "python":
                python()
            elif step == "c":
                len("")
            else:
                both()

    counted = host_calls(call(body))
    assert counted.python_calls == 1 + plan.count("python") + plan.count("both")
    assert counted.c_calls == plan.count("c") + plan.count("both")
    assert sum(counted.by_function.values()) == counted.total
