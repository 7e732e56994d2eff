"""Sizes and choices of a Qwen2 language model."""

import dataclasses
from typing import Any, Literal, Self

from perfsuite.workloads.checks import DTYPES, check_at_least, check_choice, check_multiple, check_positive


@dataclasses.dataclass(frozen=True)
class Qwen2Config:
    """Sizes and choices of a Qwen2 language model. Hashable, so that it can be a module's field.

    `num_key_value_heads` heads of keys and values serve `num_heads` heads of queries, in equal groups. With `tied_head`
    the word embedding is the output layer too. `activation_dtype` is the dtype of layers and caches; normalisation,
    rotary embedding and softmax are computed in float32.

    Published sizes are those of the Qwen2 report (Yang et al. 2024, arXiv:2407.10671, table 1), with the vocabulary as
    padded in the published weights.

    Raises `ValueError` on sizes that cannot make a model.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    tied_head: bool
    max_positions: int = 131072
    rope_theta: float = 1e6
    norm_epsilon: float = 1e-6
    initializer_std: float = 0.02
    activation_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    parameter_dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size")
        check_at_least(1, self, *sizes, "max_positions")
        # Rotary embedding turns pairs of numbers, so a head needs an even size.
        check_multiple(self, "hidden_size", "num_heads", times=2)
        check_multiple(self, "num_heads", "num_key_value_heads")
        check_positive(self, "rope_theta", "norm_epsilon")
        check_choice(DTYPES, self, "activation_dtype", "parameter_dtype")

    @property
    def head_size(self) -> int:
        """Numbers in one head."""
        return self.hidden_size // self.num_heads

    @classmethod
    def qwen2_0_5b(cls, **changes: Any) -> Self:
        """Qwen2-0.5B: 24 layers, 896 wide, 14 heads on 2, tied head, 494 M parameters. `changes` replace fields."""
        return dataclasses.replace(cls(151936, 896, 24, 14, 2, 4864, True), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        """Four layers, 64 wide, 4 heads on 2, tied head: for tests, no published size. `changes` replace fields."""
        return dataclasses.replace(cls(256, 64, 4, 4, 2, 128, True, max_positions=128), **changes)
