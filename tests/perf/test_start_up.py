"""What comes before the first step: what is imported, and whether another process can use the programs compiled here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite import Budget, call
from perfsuite.workloads import gpt2
from perfsuite.workloads.gpt2.generation import next_token

from .abstract_steps import flat_step, shapes
from .gpt2_work import abstract_params, config_of

HEAVY = ("jax", "jaxlib", "numpy", "scipy", "equinox", "filelock")


def test_the_cache_key_of_a_train_step(perf):
    perf.cache_key(flat_step(shapes(perf.size)), processes=2, name="BERT flat step")


def test_the_cache_key_of_a_token(perf):
    config = config_of(perf.size, num_layers=2)
    cache = jax.eval_shape(lambda: gpt2.initialize_cache(config, 1, 32))
    token = jax.ShapeDtypeStruct((1,), jnp.int32)
    scalars = None, np.int32(1), np.float32(0), np.int32(-1)
    step = call(next_token, abstract_params(config), token, cache, *scalars, config=config, top_k=None)
    perf.cache_key(step, processes=2)


@pytest.mark.parametrize("module", ["perfsuite", "perfsuite.plugin"])
def test_what_a_session_imports_that_measures_nothing(perf, module):
    """Without pytest's own, which another version of pytest changes."""
    perf.imports(module, without=HEAVY, after=("pytest",), budget=Budget(started_backends=0))
