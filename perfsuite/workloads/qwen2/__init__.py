"""Qwen2 (Yang et al. 2024, arXiv:2407.10671) in Flax: a forward pass with the activations of chosen layers, and
generation with a cache of keys and values.

A layer's *activation* is the residual stream after that layer, before any later normalisation: Hugging Face's
`hidden_states[i + 1]`, except for the last layer, for which Hugging Face gives the stream after the final norm.

Prompts of different lengths share a batch: padding is masked out and positions count real tokens. In a cache sample `b`
has slots `0 .. lengths[b] - 1`.

Outside `jit` a `ValueError` names a wrong argument. Under `jit` values are unknown: an id that is not in the
vocabulary, or a token that no longer fits the cache, makes its row's results NaN.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.checks import check_ids
from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.qwen2.layers import Layer, RMSNorm, dense, rotations

__all__ = ["KeyValueCache", "Qwen2", "Qwen2Config", "check_layers", "initialize_cache"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of all layers, each `[batch, capacity, key_value_heads, head_size]`; `lengths` int32 `[batch]`.

    Slots at and beyond a sample's length are never read. Donate the cache to a jitted `decode`, which then writes in
    place; otherwise each token copies all of it.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    lengths: Array

    @property
    def capacity(self) -> int:
        """Tokens that fit, a sample."""
        return self.keys[0].shape[1]


def initialize_cache(config: Qwen2Config, batch_size: int, capacity: int) -> KeyValueCache:
    """An empty cache for `batch_size` samples of up to `capacity` tokens, in the activation dtype.

    Raises `ValueError` for sizes below 1 and a capacity beyond `config.max_positions`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 1 <= capacity <= config.max_positions:
        raise ValueError(
            f"capacity must be from 1 to Qwen2Config.max_positions, {config.max_positions}, got {capacity}"
        )
    shape = batch_size, capacity, config.num_key_value_heads, config.head_size

    # A new array for each layer: an array that is in a donated tree twice cannot be donated.
    def zeros() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, config.activation_dtype) for _ in range(config.num_layers))

    return KeyValueCache(zeros(), zeros(), jnp.zeros(batch_size, jnp.int32))


def check_layers(layers: Sequence[int], config: Qwen2Config) -> tuple[int, ...]:
    """`layers` as a tuple. Raises `ValueError` for a layer that the model does not have."""
    for layer in layers:
        if not isinstance(layer, int | np.integer) or not 0 <= layer < config.num_layers:
            raise ValueError(f"layers must be numbers from 0 to {config.num_layers - 1}, got {layer!r}")
    return tuple(int(layer) for layer in layers)


