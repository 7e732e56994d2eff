"""`host_heap`: the lines that allocate what steps leave on the heap, in native code too, where memray is installed."""

import importlib.util
import mmap
import os
import re

import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.installed import install
from perfsuite.measure.runtime import host_heap

HERE = os.path.relpath(__file__)
needs_memray = pytest.mark.skipif(not host_heap.is_available(), reason="memray is not installed")
X = jnp.zeros(8)
KEPT = []


@pytest.fixture(autouse=True)
def _empty():
    yield
    KEPT.clear()


def keeps_numpy(x):
    KEPT.append(np.ones(10_000))
    return x


def keeps_native(x):
    KEPT.append(mmap.mmap(-1, 1 << 16))
    return x


def keeps_objects(x):
    KEPT.append(list(map(float, range(1_000))))
    return x


def keeps_nothing(x):
    return x + np.ones(8, np.float32)


def line_of(function) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + 1}"


@needs_memray
@pytest.mark.parametrize(
    ("step", "least", "inside"),
    [(keeps_numpy, 80_000, "ones"), (keeps_native, 1 << 16, "new_mmap_object"), (keeps_objects, 23_000, "")],
)
def test_the_line_that_keeps_memory_is_named_with_its_bytes(step, least, inside):
    found = host_heap.heap_lines(call(step, X, carry=1))
    assert (found[0].line, found[0].function) == (line_of(step), step.__name__)
    assert least <= found[0].bytes_a_step < 2 * least
    assert inside in found[0].inside
    said = host_heap.in_words(call(step, X, carry=1))
    assert re.search(rf"^  [\d,]+ bytes a step at {re.escape(line_of(step))} in {step.__name__}", said, re.MULTILINE)


@needs_memray
def test_a_step_that_keeps_nothing_has_no_line_to_speak_of():
    assert sum(line.bytes_a_step for line in host_heap.heap_lines(call(keeps_nothing, X, carry=1))) < 2_000


@needs_memray
def test_memray_that_runs_already_is_said(tmp_path):
    import memray

    with memray.Tracker(tmp_path / "heap.bin"):
        assert "memray cannot name the lines that allocate what stays: " in host_heap.in_words(call(keeps_numpy, X))


def test_without_memray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert host_heap.in_words(call(keeps_numpy, X)).endswith(f"unknown without memray: {install('memray')}")
    assert not KEPT, "nothing runs again"


def test_memory_of_native_threads_has_their_function():
    line = host_heap.HeapLine("", "", "xla::CopyToDevice", 20_000.4)
    assert str(line) == "20,000 bytes a step in a thread of native code, in xla::CopyToDevice"


@pytest.mark.parametrize(
    ("python", "native", "place"),
    [
        ([("ones", "/env/site-packages/numpy/numeric.py", 232)], ["malloc"], ("", "", "ones")),
        ([], ["posix_memalign", "xla::(anonymous namespace)::Buffer(int)"], ("", "", "xla::Buffer")),
        ([], ["malloc", "operator new(unsigned long)"], ("", "", "an unknown function")),
        (
            [("leak", "/here/model.py", 7)],
            ["malloc", "extension_leak", "leak"],
            ("/here/model.py:7", "leak", "extension_leak"),
        ),
        ([("_run", host_heap.__file__, 90)], ["malloc"], None),
    ],
)
def test_a_place_is_the_users_line_and_what_it_calls(python, native, place):
    assert host_heap._place_of(python, [(name, "", 0) for name in native]) == place
