"""Text generation with GPT-2: one compiled program, two programs driven from Python, and the uncached baseline.

All three give the same greedy tokens. Shapes are those of declared buckets, so that a program serves every prompt
length of its bucket.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads import gpt2
from perfsuite.workloads.checks import check_ids
from perfsuite.workloads.gpt2 import Cache, GPT2Config, Params

__all__ = ["BUCKETS", "first_token", "generate", "generate_stepwise", "generate_uncached", "next_token"]

BUCKETS = (32, 64, 128, 256, 512, 768, 1024)
"""Lengths to which prompts and caches are rounded up; what is longer gets `config.max_positions`."""

_NO_STOP = -1


def generate(
    params: Params,
    config: GPT2Config,
    ids: Any,
    lengths: Any,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    key: Array | None = None,
    stop_token: int | None = None,
    cache_length: int | None = None,
    buckets: Sequence[int] = BUCKETS,
) -> Array:
    """Continue prompts by `max_new_tokens` tokens, int32 `[batch, max_new_tokens]`, in one compiled program.

    `ids` is integer `[batch, width]`; the first `lengths[row]` are the prompt, the rest is padding. A temperature of 0
    takes the likeliest token; above 0, tokens are drawn with `key`, from the `top_k` likeliest if given. From its first
    `stop_token` on a row is all `stop_token`; generation ends early when all rows have one.

    Prompts are padded to the smallest of `buckets` that holds the longest, and the cache has `cache_length` slots, by
    default the smallest of `buckets` that holds the padded prompt and the new tokens. A program is compiled for every
    batch size, padded length, cache length, `max_new_tokens` and `top_k`, and for greedy and sampled.

    Raises `ValueError`, before anything is computed, for arguments that do not fit the model, the cache or each other.
    """
    ids, lengths, slots = _prepare(config, ids, lengths, max_new_tokens, cache_length, buckets)
    how = _sampling(config, temperature, top_k, key, stop_token)
    return _generate(params, ids, lengths, *how, config=config, count=max_new_tokens, slots=slots, top_k=top_k)


def generate_stepwise(
    params: Params,
    config: GPT2Config,
    ids: Any,
    lengths: Any,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    key: Array | None = None,
    stop_token: int | None = None,
    cache_length: int | None = None,
    buckets: Sequence[int] = BUCKETS,
) -> Array:
    """As `generate`, by two programs driven from Python: `first_token` for the prompts, `next_token` for each token.

    They serve any `max_new_tokens` that fits the cache, which is donated from step to step. Waits for the last token;
    with a `stop_token` for every one, to see whether to go on.
    """
    ids, lengths, slots = _prepare(config, ids, lengths, max_new_tokens, cache_length, buckets)
    key, temperature_, stop = _sampling(config, temperature, top_k, key, stop_token)
    static = {"config": config, "top_k": top_k}
    token, cache = first_token(params, ids, lengths, key, temperature_, slots=slots, **static)
    tokens = [token]
    for step in range(1, max_new_tokens):
        if stop_token is not None and np.all(np.asarray(token) == stop_token):
            break
        token, cache = next_token(params, token, cache, key, np.int32(step), temperature_, stop, **static)
        tokens.append(token)
    tokens += [token] * (max_new_tokens - len(tokens))
    # By NumPy: `jnp.stack` and `jnp.asarray` would compile a program for every number of tokens.
    return jax.device_put(np.stack(jax.device_get(tokens), axis=1))


def generate_uncached(params: Params, config: GPT2Config, ids: Any, lengths: Any, max_new_tokens: int) -> Array:
    """The uncached baseline: greedy tokens; each reads the whole growing sequence again.

    Its pieces are jitted one by one, with a mask and logits for every position, and compile again for every length.
    """
    ids, lengths = _check(config, ids, lengths, max_new_tokens)
    ids = np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0)[:, : lengths.max()]
    rows, first = np.arange(len(ids)), lengths
    for _ in range(max_new_tokens):
        x = _embed(params, ids, config=config)
        for layer in params["h"]:
            mixed = _causal_attention(*_query_key_value(layer, x, config=config))
            x = _project(layer, x, mixed)
            x = _feed_forward(layer, x, config=config)
        scores = _head({"ln_f": params["ln_f"], "wte": params["wte"]}, x, config=config)
        token = np.asarray(scores)[rows, lengths - 1].argmax(-1)
        ids = np.pad(ids, ((0, 0), (0, 1)))
        ids[rows, lengths] = token
        lengths = lengths + 1
    tokens = np.stack([row[start : start + max_new_tokens] for row, start in zip(ids, first, strict=True)])
    return jax.device_put(tokens.astype(np.int32))


@functools.partial(jax.jit, static_argnames=("config", "count", "slots", "top_k"))
def _generate(
    params: Params,
    ids: Array,
    lengths: Array,
    key: Array | None,
    temperature: Array,
    stop: Array,
    *,
    config: GPT2Config,
    count: int,
    slots: int,
    top_k: int | None,
) -> Array:
    batch = len(ids)
    token, cache = first_token(params, ids, lengths, key, temperature, config=config, slots=slots, top_k=top_k)
    # Filled with the stop token, so that tokens that the loop does not reach are right.
    tokens = jnp.full((batch, count), stop, jnp.int32).at[:, 0].set(token)
    in_place = batch == 1 and "scale" in params["wte"]

    def unfinished(state: tuple[Array, Array, Array, Cache]) -> Array:
        step, token, _, _ = state
        return (step < count) & jnp.any(token != stop)

    def body(state: tuple[Array, Array, Array, Cache]) -> tuple[Array, Array, Array, Cache]:
        step, token, tokens, cache = state
        weights = params
        if in_place:
            # Ties int8 weights to the step. XLA would otherwise convert them all to float32 ahead of the loop, and
            # read four times as many bytes a step: 28 tokens/s, not 45 (GPT-2 small, 32 tokens, jax 0.10.2, 2 cores).
            # With more rows it converts them in every step, which costs more than reading float32 does.
            weights, token = jax.lax.optimization_barrier((params, token))
        token, cache = next_token(weights, token, cache, key, step, temperature, stop, config=config, top_k=top_k)
        return step + 1, token, tokens.at[:, step].set(token), cache

    return jax.lax.while_loop(unfinished, body, (jnp.int32(1), token, tokens, cache))[2]


@functools.partial(jax.jit, static_argnames=("config", "slots", "top_k"))
def first_token(
    params: Params,
    ids: Array,
    lengths: Array,
    key: Array | None,
    temperature: Array,
    *,
    config: GPT2Config,
    slots: int,
    top_k: int | None,
) -> tuple[Array, Cache]:
    """Read the prompts into a cache of `slots` and choose the first new token: int32 `[batch]`, and the cache.

    A `key` of None takes the likeliest. Nothing is checked: `generate_stepwise` does that.
    """
    cache = gpt2.initialize_cache(config, len(ids), slots)
    scores, cache = gpt2.prefill(params, config, ids, lengths, cache)
    return _choose(scores, key, 0, temperature, top_k), cache


@functools.partial(jax.jit, static_argnames=("config", "top_k"), donate_argnames="cache")
def next_token(
    params: Params,
    token: Array,
    cache: Cache,
    key: Array | None,
    step: Array,
    temperature: Array,
    stop: Array,
    *,
    config: GPT2Config,
    top_k: int | None,
) -> tuple[Array, Cache]:
    """Read a token of every row and choose the next, int32 `[batch]`; rows whose token is `stop` stay so.

    The cache is donated. `step` is how many new tokens there are, and makes the `key` another one.
    """
    scores, cache = gpt2.decode_step(params, config, token, cache)
    return jnp.where(token == stop, stop, _choose(scores, key, step, temperature, top_k)), cache


def _choose(scores: Array, key: Array | None, step: Any, temperature: Array, top_k: int | None) -> Array:
    if key is None:
        return jnp.argmax(scores, axis=-1).astype(jnp.int32)
    if top_k is not None:
        least = jax.lax.top_k(scores, top_k)[0][:, -1:]
        scores = jnp.where(scores < least, -jnp.inf, scores)
    return jax.random.categorical(jax.random.fold_in(key, step), scores / temperature).astype(jnp.int32)


_embed = jax.jit(
    lambda params, ids, config: gpt2.embed(params, config, ids, jnp.arange(ids.shape[1])), static_argnames="config"
)
_query_key_value = jax.jit(lambda layer, x, config: gpt2.query_key_value(layer, config, x), static_argnames="config")
_causal_attention = jax.jit(gpt2.causal_attention)
_project = jax.jit(lambda layer, x, mixed: x + gpt2.linear(layer["attn"]["c_proj"], mixed.reshape(x.shape)))
_feed_forward = jax.jit(lambda layer, x, config: x + gpt2.feed_forward(layer, config, x), static_argnames="config")
_head = jax.jit(lambda params, x, config: gpt2.head(params, config, x), static_argnames="config")


def _check(config: GPT2Config, ids: Any, lengths: Any, max_new_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    ids, lengths = np.asarray(ids), np.asarray(lengths)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be [batch, sequence], neither empty, got shape {ids.shape}")
    if lengths.shape != ids.shape[:1] or not np.issubdtype(lengths.dtype, np.integer):
        raise ValueError(f"lengths must be {len(ids)} integers, one a row of ids, got {lengths.dtype} {lengths.shape}")
    gpt2.check_lengths(lengths, ids.shape[1])
    check_ids("ids", np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0), config.vocab_size)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if lengths.max() > config.max_positions:
        raise ValueError(f"a prompt of {lengths.max()} tokens, but GPT2Config.max_positions is {config.max_positions}")
    if lengths.max() + max_new_tokens > config.max_positions:
        raise ValueError(
            f"max_new_tokens ({max_new_tokens}) after a prompt of {lengths.max()} tokens exceeds "
            f"GPT2Config.max_positions ({config.max_positions})"
        )
    return ids, lengths


def _prepare(
    config: GPT2Config, ids: Any, lengths: Any, max_new_tokens: int, cache_length: int | None, buckets: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, int]:
    """The padded prompts, their lengths, and the slots of the cache."""
    if any(bucket < 1 for bucket in buckets):
        raise ValueError(f"buckets must be at least 1, got {tuple(buckets)}")
    if cache_length is not None and not 1 <= cache_length <= config.max_positions:
        limit = f"{config.max_positions} (GPT2Config.max_positions)"
        raise ValueError(f"cache_length must be in 1..{limit}, got {cache_length}")
    ids, lengths = _check(config, ids, lengths, max_new_tokens)
    longest = int(lengths.max())
    if cache_length is not None and longest + max_new_tokens > cache_length:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens ({max_new_tokens}) exceed cache_length ({cache_length})"
        )

    def rounded(length: int) -> int:
        holding = min((bucket for bucket in buckets if bucket >= length), default=config.max_positions)
        return min(holding, config.max_positions)

    width = rounded(longest)
    # By the padded prompt, not the longest, which would take prompts of one bucket to caches of two lengths.
    slots = rounded(width + max_new_tokens) if cache_length is None else cache_length
    width = min(width, slots)
    padded = np.zeros((len(ids), width), np.int32)
    kept = np.arange(longest) < lengths[:, None]
    padded[:, :longest] = np.where(kept, ids[:, :longest], 0)
    return padded, lengths.astype(np.int32), slots


def _sampling(
    config: GPT2Config, temperature: float, top_k: int | None, key: Array | None, stop_token: int | None
) -> tuple[Array | None, np.float32, np.int32]:
    """Checked: the key, None for greedy; the temperature; the stop token, an impossible one for none."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 or above, got {temperature}")
    if temperature > 0 and key is None:
        raise ValueError(f"sampling with temperature {temperature} needs a key")
    if top_k is not None and not 1 <= top_k <= config.vocab_size:
        raise ValueError(f"top_k must be in 1..{config.vocab_size} (GPT2Config.vocab_size), got {top_k}")
    if stop_token is not None and not 0 <= stop_token < config.vocab_size:
        raise ValueError(f"stop_token must be in 0..{config.vocab_size - 1}, got {stop_token}")
    stop = _NO_STOP if stop_token is None else stop_token
    return key if temperature > 0 else None, np.float32(temperature), np.int32(stop)
