"""Qwen2 by its report, in NumPy and float64: one sequence, and one head at a time, from Hugging Face's weights."""

import numpy as np


def numpy_qwen2(config, weights, ids):
    """Logits `[tokens, vocabulary]`, and the residual stream after each layer `[layers, tokens, hidden]`.

    `weights` has Hugging Face's names and layouts; `ids` is one sequence without padding.
    """

    def array(name):
        return np.asarray(weights[name], np.float64)

    def norm(name, x):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_epsilon) * array(name)

    def linear(name, x):
        bias = array(f"{name}.bias") if f"{name}.bias" in weights else 0.0
        return np.einsum("ti,oi->to", x, array(f"{name}.weight")) + bias

    size = config.hidden_size // config.num_heads

    def rotated(x):
        """Each pair of numbers as a complex one, turned by an angle that grows with its position."""
        pairs = x[:, : size // 2] + 1j * x[:, size // 2 :]
        frequencies = 1 / config.rope_theta ** (np.arange(0, size, 2) / size)
        turned = pairs * np.exp(1j * np.outer(np.arange(len(x)), frequencies))
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def attention(name, x):
        query, key, value = (linear(f"{name}.{part}_proj", x) for part in "qkv")
        heads = []
        for head in range(config.num_heads):
            group = head // (config.num_heads // config.num_key_value_heads)
            own, shared = (slice(i * size, (i + 1) * size) for i in (head, group))
            scores = rotated(query[:, own]) @ rotated(key[:, shared]).T / np.sqrt(size)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(shares / shares.sum(-1, keepdims=True) @ value[:, shared])
        return linear(f"{name}.o_proj", np.concatenate(heads, -1))

    def feed_forward(name, x):
        gate = linear(f"{name}.gate_proj", x)
        return linear(f"{name}.down_proj", gate / (1 + np.exp(-gate)) * linear(f"{name}.up_proj", x))

    x, stream = array("model.embed_tokens.weight")[np.asarray(ids)], []
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        x = x + attention(f"{layer}.self_attn", norm(f"{layer}.input_layernorm.weight", x))
        x = x + feed_forward(f"{layer}.mlp", norm(f"{layer}.post_attention_layernorm.weight", x))
        stream.append(x)
    head = array("model.embed_tokens.weight" if config.tied_head else "lm_head.weight")
    return norm("model.norm.weight", x) @ head.T, np.stack(stream)


def random_state_dict(config, table, seed=0):
    """Every weight of `table` (`weight_table(config)`) at random: none is zero or one, so each shows where it goes."""
    rng = np.random.default_rng(seed)
    return {name: (0.3 * rng.normal(size=weight.shape)).astype(np.float32) for name, weight in table.items()}
