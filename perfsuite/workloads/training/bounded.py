"""A dictionary that cannot grow without end."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Keeps at most `capacity` entries and forgets the oldest. Safe to share between threads.

    Reading takes no lock and does not make an entry younger: a hit must cost a dictionary lookup and no more.
    """

    __slots__ = ("_capacity", "_entries", "_lock")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: dict[K, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The entry at `key`; `make()` and kept if there is none. Of two threads that race, the first one's is kept."""
        found = self._entries.get(key)
        if found is not None:
            return found
        made = make()
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._capacity:
                del self._entries[next(iter(self._entries))]
            return self._entries.setdefault(key, made)
