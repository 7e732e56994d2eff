"""GPT-2 by the paper in NumPy and float64, one sequence and one head at a time; and parameters to try it on."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.workloads.gpt2 import init_params


def randomised(config, seed=0, std=0.3):
    """Parameters of which every array is random, so that it shows where each goes."""
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    rng = np.random.default_rng(seed)

    def array(path, leaf):
        # Norms near one, and positions stronger than tokens: else every prompt ends in one token over and over.
        is_norm, is_position = "ln_" in jax.tree_util.keystr(path), "wpe" in jax.tree_util.keystr(path)
        centre = 1.0 if is_norm and path[-1].key == "weight" else 0.0
        spread = 0.1 if is_norm else 1.0 if is_position else std
        return jnp.asarray(centre + spread * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(array, shapes)


def prompts(config, lengths, width=None, seed=0):
    """Random ids `[batch, width]` and lengths, the padding random too."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.vocab_size, (len(lengths), width or max(lengths))).astype(np.int32)
    return ids, np.asarray(lengths, np.int32)


def numpy_logits(params, config, ids):
    """Logits `[sequence, vocabulary]` of one sequence of ids, read off parameters with `[out, in]` weights."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def linear(layer, x):
        return x @ layer["weight"].T + layer["bias"]

    def norm(layer, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_epsilon)
        return scaled * layer["weight"] + layer["bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(layer, x):
        query, keys, values = np.split(linear(layer["c_attn"], x), 3, axis=-1)
        width, heads = config.hidden_size // config.num_heads, []
        for start in range(0, config.hidden_size, width):
            head = slice(start, start + width)
            scores = query[:, head] @ keys[:, head].T / math.sqrt(width)
            weights = np.tril(np.exp(scores - scores.max(-1, keepdims=True)))
            heads.append(weights / weights.sum(-1, keepdims=True) @ values[:, head])
        return linear(layer["c_proj"], np.concatenate(heads, -1))

    x = params["wte"]["weight"][ids] + params["wpe"]["weight"][: len(ids)]
    for layer in params["h"]:
        x = x + attention(layer["attn"], norm(layer["ln_1"], x))
        x = x + linear(layer["mlp"]["c_proj"], gelu(linear(layer["mlp"]["c_fc"], norm(layer["ln_2"], x))))
    return norm(params["ln_f"], x) @ params["wte"]["weight"].T


def numpy_greedy(params, config, prompt, count):
    """The `count` likeliest tokens after one prompt, each by reading all before it."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(numpy_logits(params, config, ids)[-1].argmax()))
    return ids[len(prompt) :]
