"""GPT-2 (Radford et al. 2019) in pure JAX: parameters, whole sequences, and token by token with a key-value cache.

Parameters are nested dicts under the names of the published checkpoints, and a list of layers. Every weight of a
product is `[out, in]`, which the published ones are not. A decode step reads each weight once, for one row: XLA's CPU
compiler reads int8 weights of this layout in place (1.4 ms for the LM head of 50257 x 768), and first writes `[in,
out]` ones out in float32 (40 ms). In float32 the two cost about the same (jax 0.10.2, 2 cores).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.checks import check_ids
from perfsuite.workloads.gpt2.config import GPT2Config

__all__ = ["Cache", "GPT2Config", "decode_step", "init_params", "initialize_cache", "logits", "prefill", "update_cache"]

Params = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of the tokens read so far.

    `keys` and `values` have an array `[batch x heads, slots, head size]` a layer. Of each row the first `lengths`,
    int32 `[batch]`, slots are filled, and only those are read.
    """

    # One axis for batch and heads: with two, XLA's CPU compiler sees the update of a batch of one in two shapes, and
    # copies the whole cache three times a step. A step's attention over 1024 slots then takes 45 ms, not 5.
    # An array a layer, not one for all: a layer's slice would be a copy.
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    lengths: Array

    @property
    def slots(self) -> int | None:
        """Slots of a row; None without layers, where nothing limits it."""
        return self.keys[0].shape[1] if self.keys else None


def init_params(config: GPT2Config, key: Array) -> Params:
    """Parameters in float32 as GPT-2 begins: normal(0.02) weights, zero biases, norms of one.

    Weights that end a residual branch are smaller by `sqrt(2 num_layers)`, so that their sum does not grow with depth
    (section 2.3 of the paper). The LM head is the token embedding `wte`.
    """
    hidden, std = config.hidden_size, config.initializer_std
    token_key, position_key, *layer_keys = jax.random.split(key, 2 + config.num_layers)

    def linear(key: Array, inputs: int, outputs: int, std: float = std) -> Params:
        return {"weight": std * jax.random.normal(key, (outputs, inputs)), "bias": jnp.zeros(outputs)}

    def norm() -> Params:
        return {"weight": jnp.ones(hidden), "bias": jnp.zeros(hidden)}

    def layer(key: Array) -> Params:
        keys = jax.random.split(key, 4)
        last = std / math.sqrt(2 * config.num_layers)
        return {
            "ln_1": norm(),
            "attn": {"c_attn": linear(keys[0], hidden, 3 * hidden), "c_proj": linear(keys[1], hidden, hidden, last)},
            "ln_2": norm(),
            "mlp": {
                "c_fc": linear(keys[2], hidden, config.intermediate_size),
                "c_proj": linear(keys[3], config.intermediate_size, hidden, last),
            },
        }

    return {
        "wte": {"weight": std * jax.random.normal(token_key, (config.vocab_size, hidden))},
        "wpe": {"weight": std * jax.random.normal(position_key, (config.max_positions, hidden))},
        "h": [layer(key) for key in layer_keys],
        "ln_f": norm(),
    }


def logits(params: Params, config: GPT2Config, ids: Array) -> Array:
    """Logits of the next token after every position, float32 `[batch, sequence, vocabulary]`, without a cache.

    `ids` is integer `[batch, sequence]`. Padding on the right changes nothing to its left.

    Raises `ValueError` for sequences beyond `config.max_positions`, and, outside `jit`, for ids not in the vocabulary.
    """
    _check_width(ids, config)
    check_ids("ids", ids, config.vocab_size)
    x = embed(params, config, ids, jnp.arange(ids.shape[1]))
    for layer in params["h"]:
        x = apply_layer(layer, config, x, causal_attention)
    return head(params, config, x)


