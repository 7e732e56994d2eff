"""Items of an iterable made ahead of their use, in a thread."""

import collections
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END: Any = object()


def prefetched(iterable: Iterable[T], depth: int) -> Generator[T]:
    """The items of `iterable`, in order, of which up to `depth` are made in a thread before they are asked for.

    What `iterable` raises is raised in its place in the order. However the generator ends, at its end, by an exception
    or by `close` (which Python also calls when nobody refers to it any more), the item that is being made is waited for
    and the thread is gone. With `depth=0` there is no thread.

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
            # Else the item would live until the next one is there.
            del item
    finally:
        pool.shutdown(cancel_futures=True)
