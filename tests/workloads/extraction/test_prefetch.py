import gc
import itertools
import threading
import time
import weakref

import pytest

from perfsuite.workloads.extraction.prefetch import prefetched


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def waited_for(condition):
    """Whether `condition()` comes true. Nothing here waits so long unless it is broken."""
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("depth", [0, 1, 3, 20])
@pytest.mark.parametrize("items", [0, 1, 10])
def test_items_are_the_same_and_in_order(depth, items):
    assert list(prefetched(range(items), depth)) == list(range(items))


@pytest.mark.parametrize("depth", [1, 3])
def test_so_many_items_are_made_ahead_and_no_more(depth):
    made = []
    source = (made.append(i) or i for i in itertools.count())
    stream = prefetched(source, depth)
    assert made == []
    for taken in range(1, 5):
        next(stream)
        assert waited_for(lambda: len(made) == taken + depth)  # noqa: B023
        time.sleep(0.02)
        assert len(made) == taken + depth
    stream.close()


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_an_exception_comes_where_its_item_would_have(depth):
    def source():
        yield from (1, 2)
        raise KeyError("of the source")

    stream = prefetched(source(), depth)
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(KeyError, match="of the source") as raised:
        next(stream)
    assert raised.traceback[-1].name == "source"
    assert list(stream) == []


@pytest.mark.parametrize("depth", [1, 4])
def test_a_consumer_that_fails_ends_the_thread_and_the_source_is_asked_no_more(depth):
    made = []
    source = (made.append(i) or i for i in itertools.count())

    def consumer():
        for item in prefetched(source, depth):
            if item == 3:
                raise RuntimeError("of the consumer")

    with pytest.raises(RuntimeError, match="of the consumer"):
        consumer()
    gc.collect()
    found = len(made)
    assert found <= 4 + depth
    assert next(source) == found


@pytest.mark.parametrize("depth", [0, 1])
def test_a_used_item_is_let_go_while_the_next_one_is_made(depth):
    class Item:
        pass

    alive = weakref.WeakSet()

    def source():
        for _ in range(4):
            assert waited_for(lambda: not alive)
            item = Item()
            alive.add(item)
            yield item
            del item

    for item in prefetched(source(), depth):
        del item


def test_without_depth_nothing_is_made_ahead_and_all_in_the_callers_thread():
    made = []
    stream = prefetched((made.append(threading.get_ident()) or i for i in range(3)), 0)
    assert next(stream) == 0
    assert made == [threading.get_ident()]
    stream.close()


def test_a_negative_depth_is_an_error_at_once():
    with pytest.raises(ValueError, match="depth must not be negative, got -1"):
        prefetched([], -1)
