"""The parts of Qwen2 (Yang et al. 2024, arXiv:2407.10671) as Flax modules. The names are Hugging Face's."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from perfsuite.workloads.qwen2.config import Qwen2Config


class RMSNorm(nn.Module):
    """Scale to unit root mean square over the last axis, in float32 (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    config: Qwen2Config

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[..., hidden]` to the same shape and dtype."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.config.parameter_dtype)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.config.norm_epsilon)
        return scale.astype(x.dtype) * wide.astype(x.dtype)


class Attention(nn.Module):
    """Grouped-query self-attention with rotary positions and biases on queries, keys and values."""

    config: Qwen2Config

    @nn.compact
    def __call__(
        self,
        x: Array,
        positions: Array,
        rotation: tuple[Array, Array],
        visible: Array,
        memory: tuple[Array, Array] | None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """`[batch, queries, hidden]` to the same shape, and the keys and values that were attended to.

        `positions` is `[batch, queries]`, `rotation` the `rotations` of them, `visible` boolean
        `[batch, 1, queries, keys]`. With `memory`, keys and values of a cache, the new ones go into its slots
        `positions`; those at positions that it lacks are dropped.
        """
        config, groups = self.config, self.config.num_key_value_heads

        def heads(name: str, count: int) -> Array:
            return dense(config, name, count * config.head_size, bias=True)(x).reshape(*x.shape[:2], count, -1)

        query = _rotated(heads("q_proj", config.num_heads), rotation)
        key = _rotated(heads("k_proj", groups), rotation)
        value = heads("v_proj", groups)
        if memory is not None:
            rows = jnp.arange(x.shape[0])[:, None]
            key, value = (
                old.at[rows, positions].set(new.astype(old.dtype), mode="drop", unique_indices=True)
                for old, new in zip(memory, (key, value), strict=True)
            )
        # Masked scores are large and negative, not infinite: a query that sees nothing gets a mean, not NaN.
        mixed = jax.nn.dot_product_attention(query, key, value, mask=visible)
        return dense(config, "o_proj", x.shape[-1])(mixed.reshape(*x.shape[:2], -1)), (key, value)


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    config: Qwen2Config

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[..., hidden]` to the same shape."""
        gate = dense(self.config, "gate_proj", self.config.intermediate_size)(x)
        up = dense(self.config, "up_proj", self.config.intermediate_size)(x)
        return dense(self.config, "down_proj", x.shape[-1])(jax.nn.silu(gate) * up)


class Layer(nn.Module):
    """Attention, then SwiGLU, each on a normalised copy of the residual stream."""

    config: Qwen2Config

    def setup(self) -> None:
        """Hugging Face's names."""
        self.input_layernorm = RMSNorm(self.config)
        self.self_attn = Attention(self.config)
        self.post_attention_layernorm = RMSNorm(self.config)
        self.mlp = MLP(self.config)

    def __call__(
        self,
        x: Array,
        positions: Array,
        rotation: tuple[Array, Array],
        visible: Array,
        memory: tuple[Array, Array] | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """As `Attention`."""
        mixed, memory = self.self_attn(self.input_layernorm(x), positions, rotation, visible, memory)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), memory


def dense(config: Qwen2Config, name: str | None, features: int, *, bias: bool = False) -> nn.Dense:
    """A linear layer, computing in the activation dtype."""
    return nn.Dense(
        features,
        use_bias=bias,
        dtype=config.activation_dtype,
        param_dtype=config.parameter_dtype,
        kernel_init=nn.initializers.normal(config.initializer_std),
        name=name,
    )


def rotations(config: Qwen2Config, positions: Array, limit: int | None = None) -> tuple[Array, Array]:
    """Cosine and sine of rotary angles (Su et al. 2021, arXiv:2104.09864), float32 `[batch, sequence, 1, size / 2]`.

    `positions` is `[batch, sequence]`. With `limit` they must be from 0 to `limit - 1`, and are looked up in a table.
    """
    half = config.head_size // 2
    # XLA on a CPU computes sines again in every layer and head that use them, but not a look-up.
    counted = positions if limit is None else jnp.arange(limit)
    angles = counted[..., None, None] * config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if limit is None else (cos[positions], sin[positions])


def _rotated(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotary embedding of `[batch, sequence, heads, size]`.

    Number `i` of a head is paired with number `i + size / 2`, as in the published weights, and not with its neighbour.
    """
    half, (cos, sin) = x.shape[-1] // 2, rotation
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