class Qwen2(nn.Module):
    """Qwen2 with its language-model head. `layers` is static everywhere: a tuple of layer numbers, from 0."""

    config: Qwen2Config

    def setup(self) -> None:
        """Hugging Face's names."""
        config = self.config
        self.embed_tokens = nn.Embed(
            config.vocab_size,
            config.hidden_size,
            param_dtype=config.parameter_dtype,
            embedding_init=nn.initializers.normal(config.initializer_std),
        )
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.norm = RMSNorm(config)
        if not config.tied_head:
            self.lm_head = dense(config, None, config.vocab_size)

    def __call__(
        self, input_ids: Array, mask: Array | None = None, positions: Array | None = None, *, layers: Sequence[int] = ()
    ) -> tuple[Array, tuple[Array, ...]]:
        """Logits `[batch, sequence, vocabulary]`, and for each of `layers` its activation `[batch, sequence, hidden]`.

        `input_ids` is integer `[batch, sequence]`; `mask`, of that shape, is nonzero on real tokens, by default all;
        `positions`, of that shape, by default counts the real tokens. All results are in the activation dtype. At
        padding they are finite and mean nothing.

        Raises `ValueError` for layers, ids or shapes that do not fit the model.
        """
        x, hidden, _ = self._forward(input_ids, mask, positions, layers, self.config.num_layers)
        return self._logits(x), hidden

    def hidden_states(
        self, input_ids: Array, mask: Array | None = None, positions: Array | None = None, *, layers: Sequence[int]
    ) -> tuple[Array, ...]:
        """The activations alone, as `__call__` gives them; layers after the last of `layers` are not run."""
        needed = 1 + max(check_layers(layers, self.config), default=-1)
        return self._forward(input_ids, mask, positions, layers, needed)[1]

    def prefill(
        self, input_ids: Array, lengths: Array, cache: KeyValueCache, *, layers: Sequence[int] = ()
    ) -> tuple[Array, tuple[Array, ...], KeyValueCache]:
        """Run prompts, and overwrite the cache with them.

        `input_ids` is `[batch, sequence]`, padded on the right; `lengths`, `[batch]`, is the number of real tokens. The
        logits of a row of length 0 are finite and mean nothing.

        Returns the logits after each prompt's last token, `[batch, vocabulary]`; activations, each
        `[batch, sequence, hidden]`; and the cache.

        Raises `ValueError` also for prompts, with their padding, that do not fit the cache.
        """
        self._check_cache("input_ids", input_ids, cache, dimensions=2)
        lengths = jnp.asarray(lengths)
        if lengths.shape != input_ids.shape[:1]:
            raise ValueError(f"lengths must have shape {input_ids.shape[:1]}, one a prompt, got {lengths.shape}")
        if input_ids.shape[1] > cache.capacity:
            raise ValueError(f"input_ids are {input_ids.shape[1]} tokens long, but the cache holds {cache.capacity}")
        if not isinstance(lengths, jax.core.Tracer) and not np.all((lengths >= 0) & (lengths <= input_ids.shape[1])):
            raise ValueError(f"lengths must be from 0 to {input_ids.shape[1]}, got {np.asarray(lengths)}")
        mask = jnp.arange(input_ids.shape[1]) < lengths[:, None]
        x, hidden, memory = self._forward(input_ids, mask, None, layers, self.config.num_layers)
        keys, values = (
            tuple(old.at[:, : new.shape[1]].set(new) for old, new in zip(olds, news, strict=True))
            for olds, news in zip((cache.keys, cache.values), zip(*memory, strict=True), strict=True)
        )
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        logits = self._logits(jnp.take_along_axis(x, last, axis=1))[:, 0]
        return logits, hidden, KeyValueCache(keys, values, lengths.astype(jnp.int32))

    def decode(
        self, token_ids: Array, cache: KeyValueCache, *, layers: Sequence[int] = ()
    ) -> tuple[Array, tuple[Array, ...], KeyValueCache]:
        """Append one token to each sample.

        `token_ids` is `[batch]`. Returns logits `[batch, vocabulary]`; activations of the token, each
        `[batch, hidden]`; and the cache, one longer.

        Raises `ValueError` also for a full cache. Under `jit` a sample that no longer fits gets NaN, and its cache does
        not change.
        """
        layers = check_layers(layers, self.config)
        self._check_cache("token_ids", token_ids, cache, dimensions=1)
        if not isinstance(cache.lengths, jax.core.Tracer) and np.any(cache.lengths >= cache.capacity):
            raise ValueError(
                f"the cache holds {cache.capacity} tokens a sample and is full: {np.asarray(cache.lengths)}"
            )
        positions = cache.lengths[:, None]
        rotation = rotations(self.config, positions)
        visible = (jnp.arange(cache.capacity) <= positions)[:, None, None, :]
        x = jnp.where(positions[..., None] < cache.capacity, self._embedded(token_ids[:, None]), jnp.nan)
        hidden, keys, values = [], [], []
        for layer, old_key, old_value in zip(self.layers, cache.keys, cache.values, strict=True):
            x, (key, value) = layer(x, positions, rotation, visible, (old_key, old_value))
            hidden.append(x[:, 0])
            keys.append(key)
            values.append(value)
        lengths = jnp.minimum(cache.lengths + 1, cache.capacity)
        cache = KeyValueCache(tuple(keys), tuple(values), lengths)
        return self._logits(x)[:, 0], tuple(hidden[layer] for layer in layers), cache

    def _forward(
        self, input_ids: Array, mask: Array | None, positions: Array | None, layers: Sequence[int], run: int
    ) -> tuple[Array, tuple[Array, ...], list[tuple[Array, Array]]]:
        layers = check_layers(layers, self.config)
        check_ids("input_ids", input_ids, self.config.vocab_size)
        if input_ids.ndim != 2:
            raise ValueError(f"input_ids must be [batch, sequence], got shape {input_ids.shape}")
        for name, array in (("mask", mask), ("positions", positions)):
            if array is not None and array.shape != input_ids.shape:
                raise ValueError(f"{name} must have input_ids' shape, {input_ids.shape}, got {array.shape}")
        length, longest = input_ids.shape[1], self.config.max_positions
        if length > longest:
            raise ValueError(f"input_ids are {length} tokens long, but Qwen2Config.max_positions is {longest}")
        real = jnp.ones(input_ids.shape, bool) if mask is None else jnp.asarray(mask).astype(bool)
        limit = None
        if positions is None:
            positions, limit = jnp.maximum(jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1, 0), length
        rotation = rotations(self.config, positions, limit)
        visible = jnp.tril(jnp.ones((length, length), bool)) & real[:, None, None, :]
        x = self._embedded(input_ids)
        hidden, memory = [], []
        for layer in self.layers[:run]:
            x, kept = layer(x, positions, rotation, visible)
            hidden.append(x)
            memory.append(kept)
        return x, tuple(hidden[layer] for layer in layers), memory

    def _embedded(self, ids: Array) -> Array:
        # Not `self.embed_tokens(ids)`, which counts a negative id from the table's end.
        table = self.embed_tokens.embedding
        return table.at[ids].get(mode="fill", wrap_negative_indices=False).astype(self.config.activation_dtype)

    def _logits(self, x: Array) -> Array:
        x = self.norm(x)
        if not self.config.tied_head:
            return self.lm_head(x)
        return x @ self.embed_tokens.embedding.astype(x.dtype).T

    def _check_cache(self, name: str, ids: Array, cache: KeyValueCache, *, dimensions: int) -> None:
        check_ids(name, ids, self.config.vocab_size)
        if ids.ndim != dimensions or ids.shape[0] != cache.lengths.shape[0]:
            shape = f"[{cache.lengths.shape[0]}{', sequence' * (dimensions - 1)}]"
            raise ValueError(f"{name} must have shape {shape}, a row for each of the cache, got {ids.shape}")
