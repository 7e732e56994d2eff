"""The key-value store of JAX's coordination service, which `jax.distributed.initialize` starts.

Process 0 serves the store, and all processes of a session read and write it. JAX keeps its client private: only this
module uses it.
"""

import json
from typing import Any, TypeVar

import jax

from perfsuite.measure.private.capabilities import COORDINATION
from perfsuite.measure.private.names import Attribute, Name
from perfsuite.measure.serialise import from_json

T = TypeVar("T")

_STATE = COORDINATION.needs(Name("jax._src.distributed", "global_state"))
_CLIENT = COORDINATION.needs(Attribute("jax._src.distributed", "client"))
_ADDRESS = COORDINATION.needs(Attribute("jax._src.distributed", "coordinator_address"))
_SET = COORDINATION.needs(Name("jaxlib._jax", "DistributedRuntimeClient.key_value_set"))
_GET = COORDINATION.needs(Name("jaxlib._jax", "DistributedRuntimeClient.blocking_key_value_get"))
_DELETE = COORDINATION.needs(Name("jaxlib._jax", "DistributedRuntimeClient.key_value_delete"))


class StoreUnreachable(Exception):  # noqa: N818  (a state of another process, not a fault of this one)
    """Process 0, which serves the store, has ended or cannot be reached."""


class ValueUnreadable(Exception):  # noqa: N818  (as above)
    """Another process wrote a value that is not what this one waits for. The message says why."""


class Store:
    """Values that JSON can hold, by key. All keys are below `folder`. All processes can reach process 0 at `host`.

    One write or read takes about 0.3 ms between processes of one machine (2 cores, jax 0.10.2).
    """

    def __init__(self, client: Any, folder: str, host: str = "localhost"):
        self.host = host
        self._client = client
        self._folder = folder

    def put(self, key: str, value: Any) -> None:
        """Write a value, also over another one. Raises `StoreUnreachable`."""
        self._call(_SET, key, json.dumps(value), allow_overwrite=True)

    def wait_for(self, key: str, seconds: float, kind: type[T]) -> T:
        """The value of `key`, as soon as it has one: of the type `kind`, which `measure.serialise` can make.

        Raises `TimeoutError`, `StoreUnreachable`, and `ValueUnreadable` for a value of another type.
        """
        try:
            return from_json(kind, self._call(_GET, key, int(seconds * 1000)))
        except ValueError as error:
            raise ValueUnreadable(f'the value "{key}" of another process cannot be read ({error})') from None

    def delete(self, key: str) -> None:
        """Delete `key`, and every key that starts with `key/`. Raises `StoreUnreachable`."""
        self._call(_DELETE, key)

    def _call(self, method: Name, key: str, *arguments: Any, **options: Any) -> Any:
        call = getattr(self._client, method.path.rpartition(".")[2])
        try:
            return call(f"{self._folder}/{key}", *arguments, **options)
        except jax.errors.JaxRuntimeError as error:
            if method is _GET and str(error).startswith("DEADLINE_EXCEEDED"):
                raise TimeoutError(key) from None
            raise StoreUnreachable(str(error).splitlines()[0]) from None


def shared_store(folder: str) -> Store | None:
    """The store of this process's session; None where nobody called `jax.distributed.initialize`. Raises `Moved`."""
    state = _STATE.get()
    if (client := _CLIENT.of(state)) is None:
        return None
    host = (_ADDRESS.of(state) or "").rpartition(":")[0] or "localhost"
    return Store(client, folder, host)
