"""The parts of BERT (Devlin et al. 2018, arXiv:1810.04805) as Equinox modules.

The tree has Hugging Face's names (`attention.query`, `attention.output.dense`, `intermediate.dense`, `output.dense`)
and its leaf count, 16 arrays a layer, because host overhead depends on the tree alone.

Modules work on all tokens of a batch at once, `[tokens, hidden]` with tokens = batch x sequence. With
`[batch, sequence, hidden]`, or one token at a time under `vmap`, the program is larger: a train step over 12 narrow
layers has 1 828 fusions, not 1 680, and compiles in 4.4 s of processor time, not 3.6 (CPU, jax 0.10.2).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from perfsuite.workloads.bert.config import BertConfig


class Linear(eqx.nn.Linear):
    """`eqx.nn.Linear` over the last axis of any batch, computing in the input's dtype, with BERT's initialisation.

    `weight` is `[out, in]`, `bias` is `[out]`.
    """

    weight: Array
    bias: Array

    def __init__(self, in_features: int, out_features: int, std: float, *, key: Array) -> None:
        self.weight = std * jax.random.normal(key, (out_features, in_features))
        self.bias = jnp.zeros(out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = True

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """`[..., in]` to `[..., out]`, in `x`'s dtype."""
        del key
        return x @ self.weight.astype(x.dtype).T + self.bias.astype(x.dtype)


class LayerNorm(eqx.Module):
    """Layer normalisation over the last axis of any batch, computed in float32. `weight` and `bias` are `[size]`."""

    weight: Array
    bias: Array
    epsilon: float = eqx.field(static=True)

    def __init__(self, size: int, epsilon: float) -> None:
        self.weight = jnp.ones(size)
        self.bias = jnp.zeros(size)
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """`[..., size]` to the same shape and dtype."""
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        return (centred * scale * self.weight + self.bias).astype(x.dtype)


class Embedding(eqx.Module):
    """A table `weight`, `[rows, hidden]`."""

    weight: Array

    def __init__(self, rows: int, config: BertConfig, *, key: Array) -> None:
        self.weight = config.initializer_std * jax.random.normal(key, (rows, config.hidden_size))


class Embeddings(eqx.Module):
    """Token, position and type embeddings, summed, normalised, dropped out."""

    word_embeddings: Embedding
    position_embeddings: Embedding
    token_type_embeddings: Embedding
    norm: LayerNorm
    dropout: float = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        words, positions, types = jax.random.split(key, 3)
        self.word_embeddings = Embedding(config.vocab_size, config, key=words)
        self.position_embeddings = Embedding(config.max_positions, config, key=positions)
        self.token_type_embeddings = Embedding(config.num_token_types, config, key=types)
        self.norm = LayerNorm(config.hidden_size, config.norm_epsilon)
        self.dropout = config.dropout
        self.dtype = config.activation_dtype

    def __call__(self, input_ids: Array, token_type_ids: Array | None, key: Array | None) -> Array:
        """`[batch, sequence]` ids to `[tokens, hidden]`."""
        length, limit = input_ids.shape[-1], self.position_embeddings.weight.shape[0]
        if length > limit:
            raise ValueError(f"sequences of {length} tokens, but BertConfig.max_positions is {limit}")
        x = self.word_embeddings.weight[input_ids] + self.position_embeddings.weight[:length]
        if token_type_ids is None:
            x = x + self.token_type_embeddings.weight[0]
        else:
            x = x + self.token_type_embeddings.weight[token_type_ids]
        x = x.reshape(-1, x.shape[-1])
        return _dropout(self.norm(x).astype(self.dtype), self.dropout, key)


class Output(eqx.Module):
    """The end of a residual branch: dense, dropout, add, LayerNorm (post-LN, as in the paper)."""

    dense: Linear
    norm: LayerNorm
    dropout: float = eqx.field(static=True)

    def __init__(self, in_features: int, config: BertConfig, *, key: Array) -> None:
        self.dense = Linear(in_features, config.hidden_size, config.initializer_std, key=key)
        self.norm = LayerNorm(config.hidden_size, config.norm_epsilon)
        self.dropout = config.dropout

    def __call__(self, x: Array, residual: Array, key: Array | None) -> Array:
        """`[tokens, in]` and the residual `[tokens, hidden]` to the residual's shape."""
        return self.norm(residual + _dropout(self.dense(x), self.dropout, key))


