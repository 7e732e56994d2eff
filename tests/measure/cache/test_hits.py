"""What the second process compiles, and the reason for each program."""

import jax
import jax.numpy as jnp
import pytest
from support.persistent_cache import QUICK, keeping_everything

from perfsuite import call
from perfsuite.measure.cache import hits
from perfsuite.measure.cache.hits import compare_runs, run_with_cache
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey

X = jnp.ones(4)


def program(name="step", key="a", found=False, not_kept=""):
    made = None if key is None else ProgramKey(name, key, {"computation": key}, {}, "")
    return CachedProgram(made, name, found, not_kept)


def why(first, second):
    (miss,) = compare_runs("step", first, second).misses
    return miss.why[0]


def test_a_program_that_is_found_is_a_hit():
    seen = compare_runs("step", [program()], [program(found=True)])
    assert (seen.programs, seen.hits, seen.missed, seen.misses) == (1, 1, 0, ())
    assert str(seen) == "step: the second process compiled 0 programs, and found 1 in the cache"


@pytest.mark.parametrize("not_kept", ["because it took < 1.00 seconds to compile", ""])
def test_the_first_process_says_why_it_kept_nothing(not_kept):
    assert why([program(not_kept=not_kept)], [program()]) == (not_kept or hits.GONE)


def test_a_cache_that_is_off_is_said():
    assert why([program(key=None)], [program(key=None)]) == hits.OFF


def test_another_key_is_explained_by_its_parts():
    said = why([program(key="a")], [program(key="b")])
    assert said.startswith("its key is another in each process: the part 'computation' of the key differs")


def test_a_program_that_the_first_process_did_not_need_is_said():
    assert why([program("other")], [program(key="b")]) == hits.ANOTHER


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
        runs = [run_with_cache(call(step, X), tmp_path / "cache") for _ in range(2)]
        seen = compare_runs("step", *runs)
        assert (seen.programs, seen.hits) == (1, 1)
        jax.config.update(QUICK, 1000.0)
        runs = [run_with_cache(call(step, X), tmp_path / "other") for _ in range(2)]
        assert "because it took < 1000.00 seconds to compile" in str(compare_runs("step", *runs))
    assert not (tmp_path / "before").exists()
