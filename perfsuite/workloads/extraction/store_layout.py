"""How an activation store lies in its folder: a Zarr group, whose attributes say what is stored, and its two arrays.

The group's metadata is the first that is written, and written only if there is none. So where other files are and no
metadata is, something else lives; and of several processes that make a store, one does.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tensorstore as ts

from perfsuite.workloads.extraction.store_identity import StoreIdentity

T = TypeVar("T")

_SCHEMA = 1
_GROUP = "zarr.json"
_ATTRIBUTE = "perfsuite_activations"

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CHECKSUM = {"name": "crc32c"}

_CONTEXT = ts.Context()
"""One for all stores: `memory://` lives in it."""


class StoreError(Exception):
    """A store that is not one, is damaged, holds something else, or cannot be written. Says which, and what to do."""


def located(path: str | os.PathLike[str]) -> tuple[str, ts.KvStore]:
    """What to call the store in messages, and where it is."""
    name = os.fspath(path)
    url = name if "://" in name else Path(name).absolute().as_uri()
    url = f"{url.rstrip('/')}/"
    root = tried(f"activation store {name} cannot be opened", lambda: ts.KvStore.open(url, context=_CONTEXT).result())
    return name, root


def read_identity(name: str, root: ts.KvStore) -> tuple[StoreIdentity | None, bytes]:
    """The identity in a store's metadata, `None` where there is no metadata, and the metadata's generation."""
    found = tried(f"activation store {name} cannot be read", lambda: root.read(_GROUP).result())
    generation = found.stamp.generation
    if found.state != "value":
        return None, generation
    try:
        metadata = json.loads(found.value)
    except ValueError as error:
        raise StoreError(
            f"activation store {name} is damaged: its {_GROUP} is not JSON ({error}). Nothing was changed"
        ) from error
    try:
        ours = metadata["attributes"][_ATTRIBUTE]
    except (TypeError, KeyError):
        raise StoreError(f"{name} is not an activation store, but other Zarr data. Use another path") from None
    try:
        if ours["schema"] > _SCHEMA:
            raise StoreError(
                f"activation store {name} has schema {ours['schema']}, this perfsuite reads up to {_SCHEMA}: use a "
                "newer one"
            )
        return StoreIdentity.from_json(ours["identity"]), generation
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"activation store {name} is damaged: its {_GROUP} does not fit ({error!r})") from error


def created_or_read(name: str, root: ts.KvStore, identity: StoreIdentity) -> StoreIdentity:
    """The identity of the store that is there; where there is nothing, `identity`, after making its metadata."""
    found, generation = read_identity(name, root)
    if found is not None:
        return found
    listed = tried(f"activation store {name} cannot be made", lambda: root.list().result())
    if listed:
        # Of a store the metadata is there first. Another process may have made one since it was looked for.
        found, _ = read_identity(name, root)
        if found is None:
            raise StoreError(
                f"{name} is not an activation store, but has other files in it, such as {listed[0].decode()}. Use "
                "another path, or an empty folder"
            )
        return found
    ours = {"schema": _SCHEMA, "identity": identity.to_json()}
    metadata = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {_ATTRIBUTE: ours}}, indent=2)
    # Written only if there still is none: of several processes one makes the store.
    stamp = tried(
        f"activation store {name} cannot be made",
        lambda: root.write(_GROUP, metadata, if_equal=generation).result(),
    )
    if stamp.generation:
        return identity
    found, _ = read_identity(name, root)
    if found is None:
        raise StoreError(f"activation store {name} was deleted while it was made")
    return found


def open_arrays(
    name: str, root: ts.KvStore, identity: StoreIdentity, *, create: bool
) -> tuple[ts.TensorStore, ts.TensorStore]:
    """The arrays `activations` and `tokens`; with `create`, made where they lack, as after a start that was cut short.

    The schema stands for all of their metadata: whoever changes that, changes the schema, and reads both.
    """
    samples, chunk = identity.samples, identity.samples_per_chunk
    sample = len(identity.layers), identity.length, identity.config.hidden_size
    # Measured on float32 and bfloat16 activations of random weights, 56 % of them real tokens and the rest padding:
    # 0.49 and 0.42 of the raw bytes, as small as zstd and two to three times as fast (tensorstore 0.1.86, 2 cores).
    compressor = {
        "name": "blosc",
        "configuration": {
            "cname": "lz4",
            "clevel": 1,
            "shuffle": "bitshuffle",
            "typesize": ts.dtype(identity.dtype).numpy_dtype.itemsize,
            "blocksize": 0,
        },
    }
    by_sample = {"chunk_shape": [1, *sample], "codecs": [_BYTES, compressor, _CHECKSUM]}
    sharded = {"name": "sharding_indexed", "configuration": by_sample}
    activations = {
        **_metadata((samples, *sample), (chunk, *sample), identity.dtype, 0.0),
        "dimension_names": ["sample", "layer", "token", "hidden"],
        "codecs": [sharded],
    }
    tokens = {
        **_metadata((samples,), (chunk,), "int32", 0),
        "dimension_names": ["sample"],
        "codecs": [_BYTES, _CHECKSUM],
    }

    def opened(array: str, metadata: dict[str, Any], **options: Any) -> ts.TensorStore:
        spec = {
            "driver": "zarr3",
            "kvstore": (root / f"{array}/").spec().to_json(),
            "metadata": metadata,
            **options,
        }
        return tried(
            f"activation store {name}: its array {array} cannot be opened",
            lambda: ts.open(spec, open=True, create=create, read=True, write=create, context=_CONTEXT).result(),
        )

    # Zeros are written too, so that an object that is lost is an error and not a chunk of zeros.
    kept = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
    return opened("activations", activations, **kept), opened("tokens", tokens)


def _metadata(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: str, fill: float) -> dict[str, Any]:
    return {
        "shape": shape,
        "data_type": dtype,
        "fill_value": fill,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
    }


def tried(what: str, work: Callable[[], T]) -> T:
    """`work()`. What tensorstore raises, mostly `ValueError`, becomes a `StoreError` of one line."""
    try:
        return work()
    except Exception as error:
        # After the reason comes the whole specification of the array.
        reason = str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
        raise StoreError(f"{what}: {reason}") from error
