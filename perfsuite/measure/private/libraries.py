"""What perfsuite knows of libraries by name, without importing any: functions, JAX's start, and two pytest plugins.

- Functions by what they do for a user who calls them, for the advice of messages. Where a library moves one, a message
  loses its advice; it still names the function and the line.
- libtpu writes the schedules of kernels with flags that no page names.
- pytest-xdist has no public way to take back a report that a worker has sent.
- pytest-benchmark has no public way to add a benchmark that it did not run itself, nor two in one test. So the samples
  are replayed through a copy of its fixture, with a clock that returns them.
"""

import contextlib
import copy
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.measure.installed import installed_file
from perfsuite.measure.private.capabilities import BACKEND_START, BENCHMARK, KERNEL_SCHEDULES, LIBRARY_FUNCTIONS, XDIST
from perfsuite.measure.private.names import Attribute, Functions, Moved, Name

START = BACKEND_START.needs(Name("jax._src.xla_bridge", "_init_backend", called=True))
"""The function that starts a backend of JAX's, which the fresh process of `perf.imports` wraps."""

_SCHEDULE_FLAGS = {
    "xla_jf_dump_to": "",
    "xla_jf_dump_llo_text": "true",
    "xla_jf_dump_llo_pass_label_regex": "^final_",
}

UNKNOWN_FLAG = b"Unknown command line flag 'xla_jf_dump"
"""What libtpu writes, and ends, where it does not know one of them."""


def schedule_flags(folder: Path) -> str:
    """The flags by which libtpu writes the schedule of each kernel into a folder."""
    return " ".join(f"--{name}={value or folder}" for name, value in _SCHEDULE_FLAGS.items())


@KERNEL_SCHEDULES.probed_by
def _look_for_flags() -> None:
    library = installed_file("libtpu", "libtpu.so")
    if library is None:
        return
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if missing := [name for name in _SCHEDULE_FLAGS if content.find(name.encode()) < 0]:
            raise Moved(f"libtpu has no flag {', '.join(missing)}")


_SENDER = XDIST.needs(Functions("xdist.remote", "WorkerInteractor"))
_SEND = XDIST.needs(Attribute("xdist.remote", "sendevent"))
_REPORT = XDIST.needs(Attribute("xdist.remote", "testreport"))
"""The name of the event."""

_DISABLED = BENCHMARK.needs(Attribute("pytest_benchmark.fixture", "disabled"))
_SKIPPED = BENCHMARK.needs(Attribute("pytest_benchmark.fixture", "skipped"))
_MODE = BENCHMARK.needs(Attribute("pytest_benchmark.fixture", "_mode"))
"""How the fixture was used, which it can be once."""
_TIMER = BENCHMARK.needs(Attribute("pytest_benchmark.fixture", "_timer"))

API = Functions("jax._src.api")
"""`jax.grad`, `jax.vmap` and their like, with what they return."""

TRANSFORMING = (
    API,
    *(Functions(f"jax._src.{module}") for module in ("ad_checkpoint", "checkify", "pmap", "shard_map")),
)
"""They return a function, whose qualified name begins with theirs."""

JITTING = (
    Functions("jax._src.api", "jit"),
    Functions("equinox._jit", "filter_jit"),
    Functions("flax.nnx.transforms.compilation", "jit"),
)
"""They jit a function."""

NNX_JITTED = Functions("flax.nnx.transforms.compilation"), Functions("flax.nnx.transforms.general")
"""A call of what `nnx.jit` returned."""

FILTER_JITTED = (Functions("equinox._jit"),)
"""A call of what `filter_jit` returned. It waits for the device."""

PARTITIONING = (Functions("equinox._filters"),)
"""They take a model apart, or put it together."""

TREE_AT = (Functions("equinox._tree"),)

TRANSFORMATIONS = (
    Functions("equinox._ad"),
    Functions("equinox._vmap_pmap"),
    *(
        Functions("jax._src.api", name)
        for name in ("grad", "value_and_grad", "vmap", "vjp", "jvp", "linearize", "jac", "hess")
    ),
    Functions("flax.nnx.transforms.autodiff"),
    Functions("flax.nnx.transforms.iteration"),
)

_READS = ("__float__", "__int__", "__bool__", "__complex__", "__index__", "__array__", "tolist", "__repr__")

