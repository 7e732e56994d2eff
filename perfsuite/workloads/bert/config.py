"""Sizes and choices of a BERT masked-LM."""

import dataclasses
from typing import Any, Literal, Self

from perfsuite.workloads.checks import DTYPES, check_at_least, check_choice, check_multiple


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and choices of a BERT masked-LM. Hashable, so that it can be a static field.

    `attention` is `"fused"` (`jax.nn.dot_product_attention`) or `"eager"` (QK^T, mask, softmax, dropout, V). The fused
    kernel has no dropout on attention weights, so `dropout` then applies to embeddings and residual branches alone.
    `activation_dtype` is what layers compute in; parameters, normalisation, softmax and loss stay float32.
    With `remat` the backward pass computes each layer again from its input: less memory on an accelerator, more FLOPs,
    the same gradients.

    Raises `ValueError` on sizes that cannot make a model.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    num_token_types: int = 2
    dropout: float = 0.1
    attention: Literal["fused", "eager"] = "fused"
    activation_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    norm_epsilon: float = 1e-12
    initializer_std: float = 0.02
    remat: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_heads", "intermediate_size", "max_positions", "num_token_types")
        check_at_least(1, self, *sizes)
        check_at_least(0, self, "num_layers")
        check_multiple(self, "hidden_size", "num_heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"BertConfig.dropout must be in [0, 1), got {self.dropout}")
        check_choice(("fused", "eager"), self, "attention")
        check_choice(DTYPES, self, "activation_dtype")

    @classmethod
    def base(cls, **changes: Any) -> Self:
        """BERT-base: 12 layers, 768 wide, 12 heads, 110 M parameters. `changes` replace fields."""
        return cls(**changes)

    @classmethod
    def large(cls, **changes: Any) -> Self:
        """BERT-large: 24 layers, 1024 wide, 16 heads, 335 M parameters. `changes` replace fields."""
        sizes = {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        """Two layers, 128 wide, 2 heads (Turc et al. 2019, arXiv:1908.08962): 4.4 M parameters."""
        sizes = {"hidden_size": 128, "num_layers": 2, "num_heads": 2, "intermediate_size": 512}
        return cls(**{**sizes, **changes})

    def narrowed(self, **changes: Any) -> Self:
        """The same tree, leaf for leaf, with arrays so narrow that a step's time is mostly host overhead."""
        # Not narrower than 64, where XLA's CPU compiler turns products into loops and fuses them across layers: twelve
        # layers and AdamW compile in 4.3 s of processor time at 64, in over 34 s at 16 (jax 0.10.2).
        sizes = {"vocab_size": 128, "hidden_size": 64, "num_heads": 2, "intermediate_size": 128, "max_positions": 64}
        return dataclasses.replace(self, **{**sizes, **changes})
