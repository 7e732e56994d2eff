"""What may lie where a store is to be, and what is an error that leaves it alone."""

import json

import pytest

from perfsuite.workloads.extraction.activation_store import ActivationStore
from perfsuite.workloads.qwen2.config import Qwen2Config

from .stores import assert_holds, batches, identity, refused, samples, stored


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({"layers": (0, 2)}, ["layers [2, 0], not [0, 2]"]),
        ({"dtype": "bfloat16"}, ["dtype 'float32', not 'bfloat16'"]),
        (
            {"config": Qwen2Config.tiny(hidden_size=32, num_layers=3, rope_theta=1e4)},
            ["config.hidden_size 16, not 32", "config.rope_theta 1000000.0, not 10000.0"],
        ),
    ],
)
def test_a_store_of_something_else_is_refused_with_names_and_values(tmp_path, change, messages):
    stored(ActivationStore.create_or_open(tmp_path, identity()), batches())
    with refused(tmp_path, str(tmp_path), *messages):
        ActivationStore.create_or_open(tmp_path, identity(**change))


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").write_text("years of work")
    with refused(tmp_path, str(tmp_path), "is not an activation store", "thesis/final.tex"):
        ActivationStore.create_or_open(tmp_path, identity())
    with refused(tmp_path, f"there is no activation store at {tmp_path}"):
        ActivationStore.open(tmp_path)


@pytest.mark.parametrize("name", ["zarr.json", "activations/zarr.json", "tokens/zarr.json"])
def test_truncated_metadata_is_an_error_and_left_alone(tmp_path, name):
    stored(ActivationStore.create_or_open(tmp_path, identity()), batches())
    metadata = tmp_path / name
    whole = metadata.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 2):
        metadata.write_bytes(whole[:size])
        for make in (
            lambda: ActivationStore.create_or_open(tmp_path, identity()),
            lambda: ActivationStore.open(tmp_path),
        ):
            with refused(tmp_path, str(tmp_path), "zarr.json"):
                make()
    metadata.write_bytes(whole)
    assert ActivationStore.open(tmp_path).missing().size == 0


def change_metadata(folder, change):
    path = folder / "zarr.json"
    metadata = json.loads(path.read_text())
    change(metadata["attributes"]["perfsuite_activations"])
    path.write_text(json.dumps(metadata))


def test_metadata_of_a_newer_schema_is_an_error(tmp_path):
    ActivationStore.create_or_open(tmp_path, identity())
    change_metadata(tmp_path, lambda ours: ours.update(schema=2, identity="who knows"))
    with refused(tmp_path, str(tmp_path), "has schema 2, this perfsuite reads up to 1: use a newer one"):
        ActivationStore.open(tmp_path)


def test_a_store_whose_making_was_cut_short_is_made_whole(tmp_path):
    """The metadata comes first; a process may have been killed after it."""
    done = list(batches())
    ActivationStore.create_or_open(tmp_path, identity())
    (tmp_path / "tokens" / "zarr.json").unlink()
    with refused(tmp_path, str(tmp_path), "its array tokens cannot be opened"):
        ActivationStore.open(tmp_path)
    assert_holds(stored(ActivationStore.create_or_open(tmp_path, identity()), done), samples(done))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"zarr_format": 3, "node_type": "group", "attributes": {}}',
            "is not an activation store, but other Zarr data",
        ),
        ("[]", "is not an activation store, but other Zarr data"),
        ("", "is damaged: its zarr.json is not JSON"),
    ],
)
def test_metadata_that_is_not_a_stores_is_refused(tmp_path, content, message):
    (tmp_path / "zarr.json").write_text(content)
    for make in (lambda: ActivationStore.create_or_open(tmp_path, identity()), lambda: ActivationStore.open(tmp_path)):
        with refused(tmp_path, str(tmp_path), message):
            make()