def initialize_cache(config: GPT2Config, batch_size: int, length: int) -> Cache:
    """An empty cache of `length` slots a row, in the activation dtype.

    Raises `ValueError` unless `batch_size` and `length` are at least 1 and `length` at most `config.max_positions`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 1 <= length <= config.max_positions:
        raise ValueError(f"length must be in 1..{config.max_positions} (GPT2Config.max_positions), got {length}")
    shape = batch_size * config.num_heads, length, config.head_size

    def empty() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, config.activation_dtype) for _ in range(config.num_layers))

    return Cache(empty(), empty(), jnp.zeros(batch_size, jnp.int32))


def update_cache(cache: Cache, layer: int, keys: Array, values: Array) -> Cache:
    """The cache with one layer's new keys and values `[batch, new, heads, head size]`, behind what each row holds.

    `lengths` stays, so that the other layers write to the same slots. The caller makes sure that every row has room
    for `new` more slots: a row without it loses its last ones.
    """

    def written(old: Array, new: Array) -> Array:
        batch, count, heads, size = new.shape
        rows = jnp.moveaxis(new, 2, 1).reshape(batch * heads, count, size).astype(old.dtype)
        put = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at, 0)))
        return put(old, rows, jnp.repeat(cache.lengths, heads, total_repeat_length=batch * heads))

    def replaced(arrays: tuple[Array, ...], new: Array) -> tuple[Array, ...]:
        return (*arrays[:layer], written(arrays[layer], new), *arrays[layer + 1 :])

    return dataclasses.replace(cache, keys=replaced(cache.keys, keys), values=replaced(cache.values, values))


def prefill(params: Params, config: GPT2Config, ids: Array, lengths: Array, cache: Cache) -> tuple[Array, Cache]:
    """Read prompts into an empty cache: logits after each prompt's last token, float32 `[batch, vocabulary]`.

    `ids` is integer `[batch, width]`, of which the first `lengths[row]` are the prompt, and the rest, whatever it is,
    has no influence.

    Raises `ValueError` for `ids` wider than the cache; and, outside `jit`, for lengths not in 1..width, for ids not in
    the vocabulary, and for a cache that is not empty.
    """
    _check_width(ids, config)
    batch, width = ids.shape
    if cache.slots is not None and width > cache.slots:
        raise ValueError(f"ids are {width} wide, but the cache has {cache.slots} slots a row")
    if lengths.shape != (batch,) or cache.lengths.shape != (batch,):
        shapes = f"ids {ids.shape}, lengths {lengths.shape}, cache.lengths {cache.lengths.shape}"
        raise ValueError(f"ids, lengths and cache must be of one batch size: {shapes}")
    check_lengths(lengths, width)
    if is_concrete(cache.lengths) and np.any(np.asarray(cache.lengths)):
        raise ValueError(f"cache must be empty, has lengths {np.asarray(cache.lengths).tolist()}")
    ids = jnp.where(jnp.arange(width) < jnp.asarray(lengths)[:, None], ids, 0)
    check_ids("ids", ids, config.vocab_size)
    x = embed(params, config, ids, jnp.arange(width))
    for i, layer in enumerate(params["h"]):

        def attend(query: Array, keys: Array, values: Array, i: int = i) -> Array:
            nonlocal cache
            cache = update_cache(cache, i, keys, values)
            return causal_attention(query, keys, values)

        x = apply_layer(layer, config, x, attend)
    last = jnp.take_along_axis(x, (jnp.asarray(lengths) - 1)[:, None, None], axis=1)[:, 0]
    return head(params, config, last), dataclasses.replace(cache, lengths=jnp.asarray(lengths, jnp.int32))


def decode_step(params: Params, config: GPT2Config, token: Array, cache: Cache) -> tuple[Array, Cache]:
    """Read one more token of every row, integer `[batch]`: logits of the next, float32 `[batch, vocabulary]`.

    Outside `jit`, raises `ValueError` for ids not in the vocabulary and for a row whose slots are all filled. Inside,
    the caller checks both.
    """
    check_ids("token", token, config.vocab_size)
    if cache.slots is not None and is_concrete(cache.lengths) and np.any(np.asarray(cache.lengths) >= cache.slots):
        raise ValueError(f"cache is full: lengths {np.asarray(cache.lengths).tolist()} of {cache.slots} slots")
    x = embed(params, config, token, cache.lengths)
    for i, layer in enumerate(params["h"]):

        def attend(query: Array, keys: Array, values: Array, i: int = i) -> Array:
            nonlocal cache
            cache = update_cache(cache, i, keys[:, None], values[:, None])
            return _attend_to_cache(query, cache.keys[i], cache.values[i], cache.lengths)

        x = apply_layer(layer, config, x, attend)
    return head(params, config, x), dataclasses.replace(cache, lengths=cache.lengths + 1)


def embed(params: Params, config: GPT2Config, ids: Array, positions: Array) -> Array:
    """Token and position embeddings summed, `[..., hidden]`, in the activation dtype."""
    table = params["wte"]
    tokens = table["weight"][ids]
    if "scale" in table:
        tokens = tokens * table["scale"][ids][..., None]
    return (tokens + params["wpe"]["weight"][positions]).astype(config.activation_dtype)


def apply_layer(layer: Params, config: GPT2Config, x: Array, attend: Callable[[Array, Array, Array], Array]) -> Array:
    """One layer, `[..., hidden]` to the same; `attend` gets query, keys and values, `[..., heads, size]`."""
    x = x + linear(layer["attn"]["c_proj"], attend(*query_key_value(layer, config, x)).reshape(x.shape))
    return x + feed_forward(layer, config, x)


def query_key_value(layer: Params, config: GPT2Config, x: Array) -> tuple[Array, Array, Array]:
    """The normalised input's three projections, each `[..., heads, head size]`."""
    joint = linear(layer["attn"]["c_attn"], normalise(layer["ln_1"], config, x))
    split = joint.reshape(*x.shape[:-1], 3, config.num_heads, config.head_size)
    return split[..., 0, :, :], split[..., 1, :, :], split[..., 2, :, :]


