"""`perfsuite.measure.private.coordination`: the key-value store of JAX's coordination service."""

from typing import Any

import jax
import pytest
from support.coordination import clients
from support.private_names import without

from perfsuite.measure.private.capabilities import COORDINATION
from perfsuite.measure.private.coordination import Store, StoreUnreachable
from perfsuite.session.group import join


@pytest.fixture(scope="module")
def stores():
    with clients(2) as made:
        yield [Store(client, "tests") for client in made]


def test_without_its_names_several_processes_are_told():
    refused = pytest.raises(pytest.UsageError, match=r"^perfsuite under jax\.distributed does not work with jax")
    with without(COORDINATION), refused:
        join()


def test_every_process_reads_what_one_wrote(stores):
    first, second = stores
    value = {"a": [1.5, None, "\u00e9" * 5_000_000]}  # gRPC's default limit is 4 MiB
    first.put("value", value)
    assert second.wait_for("value", 1.0, dict[str, Any]) == value
    second.put("value", 2)
    assert first.wait_for("value", 1.0, int) == 2


def test_waiting_in_vain_ends_with_a_timeout(stores):
    with pytest.raises(TimeoutError):
        stores[0].wait_for("never", 0.05, int)


def test_the_keys_of_a_folder_are_deleted_together(stores):
    first, second = stores
    first.put("folder/a", 1)
    second.put("folder/b", 2)
    second.put("folders/c", 3)
    second.delete("folder")
    for key in ("folder/a", "folder/b"):
        with pytest.raises(TimeoutError):
            first.wait_for(key, 0.05, int)
    assert first.wait_for("folders/c", 1.0, int) == 3


class Unreachable:
    def key_value_set(self, *arguments, **options):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses\nmore")


def test_a_store_whose_process_is_gone_says_so():
    with pytest.raises(StoreUnreachable, match=r"^UNAVAILABLE: failed to connect to all addresses$"):
        Store(Unreachable(), "tests").put("a", 1)