WAITING = (
    Functions("jax._src.numpy.array_methods", "_item"),
    *(Functions("jax._src.api", name) for name in ("block_until_ready", "device_get", "effects_barrier")),
    *(Functions("jax._src.array", f"ArrayImpl.{name}") for name in (*_READS, "block_until_ready", "_value")),
)
"""They wait for the device: float(x) and jax.device_get(x) end in `_value`."""

CONSTRUCTING = Functions("jax._src.numpy.array_constructors")
OF_LIST = " of a list"
"""What follows the name of one that makes an array of a list or tuple."""

PLACING = Functions("jax._src.api", "device_put"), CONSTRUCTING
"""They place an array on the device."""

REGISTERING = (
    Functions("jax._src.tree_util", "register_"),
    Functions("jax._src.tree_util", "_register_", since="0.12"),  # 0.11.0 has none
)
"""What they define takes the objects of a class apart."""

TREES = Functions("jax._src.tree"), Functions("jax._src.tree_util")
"""They pass over every leaf of a tree."""

MODULES = (Functions("equinox._module"),)
"""They build a module, or take it apart."""

STATES_FLATTENED = (
    Functions("flax.nnx.statelib", "_state_flatten"),
    Functions("flax.nnx.variablelib", "_variable_flatten"),
)
"""They take an `nnx.State` apart for a jitted function."""

KEYS_RETURNED = (
    Functions("jax._src.random.prng", "prngkeyarray_", since="0.10.2"),
    Functions("jax._src.prng", "prngkeyarray_", until="0.10.2"),
)
"""They make the typed keys that a program returns."""

KEYS = (Functions("jax._src.random"),)
"""They make keys, and numbers from keys."""

SLOW_PATH = (Functions("jax._src.pjit", "_cpp_pjit"),)
"""A call of a jitted function that JAX's fast path does not take."""

_CALLED_TO_WAIT = (Functions("equinox._jit", "_JitWrapper"),)

LIBRARY_FUNCTIONS.needs((*JITTING, *NNX_JITTED, *FILTER_JITTED, *PARTITIONING, *TREE_AT, *TRANSFORMATIONS, *WAITING))
LIBRARY_FUNCTIONS.needs((*PLACING, *REGISTERING, *TREES, *MODULES, *KEYS_RETURNED, *KEYS, *SLOW_PATH, *_CALLED_TO_WAIT))
LIBRARY_FUNCTIONS.needs((*TRANSFORMING, *STATES_FLATTENED))


def one_of(function: str, kinds: Iterable[Functions | str]) -> bool:
    """Whether "module:qualified.name" is one of some functions, or begins with a text among them."""
    return any(function.startswith(each) if isinstance(each, str) else each.has(function) for each in kinds)


def waits(function: str) -> bool:
    """Whether "module:qualified.name" is known to wait for the device."""
    return one_of(function, (*WAITING, *_CALLED_TO_WAIT))


def sender_of(plugins: Iterable[object]) -> Any:
    """What sends the reports of this worker, by its plugins; None in other processes, and where XDIST is lost."""
    if XDIST.lost():
        return None
    # A worker gets the module's text, and the module another name: the class is known by its own.
    return next((each for each in plugins if type(each).__name__ == _SENDER.prefix), None)


@contextlib.contextmanager
def held_back(sender: Any, taken_back: Callable[[], bool]) -> Iterator[None]:
    """Send what is reported inside at the end of the block, or never, where `taken_back()` says so."""
    send, reports = _SEND.of(sender), []

    def keep(name: str, **what: Any) -> None:
        if name == _REPORT.name:
            reports.append(what)
        else:
            send(name, **what)

    _SEND.put(sender, keep)
    try:
        yield
    finally:
        _SEND.put(sender, send)
        for what in () if taken_back() else reports:
            send(_REPORT.name, **what)


def add_benchmark(
    fixture: Any, seconds: Sequence[float], *, name: str, fullname: str, extra_info: Mapping[str, float]
) -> None:
    """Add a benchmark with these samples, by the fixture `benchmark` of a test."""
    if _DISABLED.of(fixture):
        return
    readings = iter([reading for duration in seconds for reading in (0.0, duration)])
    replay = copy.copy(fixture)
    _MODE.put(replay, None)
    _TIMER.put(replay, lambda: next(readings))
    replay.name, replay.fullname, replay.extra_info = name, fullname, dict(extra_info)
    replay.pedantic(lambda: None, rounds=len(seconds))


def leave_benchmark_unused(fixture: Any) -> None:
    """Have the fixture not warn, at the end of the test, that nobody used it."""
    _SKIPPED.put(fixture, True)
