"""Why two keys differ, by part and by the user's line, and what a second process compiles."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from support.persistent_cache import QUICK, keeping_everything

from perfsuite import call
from perfsuite.measure import cache
from perfsuite.measure.cache import CacheKeys, compare_runs, difference, run_with_cache, take_key
from perfsuite.measure.private.persistent_cache import COMPUTATION, CachedProgram, ProgramKey, key_of

X = jax.ShapeDtypeStruct((4,), jnp.float32)
ONES = jnp.ones(4)
NAMES = "process 1", "process 2"


def key(function):
    return key_of(jax.jit(function).lower(X))


def why(first, second):
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
    monkeypatch.chdir(tmp_path)  # places are named from the working directory


def test_equal_keys_have_no_reason():
    keys = CacheKeys("step", (key(ordered("sin")), key(ordered("sin"))))
    assert (keys.distinct, keys.why()) == (1, [])


def test_operations_in_another_order_have_their_line():
    head, place, first, second = why(key(ordered("sin", "cos")), key(ordered("cos", "sin")))
    assert "differs in 2 of 7 lines of StableHLO: the same operations in another order" in head
    assert place == f"  line 3, from {line(ordered('sin'), 2)}"
    assert ("stablehlo.sine" in first, "stablehlo.cosine" in second) == (True, True)


def test_a_constant_has_the_line_that_uses_it_and_every_place_is_named_once():
    lines = why(key(scaled(2.0, 5.0)), key(scaled(3.0, 6.0)))
    places = [each.rpartition(" from ")[2] for each in lines if " from " in each]
    assert places == [line(scaled(1.0), 1), line(scaled(1.0), 2)]
    assert ("2.000000e+00" in lines[2], "3.000000e+00" in lines[3]) == (True, True)


def test_a_line_that_a_library_traced_is_named_beside_the_users():
    def step(order):
        return lambda x: optax.projections.projection_box(x, *order)

    lines = why(key(step((0.0, 1.0))), key(step((0.5, 1.0))))
    assert any(
        f", from {__file__}:" in each and "optax/projections/" in each.partition("(through")[2] for each in lines
    )


def test_a_line_that_only_libraries_traced_is_theirs():
    """The test that asks for the key is not where it comes from."""
    boxes = (functools.partial(optax.projections.projection_box, lower=low, upper=1.0) for low in (0.0, 0.5))
    _, place, *_ = why(*(take_key(call(jax.jit(box), X)) for box in boxes))
    assert "optax/projections/" in place.partition(", from ")[2]


def test_of_added_lines_the_first_is_shown():
    lines = why(key(ordered("sin")), key(ordered("sin", "cos")))
    assert "6 lines of StableHLO in process 1 and 7 in process 2" in lines[0]
    assert len(lines) == 4
    assert "stablehlo.cosine" in lines[3]


def test_long_lines_are_cut_around_what_differs():
    values = [[1.0] * 300 + [last] for last in (2.0, 3.0)]
    lines = why(*(key(lambda x, each=each: x + jnp.asarray(each)[:4]) for each in values))
    assert max(map(len, lines)) < 200
    assert lines[2].partition(": ")[2] != lines[3].partition(": ")[2], "what differs is in it"


def test_another_part_of_the_key_is_named():
    one = key(ordered("sin"))
    other = dataclasses.replace(one, key="b", parts=one.parts | {"XLA flags": "b"})
    assert why(one, other) == ["the part 'XLA flags' of the key differs"]


def test_a_folder_of_the_cache_that_is_in_the_key_is_a_part_of_it(tmp_path):
    keys = []
    for folder in ("one", "other"):
        with keeping_everything(tmp_path / folder):
            keys.append(key(ordered("sin")))
    if keys[0].key == keys[1].key and jax.__version_info__ >= (0, 11):
        pytest.skip("this JAX leaves the folder out of the key")
    assert why(*keys) == ["the part 'compile_options' of the key differs"]


def test_places_that_are_part_of_the_key_and_unknown_parts_are_no_error():
    text = key(ordered("sin")).text
    one, other = (ProgramKey("step", each, {COMPUTATION: each}, text) for each in "ab")
    assert "jax_compilation_cache_include_metadata_in_key" in why(one, other)[0]
    one, other = (ProgramKey("step", each, {}, "") for each in "ab")
    assert why(one, other) == ["the keys differ, and JAX does not log their parts"]


# What a second process compiles.


def program(name="step", key="a", found=False, not_kept=""):
    made = None if key is None else ProgramKey(name, key, {"computation": key}, "")
    return CachedProgram(made, name, found, not_kept)


def test_a_program_that_is_found_is_a_hit():
    seen = compare_runs("step", [program()], [program(found=True)])
    assert (seen.programs, seen.hits, seen.missed, seen.misses) == (1, 1, 0, ())
    assert str(seen) == "step: the second process compiled 0 programs, and found 1 in the cache"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"not_kept": "because it took < 1.00 seconds to compile"}, {}, "because it took < 1.00 seconds to compile"),
        ({}, {}, cache.GONE),
        ({"key": None}, {"key": None}, cache.OFF),
        ({"name": "other"}, {"key": "b"}, cache.ANOTHER),
        ({}, {"key": "b"}, "its key is another in each process: the part 'computation' of the key differs"),
    ],
    ids=["not kept", "gone", "off", "another program", "another key"],
)
def test_a_miss_has_its_reason(first, second, reason):
    (miss,) = compare_runs("step", [program(**first)], [program(**second)]).misses
    assert miss.why[0].startswith(reason)


def test_programs_of_one_name_are_matched_by_their_place_and_counted():
    first = [program(key="a"), program(key="b")]
    second = [program(key="a", found=True), program(key="b"), program(key="b")]
    seen = compare_runs("step", first, second)
    assert [(miss.program, miss.times) for miss in seen.misses] == [("step", 2)]
    misses, found = seen.metrics("step")
    assert (misses.name, misses.value, misses.detail) == ("step cache misses", 2, {"step": 2})
    assert (found.name, found.value, found.kind) == ("step cache hits", 1, "info")


def test_a_call_runs_with_the_cache_and_its_second_run_compiles_nothing(tmp_path):
    @jax.jit
    def step(x):
        return jnp.cos(x) * 2

    with keeping_everything(tmp_path / "before"):
        runs = [run_with_cache(call(step, ONES), tmp_path / "cache") for _ in range(2)]
        seen = compare_runs("step", *runs)
        assert (seen.programs, seen.hits) == (1, 1)
        assert list((tmp_path / "before").glob("*")) == [], "nothing is put into the folder that is set"
        jax.config.update(QUICK, 1000.0)
        runs = [run_with_cache(call(step, ONES), tmp_path / "other") for _ in range(2)]
        assert "because it took < 1000.00 seconds to compile" in str(compare_runs("step", *runs))


def test_a_cache_whose_folder_nobody_set_is_the_finding(tmp_path):
    assert not jax.config.jax_compilation_cache_dir
    runs = [run_with_cache(call(jax.jit(lambda x: jnp.cos(x) * 3), ONES), tmp_path) for _ in range(2)]
    (miss,) = compare_runs("step", *runs).misses
    assert miss.why == (cache.NO_FOLDER,)
    assert (jax.config.jax_compilation_cache_dir, list(tmp_path.iterdir())) == (None, [])


def test_what_a_program_asks_its_process_is_told_with_its_line(monkeypatch):
    def step(x):
        index = float(jax.process_index())
        return x + index

    keys = []
    for number in range(2):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        keys.append(take_key(call(jax.jit(step), X)))
        assert jax.process_index() == number, "what was replaced is as before"
    *_, answer = why(*keys)
    place = line(step, 1)
    assert answer == f"  each process has its own answer to jax.process_index() at {place}"
