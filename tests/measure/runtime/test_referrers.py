"""`measure.runtime.referrers`: who keeps an object alive, as a phrase."""

import sys
import types

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
