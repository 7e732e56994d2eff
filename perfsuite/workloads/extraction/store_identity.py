"""Which activations a store holds: of which model, weights and inputs, in which layout. A store takes no others."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from perfsuite.workloads.checks import DTYPES, check_at_least, check_choice
from perfsuite.workloads.extraction.batching import checked_sequence
from perfsuite.workloads.qwen2 import Qwen2Config, check_layers
from perfsuite.workloads.structure import path_name


@dataclasses.dataclass(frozen=True)
class StoreIdentity:
    """The activations of `layers`, in that order, of `samples` samples of up to `length` tokens.

    config: the model's.
    dtype: of the stored numbers; by default the model's activation dtype.
    samples_per_chunk: samples that are written together, as one object.
    weights, inputs: fingerprints, or any names that differ where weights and token ids do.

    Raises `ValueError` for layers that the model does not have, and for sizes that make no sense.
    """

    config: Qwen2Config
    layers: tuple[int, ...]
    samples: int
    length: int
    samples_per_chunk: int
    weights: str
    inputs: str
    dtype: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", check_layers(self.layers, self.config))
        object.__setattr__(self, "dtype", self.dtype or self.config.activation_dtype)
        if not self.layers:
            raise ValueError("StoreIdentity.layers must name at least one layer")
        check_at_least(0, self, "samples")
        check_at_least(1, self, "length", "samples_per_chunk")
        for name in ("samples", "length", "samples_per_chunk"):
            object.__setattr__(self, name, int(getattr(self, name)))
        check_choice(DTYPES, self, "dtype")
        for name in ("weights", "inputs"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"StoreIdentity.{name} must be a name or a fingerprint, got {getattr(self, name)!r}")

    @classmethod
    def of(
        cls,
        config: Qwen2Config,
        layers: Sequence[int],
        params: Any,
        sequences: Sequence[Sequence[int] | np.ndarray],
        *,
        samples_per_chunk: int,
        length: int | None = None,
        dtype: str = "",
    ) -> Self:
        """The identity of an extraction, from its inputs: all parameters and all sequences are read.

        `length` is by default the longest sequence's. Raises as `inputs_fingerprint` and `weights_fingerprint` do.
        """
        inputs = inputs_fingerprint(sequences, length)
        return cls(
            config=config,
            layers=tuple(layers),
            samples=len(sequences),
            length=max(map(len, sequences), default=1) if length is None else length,
            samples_per_chunk=samples_per_chunk,
            weights=weights_fingerprint(params),
            inputs=inputs,
            dtype=dtype,
        )

    def to_json(self) -> dict[str, Any]:
        """For a file; `from_json` takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """The identity that `to_json` gave. Raises `ValueError` or `TypeError` for anything else."""
        if not isinstance(stored, Mapping) or not isinstance(stored.get("config"), Mapping):
            raise ValueError("it does not say what is stored")
        return cls(**{**stored, "config": Qwen2Config(**stored["config"]), "layers": tuple(stored["layers"])})

    def differences(self, other: Self) -> list[str]:
        """The name and both values of each field in which `other` differs, this one's value first."""
        # Through JSON, because one of them was read from a file.
        mine, others = (_flat(json.loads(json.dumps(identity.to_json()))) for identity in (self, other))
        return [f"{name} {mine[name]!r}, not {others[name]!r}" for name in mine if mine[name] != others[name]]


def weights_fingerprint(params: Any) -> str:
    """A hash of the paths, dtypes, shapes and bytes of a tree of arrays, on any device.

    Raises `ValueError` for arrays that lie partly in other processes; name such weights yourself.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        if isinstance(leaf, jax.Array):
            if not leaf.is_fully_addressable:
                raise ValueError(f"params{name} lies partly in other processes, so that its bytes cannot be read here")
            if any(device.platform != "cpu" for device in leaf.devices()):
                # A JAX array keeps its copy on the host as long as it lives: here it goes with the copied array.
                leaf = leaf.copy()
        array = np.ascontiguousarray(leaf)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return f"sha256:{digest.hexdigest()}"


def inputs_fingerprint(sequences: Sequence[Sequence[int] | np.ndarray], longest: int | None = None) -> str:
    """A hash of all token ids and where each sequence ends; the same for lists and arrays.

    Raises as `fixed_size_batches` does for a sequence that is invalid or longer than `longest`.
    """
    digest = hashlib.sha256()
    for index, sequence in enumerate(sequences):
        ids = np.ascontiguousarray(checked_sequence(index, sequence, longest), np.int32)
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.data)
    return f"sha256:{digest.hexdigest()}"


def _flat(stored: Mapping[str, Any]) -> dict[str, Any]:
    leaves = jax.tree.leaves_with_path(stored, is_leaf=lambda value: not isinstance(value, dict))
    return {path_name(path): value for path, value in leaves}
