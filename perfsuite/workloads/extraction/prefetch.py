"""Items of an iterable, which a thread makes ahead of their use."""

import collections
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


def prefetched(iterable: Iterable[T], depth: int) -> Generator[T]:
    """The items of `iterable`, in order; a thread makes up to `depth` of them before they are asked for.

    An exception of `iterable` is raised in its place in the order. However the generator ends, by itself, by an
    exception or by `close` (which Python also calls without a reference to it), it waits for the item that is being
    made and ends the thread. With `depth=0` there is no thread.

    Raises `ValueError` at once for a negative `depth`.
    """
    if depth < 0:
        raise ValueError(f"depth must not be negative, got {depth}")
    return _prefetched(iter(iterable), depth)


def _prefetched(iterator: Iterator[T], depth: int) -> Generator[T]:
    if depth == 0:
        yield from iterator
        return
    # One worker, so that the iterator is asked by one thread, and in order.
    pool = ThreadPoolExecutor(1, "prefetched")
    try:
        waiting: collections.deque[Future[T]] = collections.deque()
        waiting.extend(pool.submit(next, iterator, _END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, iterator, _END))
            yield item
            # Otherwise the item would live until the next one is there.
            del item
    finally:
        pool.shutdown(cancel_futures=True)
