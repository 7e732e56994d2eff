"""Methods of `unittest.TestCase`: unittest calls them by itself, and not by pytest's hook around the body of a test."""

import contextlib
import functools
import inspect
import unittest
from collections.abc import Callable

import pytest


def is_method(item: pytest.Item) -> bool:
    """Whether unittest runs the body of this test."""
    return isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, unittest.TestCase)


def run_within(item: pytest.Item, around: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Let unittest run the body within `around()`. What that raises is then a failure of the test."""
    assert isinstance(item, pytest.Function)
    body = item.obj

    @functools.wraps(body)
    def within() -> None:
        with around():
            body()

    @functools.wraps(body)
    async def awaited_within() -> None:
        with around():
            await body()

    item.obj = awaited_within if inspect.iscoroutinefunction(body) else within
    # pytest puts `obj` there, but not where it is a coroutine.
    setattr(item.instance, item.name, item.obj)
