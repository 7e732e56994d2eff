"""Static values are described by short texts, which read no array and keep nothing alive."""

import functools
import gc
import weakref

import jax.numpy as jnp
from support.hostile import Hostile, Unreadable

from perfsuite.measure.compiles.values import text_of, value_of


def test_texts_are_short_and_read_no_array():
    assert text_of(jnp.ones((8, 128))) == "ArrayImpl of float32[8, 128]"
    assert len(text_of("x" * 1000)) == 80
    assert text_of(Hostile()) == "<Hostile, whose repr raises RuntimeError>"
    assert text_of("a\nb") == repr("a\nb")
    assert value_of(Hostile()) != value_of(Hostile())
    assert value_of(Unreadable()).text == "<Unreadable, whose repr raises RuntimeError>"
    assert value_of(Unreadable()).module == ""


def test_addresses_are_left_out_of_texts():
    class Model:
        pass

    Model.__module__ = "here"  # a longer text is cut short
    assert text_of(Model()).endswith("<locals>.Model object>")
    assert " at 0x" not in text_of(functools.partial(test_addresses_are_left_out_of_texts))
    assert text_of("kept at 0x12") == "'kept at 0x12'"


def scaled(rate, tree):
    return lambda x: (x * rate, tree)


def test_what_a_function_holds_is_described_without_reading_or_keeping_it():
    held = jnp.ones(3)
    kept = weakref.ref(held)
    value = value_of(scaled(Hostile(), held))
    assert dict(value.holds) == {"closed-over rate": "Hostile", "closed-over tree": "ArrayImpl of float32[3]"}
    del held
    gc.collect()
    assert kept() is None
