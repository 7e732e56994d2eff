"""GPT-2 with int8 weights: a quarter of the bytes that a decode step reads.

Weights of products and the token embedding are int8 with a float32 scale for every output channel; positions, biases
and norms stay float32. GPT-2 small then takes 127.7 MB, not 497.8. (163 MB would be a byte for
each of 163 037 184 numbers, a count that has the LM head, which is the embedding, twice.)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads import gpt2
from perfsuite.workloads.checks import check_ids
from perfsuite.workloads.gpt2 import GPT2Config, Params


class LogitError(NamedTuple):
    """Differences of logits between two sets of parameters, in logits."""

    max_abs: float
    mean_abs: float
    same_argmax: float
    """The fraction of positions at which the likeliest token is the same."""


def quantize(params: Params) -> Params:
    """The same tree with int8 `weight` `[out, in]` and float32 `scale` `[out]` for each product and the embedding.

    `gpt2` and `generation` take it wherever they take float parameters. Rows are scaled by their greatest magnitude
    over 127, rounded to nearest, so that a weight is off by at most half a scale. A row of zeros has scale one.

    Raises `ValueError` for parameters that are quantised already.
    """
    if "scale" in params["wte"]:
        raise ValueError("params are quantised already: wte has a scale")
    return {
        **params,
        "wte": _quantized(params["wte"]),
        "h": [
            {
                name: {inner: _quantized(linear) for inner, linear in part.items()} if name in ("attn", "mlp") else part
                for name, part in layer.items()
            }
            for layer in params["h"]
        ],
    }


def _quantized(layer: Params) -> Params:
    weight = layer["weight"]
    greatest = jnp.max(jnp.abs(weight), axis=1).astype(jnp.float32)
    scale = jnp.where(greatest > 0, greatest / 127, 1.0)
    # Clipped, because the division may round to just above 127.
    rounded = jnp.clip(jnp.round(weight / scale[:, None]), -127, 127)
    return {**layer, "weight": rounded.astype(jnp.int8), "scale": scale}


def size_bytes(params: Any) -> int:
    """Bytes of all arrays of `params`, which may be shapes alone."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(params))


def logit_error(params: Params, other: Params, config: GPT2Config, ids: Array) -> LogitError:
    """How far the logits of `other` are from those of `params` on sequences `ids`, integer `[batch, sequence]`."""
    compute = jax.jit(gpt2.logits, static_argnums=1)
    check_ids("ids", ids, config.vocab_size)
    expected, actual = (np.asarray(compute(tree, config, ids)) for tree in (params, other))
    error = np.abs(actual - expected)
    same = np.mean(actual.argmax(-1) == expected.argmax(-1))
    return LogitError(float(error.max()), float(error.mean()), float(same))