class Attention(eqx.Module):
    """Multi-head self-attention with a padding mask, and its residual."""

    query: Linear
    key: Linear
    value: Linear
    output: Output
    num_heads: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        size, std = config.hidden_size, config.initializer_std
        query, key_, value, output = jax.random.split(key, 4)
        self.query = Linear(size, size, std, key=query)
        self.key = Linear(size, size, std, key=key_)
        self.value = Linear(size, size, std, key=value)
        self.output = Output(size, config, key=output)
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.kind = config.attention

    def __call__(self, x: Array, mask: Array, keys: tuple[Array | None, Array | None]) -> Array:
        """`[tokens, hidden]` and a boolean mask `[batch, sequence]` (true: a real token) to `x`'s shape."""
        weights_key, output_key = keys
        query, key, value = (
            projection(x).reshape(*mask.shape, self.num_heads, -1) for projection in (self.query, self.key, self.value)
        )
        visible = mask[:, None, None, :]
        if self.kind == "fused":
            # As in a flash kernel, no scores are kept: the backward pass computes them again.
            mixed = jax.checkpoint(jax.nn.dot_product_attention)(query, key, value, mask=visible)
        else:
            mixed = self._eager(query, key, value, visible, weights_key)
        return self.output(mixed.reshape(x.shape[0], -1), x, output_key)

    def _eager(self, query: Array, key: Array, value: Array, visible: Array, dropout_key: Array | None) -> Array:
        scores = jnp.einsum("bqnd,bknd->bnqk", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(visible, scores / math.sqrt(query.shape[-1]), -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        weights = _dropout(weights, self.dropout, dropout_key)
        return jnp.einsum("bnqk,bknd->bqnd", weights, value)


class Intermediate(eqx.Module):
    """The wide half of the feed-forward block."""

    dense: Linear

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        self.dense = Linear(config.hidden_size, config.intermediate_size, config.initializer_std, key=key)

    def __call__(self, x: Array) -> Array:
        """`[tokens, hidden]` to `[tokens, intermediate]`."""
        return jax.nn.gelu(self.dense(x), approximate=False)


class Layer(eqx.Module):
    """One transformer layer: attention, then feed-forward, each with its residual."""

    attention: Attention
    intermediate: Intermediate
    output: Output

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        attention, intermediate, output = jax.random.split(key, 3)
        self.attention = Attention(config, key=attention)
        self.intermediate = Intermediate(config, key=intermediate)
        self.output = Output(config.intermediate_size, config, key=output)

    def __call__(self, x: Array, mask: Array, keys: tuple[Array | None, ...]) -> Array:
        """`[tokens, hidden]`, a boolean mask `[batch, sequence]` and three keys to `x`'s shape."""
        weights_key, attention_key, output_key = keys
        x = self.attention(x, mask, (weights_key, attention_key))
        return self.output(self.intermediate(x), x, output_key)


class MaskedLMHead(eqx.Module):
    """Dense, GELU, LayerNorm, then the word embedding again as decoder, plus a bias."""

    dense: Linear
    norm: LayerNorm
    bias: Array

    def __init__(self, config: BertConfig, *, key: Array) -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size, config.initializer_std, key=key)
        self.norm = LayerNorm(config.hidden_size, config.norm_epsilon)
        self.bias = jnp.zeros(config.vocab_size)

    def __call__(self, x: Array, word_embeddings: Array) -> Array:
        """`[tokens, hidden]` and `[vocabulary, hidden]` to logits `[tokens, vocabulary]`."""
        x = self.norm(jax.nn.gelu(self.dense(x), approximate=False))
        return x @ word_embeddings.astype(x.dtype).T + self.bias.astype(x.dtype)


def _dropout(x: Array, rate: float, key: Array | None) -> Array:
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))
