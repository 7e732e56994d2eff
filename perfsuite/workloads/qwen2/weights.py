"""Qwen2's parameters by Hugging Face's names. Every weight has one line in an explicit table.

Hugging Face keeps a product's weight `[out, in]`, Flax its kernel `[in, out]`.
"""

from perfsuite.workloads.qwen2.config import Qwen2Config
from perfsuite.workloads.state_dicts import Weight

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def weight_table(config: Qwen2Config) -> dict[str, Weight]:
    """Every weight by its Hugging Face name, with its path below `params`."""
    hidden, wide = config.hidden_size, config.intermediate_size
    memory = config.num_key_value_heads * config.head_size
    table = {EMBEDDING: Weight(("embed_tokens", "embedding"), (config.vocab_size, hidden))}
    for i in range(config.num_layers):
        source, target = f"model.layers.{i}", f"layers_{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            table[f"{source}.{norm}.weight"] = Weight((target, norm, "scale"), (hidden,))
        for name, size in (("q_proj", hidden), ("k_proj", memory), ("v_proj", memory)):
            path = target, "self_attn", name
            table[f"{source}.self_attn.{name}.weight"] = Weight((*path, "kernel"), (size, hidden), True)
            table[f"{source}.self_attn.{name}.bias"] = Weight((*path, "bias"), (size,))
        for block, name, shape in (
            ("self_attn", "o_proj", (hidden, hidden)),
            ("mlp", "gate_proj", (wide, hidden)),
            ("mlp", "up_proj", (wide, hidden)),
            ("mlp", "down_proj", (hidden, wide)),
        ):
            table[f"{source}.{block}.{name}.weight"] = Weight((target, block, name, "kernel"), shape, True)
    table["model.norm.weight"] = Weight(("norm", "scale"), (hidden,))
    if not config.tied_head:
        table[HEAD] = Weight(("lm_head", "kernel"), (config.vocab_size, hidden), True)
    return table
