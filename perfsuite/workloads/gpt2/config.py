"""Sizes and choices of a GPT-2."""

import dataclasses
from typing import Any, Literal, Self

from perfsuite.workloads.checks import DTYPES, check_at_least, check_choice, check_multiple, check_positive


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """Sizes and choices of a GPT-2 (Radford et al. 2019). Hashable, so that it can be a static argument.

    `activation_dtype` is what layers and the cache compute in; normalisation, softmax and logits are always float32.
    The feed-forward block is four times as wide as the model, as in all published sizes.

    Raises `ValueError` on sizes that cannot make a model.
    """

    vocab_size: int = 50257
    max_positions: int = 1024
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    activation_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    norm_epsilon: float = 1e-5
    initializer_std: float = 0.02

    def __post_init__(self) -> None:
        check_at_least(1, self, "vocab_size", "max_positions", "hidden_size", "num_heads")
        check_at_least(0, self, "num_layers")
        check_multiple(self, "hidden_size", "num_heads")
        check_choice(DTYPES, self, "activation_dtype")
        check_positive(self, "norm_epsilon", "initializer_std")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward block."""
        return 4 * self.hidden_size

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """GPT-2: 12 layers, 768 wide, 12 heads, 124 439 808 parameters. `changes` replace fields."""
        return cls(**changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        """Two layers, 32 wide, 4 heads, 97 tokens and 64 positions, for tests: no published size."""
        sizes = {"vocab_size": 97, "max_positions": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
        return cls(**{**sizes, **changes})
