"""The files of an activation store: a Zarr group, whose attributes hold the store's identity, and its two arrays.

The group's metadata is written first, and only if there is none. So a folder with other files and no metadata is not a
store; and of several processes that try to make a store, one does.
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
    """There is no store, or it is damaged, holds something else, or cannot be written. Says which, and what to do."""


def located(path: str | os.PathLike[str]) -> tuple[str, ts.KvStore]:
    """The store's name in messages, and its place."""
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
    what = f"activation store {name} cannot be made"
    files = tried(what, lambda: root.list().result())
    if not files:
        ours = {"schema": _SCHEMA, "identity": identity.to_json()}
        metadata = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {_ATTRIBUTE: ours}}, indent=2)
        # Written only if there still is none: of several processes one makes the store.
        if tried(what, lambda: root.write(_GROUP, metadata, if_equal=generation).result()).generation:
            return identity
    # Another process may have made the store meanwhile. It writes the metadata first.
    found, _ = read_identity(name, root)
    if found is None and files:
        raise StoreError(
            f"{name} is not an activation store, but has other files in it, such as {files[0].decode()}. Use another "
            "path, or an empty folder"
        )
    if found is None:
        raise StoreError(f"activation store {name} was deleted while it was made")
    return found


def open_arrays(
    name: str, root: ts.KvStore, identity: StoreIdentity, *, create: bool
) -> tuple[ts.TensorStore, ts.TensorStore]:
    """The arrays `activations` and `tokens`; with `create`, missing ones are made, as after an interrupted start.

    The schema stands for all of their metadata: a change of it needs a new schema, and code that reads both.
    """
    # Zeros are written too, so that a lost object is an error and not a chunk of zeros.
    kept = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}

    def opened(array: str, metadata: dict[str, Any], **options: Any) -> ts.TensorStore:
        kvstore = (root / f"{array}/").spec().to_json()
        spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata, **options}
        return tried(
            f"activation store {name}: its array {array} cannot be opened",
            lambda: ts.open(spec, open=True, create=create, read=True, write=create, context=_CONTEXT).result(),
        )

    tokens = _metadata(identity, (), "int32", 0, dimension_names=["sample"], codecs=[_BYTES, _CHECKSUM])
    return opened("activations", _activations_metadata(identity), **kept), opened("tokens", tokens)


def _activations_metadata(identity: StoreIdentity) -> dict[str, Any]:
    sample = len(identity.layers), identity.length, identity.config.hidden_size
    # 0.49 and 0.42 of the raw bytes of float32 and bfloat16 activations of random weights, 44 % padding: as small as
    # zstd and two to three times as fast (tensorstore 0.1.86, 2 cores).
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
    names = ["sample", "layer", "token", "hidden"]
    return _metadata(identity, sample, identity.dtype, 0.0, dimension_names=names, codecs=[sharded])


def _metadata(identity: StoreIdentity, sample: tuple[int, ...], dtype: str, fill: float, **more: Any) -> dict[str, Any]:
    """Of an array with a value of shape `sample` for each sample."""
    chunk_shape = identity.samples_per_chunk, *sample
    return {
        "shape": (identity.samples, *sample),
        "data_type": dtype,
        "fill_value": fill,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        **more,
    }


def tried(what: str, work: Callable[[], T]) -> T:
    """`work()`, but whatever tensorstore raises, mostly `ValueError`, becomes a `StoreError` of one line."""
    try:
        return work()
    except Exception as error:
        # The whole specification of the array follows the reason.
        reason = str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
        raise StoreError(f"{what}: {reason}") from error
