"""Everything that perfsuite reads may be damaged: it is read as it stands, or refused in clear words, and nothing else.

Each reader gets real input with edits. `PERFSUITE_FUZZ=10000 pytest tests/properties/test_readers.py` tries more of it.
"""

import base64
import functools
import json
import tempfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.hlo.module import unpacked
from perfsuite.measure.program.compilation import Compilation, compile_call, kept_program
from perfsuite.measure.program.program import Program
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.targets import cache
from perfsuite.measure.trace import read_trace, trace_block
from properties.edits import EXAMPLES, edited, edited_bytes, outcome

fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def step(x, layers):
    """With what a program can have: loops, a branch, a sort, products, a call of a library."""
    y, sums = jax.lax.scan(lambda y, layer: (jnp.tanh(y @ layer), y.sum()), x, layers)
    y = jax.lax.cond(sums.sum() > 0, lambda y: y * 2, jnp.sort, y)
    y = jax.lax.fori_loop(0, 5, lambda _, y: y @ layers[0], y)
    images, kernel = y[None, None], layers[:1, None]
    convolved = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME")
    return jax.nn.softmax(y), jnp.linalg.cholesky(y @ y.T + 10 * jnp.eye(4)), convolved


@functools.cache
def compiled() -> tuple[Compilation, Program]:
    jitted = jax.jit(step, donate_argnums=0)
    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 4), (3, 4, 4)))
    made = compile_call(call(jitted, *shapes))
    return made, made.program()


def look_at(program: Program) -> None:
    """All that is made of a program."""
    assert {one.kind for one in metrics_of(program)} <= {"count", "size", "info"}
    assert isinstance(program_differences(compiled()[1], program), str)


@fuzzed
@given(data=st.data())
def test_a_program_that_is_not_understood_is_a_clear_error(data):
    made, _ = compiled()
    proto = data.draw(edited_bytes(unpacked(made.hlo)))
    text = base64.b64encode(zlib.compress(proto)).decode()
    program, error = outcome(MeasurementError, Compilation(**{**vars(made), "hlo": text}).program)
    if program is not None:
        look_at(program)
    else:
        assert "cannot be read" in str(error)
        assert "Please report it" in str(error)


@fuzzed
@given(data=st.data())
def test_a_damaged_entry_of_the_programs_cache_is_none(data):
    text = data.draw(edited(json.dumps(compiled()[0].to_dict(), indent=0)))
    entry, _ = outcome(ValueError, json.loads, text)
    if isinstance(entry, dict) and (program := kept_program(entry)) is not None:
        look_at(program)


@fuzzed
@given(data=st.data())
def test_a_damaged_file_of_a_cache_is_none(data):
    with tempfile.TemporaryDirectory() as folder:
        assert cache.write(Path(folder), "key", {"value": [1, 2, 3]})
        (file,) = Path(folder).iterdir()
        content = file.read_bytes()
        file.write_bytes(changed := data.draw(edited_bytes(content)))
        found = cache.read(Path(folder), "key")
        assert found == ({"value": [1, 2, 3]} if changed == content else None) or isinstance(found, dict)


@functools.cache
def recorded() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with trace_block(folder):
            jax.block_until_ready(jax.jit(step)(jnp.ones((4, 4)), jnp.ones((3, 4, 4))))
        (file,) = Path(folder).rglob("*.xplane.pb")
        return file.read_bytes()


@fuzzed
@given(data=st.data())
def test_a_trace_is_read_or_refused_with_its_name(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.xplane.pb")
        path.write_bytes(data.draw(edited_bytes(recorded())))
        _, error = outcome(MeasurementError, read_trace, path)
        assert error is None or str(error).startswith(str(path))