def causal_attention(query: Array, keys: Array, values: Array) -> Array:
    """Each position over itself and those before it: three arrays `[batch, sequence, heads, size]` to one."""
    length = query.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)
    visible = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(visible, scores / math.sqrt(query.shape[-1]), -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(values.dtype), values)


def _attend_to_cache(query: Array, keys: Array, values: Array, last: Array) -> Array:
    """`[batch, heads, size]` over slots up to and with `last`, `[batch]`."""
    batch, heads, size = query.shape
    rows = query.reshape(batch * heads, size)
    scores = jnp.einsum("nd,ntd->nt", rows, keys, preferred_element_type=jnp.float32)
    visible = jnp.arange(keys.shape[1]) <= jnp.repeat(last, heads, total_repeat_length=batch * heads)[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores / math.sqrt(size), -jnp.inf), axis=-1)
    return jnp.einsum("nt,ntd->nd", weights.astype(values.dtype), values).reshape(query.shape)


def feed_forward(layer: Params, config: GPT2Config, x: Array) -> Array:
    """The normalised input through the wide block, `[..., hidden]` to the same."""
    wide = linear(layer["mlp"]["c_fc"], normalise(layer["ln_2"], config, x))
    return linear(layer["mlp"]["c_proj"], jax.nn.gelu(wide, approximate=True))


def head(params: Params, config: GPT2Config, x: Array) -> Array:
    """Logits in float32, `[..., vocabulary]`: the final norm, and the token embedding as a product."""
    return linear(params["wte"], normalise(params["ln_f"], config, x), dtype=jnp.float32)


def linear(layer: Params, x: Array, dtype: Any = None) -> Array:
    """`[..., in]` to `[..., out]` in `dtype`, by default `x`'s.

    `weight` is `[out, in]`. With a `scale`, `[out]`, its rows are multiplied by it: int8 weights have one.
    """
    weight = layer["weight"].astype(x.dtype)
    if "scale" in layer and x.size == x.shape[-1]:
        # One row: with the transpose XLA's CPU compiler fuses the conversion from int8 into the product.
        y = jnp.matmul(x, weight.T, preferred_element_type=dtype)
    else:
        # No transpose, which XLA's CPU compiler would write out for one row in float32, for every step: 3 layers and
        # the head of GPT-2 small then take 36 ms, not 9 (jax 0.10.2, 2 cores).
        y = jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=dtype)
    for name, combine in (("scale", jnp.multiply), ("bias", jnp.add)):
        if name in layer:
            y = combine(y, layer[name].astype(y.dtype))
    return y


def normalise(layer: Params, config: GPT2Config, x: Array) -> Array:
    """Layer normalisation over the last axis, computed in float32, in `x`'s dtype."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + config.norm_epsilon)
    return (centred * scale * layer["weight"] + layer["bias"]).astype(x.dtype)


def is_concrete(array: Any) -> bool:
    """Whether there are numbers to look at, rather than a tracer inside `jit`."""
    return not isinstance(array, jax.core.Tracer)


def check_lengths(lengths: Any, width: int) -> None:
    """Raise `ValueError` unless every length is in 1..width, if they are numbers already."""
    if is_concrete(lengths):
        for row, length in enumerate(np.asarray(lengths).tolist()):
            if not 1 <= length <= width:
                raise ValueError(f"lengths must be in 1..{width}, the width of ids; row {row} has {length}")


def _check_width(ids: Array, config: GPT2Config) -> None:
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be [batch, sequence], neither empty, got shape {ids.shape}")
    if ids.shape[1] > config.max_positions:
        raise ValueError(f"ids are {ids.shape[1]} wide, but GPT2Config.max_positions is {config.max_positions}")
