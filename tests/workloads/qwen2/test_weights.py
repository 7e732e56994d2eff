import dataclasses

import jax
import jax.numpy as jnp
import pytest

from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table

TIED = Qwen2Config.tiny(vocab_size=40, num_layers=2)
UNTIED = dataclasses.replace(TIED, tied_head=False)


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_the_table_has_every_parameter_of_the_model_once_in_its_shape(config):
    shapes = jax.eval_shape(Qwen2(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    expected = {tuple(key.key for key in path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}
    table = weight_table(config)
    actual = {weight.path: weight.shape[::-1] if weight.transposed else weight.shape for weight in table.values()}
    assert actual == expected
    assert len(table) == len(actual)
