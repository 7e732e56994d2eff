"""Memory of BERT's train step on a v5e: what fits, at which batch it stops, what rematerialisation and bfloat16 change."""

import dataclasses

import pytest
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.measure.targets.target_compiler import CompileFailed

from .abstract_steps import TARGET, flat_step, shapes
from .conftest import DROPOUT

CHANGES = {
    "bfloat16": {},
    "float32": {"activation_dtype": "float32"},
    "remat": {"remat": True},
}
BATCHES = range(64, 257, 16)


@pytest.mark.parametrize("change", CHANGES)
def test_memory(perf, change):
    made = shapes(perf.size, **DROPOUT["no-dropout"]).changed(**CHANGES[change])
    program = perf.program(flat_step(made), TARGET, name=change)
    assert program.fits
    assert not program.lost_donations
    in_float32 = len(program.float32_products) / len(program.products)
    # The compiler itself makes some of them bfloat16, which is what the hardware multiplies.
    assert in_float32 > 0.5 if made.config.activation_dtype == "float32" else in_float32 < 0.2


@needs_libtpu
def test_remat_keeps_less_and_computes_more(perf, program_cache):
    if perf.size == "small":
        pytest.skip("the small model's activations fit the cores' own memory; run it with --perf-size=full")
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    plain, remat = (
        program_of(flat_step(made.changed(remat=remat)), TARGET, cache=program_cache) for remat in (False, True)
    )
    assert remat.temp_bytes < plain.temp_bytes
    assert remat.flops > plain.flops


@needs_libtpu
def test_largest_batch_that_fits(perf, program_cache):
    """Half of what is known not to fit and what is known to, again and again."""
    if perf.size == "small":
        pytest.skip("every batch of the small model fits; run it with --perf-size=full")
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    fits, refused = 0, len(BATCHES)
    while refused - fits > 1:
        middle = (fits + refused) // 2
        try:
            program_of(flat_step(dataclasses.replace(made, batch_size=BATCHES[middle])), TARGET, cache=program_cache)
            fits = middle
        except CompileFailed as error:
            if not error.out_of_memory:
                raise
            refused = middle
    perf.record("largest batch", BATCHES[fits], unit="sequences", kind="count", better="higher", target=TARGET)
