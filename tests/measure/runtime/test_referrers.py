"""`measure.runtime.referrers`: who keeps an object alive, as a phrase."""

import gc
import sys
import types

import pytest

from perfsuite.measure.runtime import referrers
from perfsuite.measure.runtime.referrers import holders_of


class Holder:
    pass


def test_a_list_in_an_attribute_is_named_with_its_length_and_its_owner():
    value, holder = Holder(), Holder()
    holder.kept = [value, 1]
    assert "a list of length 2, attribute `kept` of Holder" in holders_of(value)


def test_an_attribute_and_a_variable_in_a_closure_are_named():
    value, holder = Holder(), Holder()
    holder.state = value

    def uses():
        return value

    found = holders_of(value)
    assert "attribute `state` of Holder" in found
    assert f"`value` in the closure of {uses.__qualname__}" in found


def test_a_module_global_is_named(monkeypatch):
    module = types.ModuleType("train")
    monkeypatch.setitem(sys.modules, "train", module)
    module.best = value = Holder()
    assert holders_of(value) == ["module global `train.best`"]


def test_frames_and_what_is_ignored_are_left_out():
    value = Holder()
    hidden = [value]
    assert holders_of(value, ignored={id(hidden)}) == []
    assert holders_of(value) == ["a list of length 1"]


def test_what_many_containers_hold_takes_few_walks_of_the_heap(monkeypatch):
    """Dicts, four wide and five deep, took half a minute."""
    value = Holder()
    level = [{"held": value} for _ in range(4)]
    for _ in range(5):
        level = [dict(enumerate(level)) for _ in range(4)]
    walks = []
    walk = gc.get_referrers
    monkeypatch.setattr(referrers.gc, "get_referrers", lambda *held: walks.append(1) or walk(*held))
    assert "a dict of length 1" in holders_of(value)
    assert 4 < len(walks) <= 30


@pytest.mark.parametrize(
    ("keep", "inner"),
    [
        (lambda kept, value: kept.append({"loss": value}), "a dict of length 1"),
        (lambda kept, value: kept.append(({"loss": [value]}, 1)), "a list of length 1 in a dict of length 1"),
    ],
    ids=["dicts", "deeper"],
)
def test_containers_in_each_other_are_followed_up_to_the_one_with_a_name(keep, inner):
    """What grows is the list of all steps' metrics, and not one step's."""
    value, holder = Holder(), Holder()
    holder.history = []
    for _ in range(3):
        keep(holder.history, Holder())
    keep(holder.history, value)
    (found,) = holders_of(value)
    assert found.startswith(inner)
    assert found.endswith("in a list of length 4, attribute `history` of Holder")


def test_a_container_in_itself_ends(monkeypatch):
    value, kept = Holder(), []
    kept.append(kept)
    kept.append({"all": kept, "value": value})
    assert holders_of(value) == ["a dict of length 2"]
