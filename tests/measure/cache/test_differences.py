"""Why two keys differ: the part, and the lines of the program with the user's lines that they come from."""

import dataclasses
import functools
import hashlib
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from support.persistent_cache import keeping_everything

from perfsuite import call
from perfsuite.measure.cache.differences import difference
from perfsuite.measure.cache.keys import take_key
from perfsuite.measure.private.persistent_cache import COMPUTATION, ProgramKey, key_of

X = jax.ShapeDtypeStruct((4,), jnp.float32)
NAMES = "process 1", "process 2"
XLA_CACHES = "jax_persistent_cache_enable_xla_caches"


def key(function):
    return key_of(jax.jit(function).lower(X))


def in_words(first, second):
    return difference(first, second, NAMES)


def ordered(*names):
    def step(x):
        for name in names:
            x = getattr(jnp, name)(x)
        return x

    return step


def scaled(factor, more=0):
    def step(x):
        x = x * factor
        return jnp.sin(x) + more

    return step


def line(function, below):
    return f"{__file__}:{function.__code__.co_firstlineno + below} in {function.__qualname__}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # places are said from the working directory


def test_equal_keys_differ_in_nothing():
    assert in_words(key(ordered("sin")), key(ordered("sin"))) == []


def test_operations_in_another_order_are_shown_with_their_line():
    said = in_words(key(ordered("sin", "cos")), key(ordered("cos", "sin")))
    assert said == [
        "the program differs in 2 of 7 lines of StableHLO: the same operations in another order; code that iterates over a "
        "set does that, and sorted(...) does not",
        f"  line 3, from {line(ordered('sin'), 2)}",
        "    process 1: %0 = stablehlo.sine %arg0 : tensor<4xf32>",
        "    process 2: %0 = stablehlo.cosine %arg0 : tensor<4xf32>",
    ]


def test_a_constant_has_the_line_that_uses_it():
    head, place, *values = in_words(key(scaled(2.0)), key(scaled(3.0)))
    assert re.fullmatch(r"the program differs in 1 of \d+ lines of StableHLO", head)
    assert place.endswith(f", from {line(scaled(1.0), 1)}")
    assert ["2.000000e+00" in values[0], "3.000000e+00" in values[1]] == [True, True]


def test_every_place_is_named_once():
    said = in_words(key(scaled(2.0, 5.0)), key(scaled(3.0, 6.0)))
    assert [each.rpartition(" from ")[2] for each in said if " from " in each] == [
        line(scaled(1.0), 1),
        line(scaled(1.0), 2),
    ]


def test_a_line_that_a_library_traced_is_named_too():
    def step(order):
        return lambda x: optax.projections.projection_box(x, *order)

    said = in_words(key(step((0.0, 1.0))), key(step((0.5, 1.0))))
    assert any(f", from {__file__}:" in each and " (through optax/projections/" in each for each in said)


def test_a_line_that_only_libraries_traced_is_named_by_theirs():
    """The test that asks for the key is not where it comes from."""
    boxes = (functools.partial(optax.projections.projection_box, lower=low, upper=1.0) for low in (0.0, 0.5))
    _, place, *_ = in_words(*(take_key(call(jax.jit(box), X)) for box in boxes))
    assert place.partition(", from ")[2].startswith("optax/projections/")


def test_of_added_lines_the_first_is_shown():
    said = in_words(key(ordered("sin")), key(ordered("sin", "cos")))
    assert said[0].endswith("lines of StableHLO: 6 in process 1 and 7 in process 2; the first that differs:")
    assert len(said) == 4


def test_long_lines_are_cut_around_what_differs():
    values = [[1.0] * 300 + [last] for last in (2.0, 3.0)]
    said = in_words(*(key(lambda x, each=each: x + jnp.asarray(each)[:4]) for each in values))
    assert max(map(len, said)) < 200
    assert "..." in said[2]
    assert said[2].partition(": ")[2] != said[3].partition(": ")[2], "what differs is in it"


def test_another_part_of_the_key_is_named_with_what_it_is_made_of():
    one = key(ordered("sin"))
    parts = one.parts | {"XLA flags": hashlib.sha256(b"--xla_a=1").hexdigest()}
    other = dataclasses.replace(one, key="other", parts=parts, contents=one.contents | {"XLA flags": "--xla_a=1"})
    assert in_words(one, other) == [
        "the part 'XLA flags' of the key differs",
        "  process 1: none",
        "  process 2: --xla_a=1",
    ]


def keys_in_two_folders(tmp_path):
    keys = []
    for folder in ("one", "other"):
        with keeping_everything(tmp_path / folder):
            keys.append(key(ordered("sin")))
    return keys


def test_a_folder_of_the_cache_that_is_in_the_key_is_said_with_what_takes_it_out(tmp_path, request):
    said = in_words(*keys_in_two_folders(tmp_path))
    if not said and jax.__version_info__ >= (0, 11):
        pytest.skip("this JAX leaves the folder out of the key")
    part, one, other, advice = said
    assert part == "the part 'compile_options' of the key differs"
    assert ("/one/" in one, "/other/" in other) == (True, True)
    assert advice.endswith(
        "folder of the cache into the key: jax_persistent_cache_enable_xla_caches='none' takes it out"
    )
    request.addfinalizer(functools.partial(jax.config.update, XLA_CACHES, getattr(jax.config, XLA_CACHES)))
    jax.config.update(XLA_CACHES, "none")
    assert in_words(*keys_in_two_folders(tmp_path)) == []


def test_places_that_are_part_of_the_key_are_said():
    texts = [key(ordered("sin")).text, key(ordered("sin")).text.replace(__file__, "/elsewhere/model.py")]
    one, other = (
        ProgramKey("step", str(number), {COMPUTATION: str(number)}, {}, text) for number, text in enumerate(texts)
    )
    (said,) = in_words(one, other)
    assert "jax_compilation_cache_include_metadata_in_key" in said
    assert "/elsewhere/model.py" in said


def test_a_key_whose_parts_are_not_known_is_no_error():
    one, other = (ProgramKey("step", each, {}, {}, "") for each in "ab")
    assert in_words(one, other) == ["the keys differ, and JAX does not log their parts"]
