"""`trace_block` and `trace_call`: a profiler trace of a block of code, or of a call run several times.

It writes an XPlane file, which `traces.read_trace` and TensorBoard read, and a Perfetto trace for
https://ui.perfetto.dev. It does not trace Python's own calls.

The cost, in 120 pairs with and without a trace on a busy 2-core x86-64 machine with jax 0.10.2: a 7 us call takes 1.31
times as long [1.30, 1.33], one of 300 small operations and 0.7 ms 1.33 times [1.32, 1.34], a 2 ms product [0.99, 1.07]
times. Ending a recording of 1000 calls takes 0.06 s, 0.2 s with Perfetto's file; reading it takes 0.07 s.
"""

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.warmup import borrowed, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.profiler.traces import BLOCK_MARK, RUN_MARK, Trace, read_trace
from perfsuite.measure.timing.block import steady

RUNS = 10
SECONDS = 1.0
"""About how long all traced runs of one call may take. A longer call is traced once, in one run."""

_numbers = itertools.count()


@dataclasses.dataclass
class Traced:
    """A block under the profiler. `trace` is set when the block ends."""

    _trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The block's trace. Raises `MeasurementError` inside the block."""
        if self._trace is None:
            raise MeasurementError("a block has its trace only when the block has ended, without an exception")
        return self._trace


@contextlib.contextmanager
def trace_block(directory: str | os.PathLike | None = None) -> Iterator[Traced]:
    """Trace what the block does, compilations included, into a new folder below `directory`, which is created if need
    be. Without a `directory` it leaves no file.

    Waits, before and after, for every live array of the default backend, so that work in flight is in the trace of the
    block that started it. It cannot wait for a result that is dropped: wait for that in the block. A block that fails
    is recorded too, without waiting. Raises `MeasurementError` if a trace is being recorded already, here or by JAX
    itself, if `directory` cannot be written, and what `read_trace` raises.
    """
    # JAX names a folder after the second, so that two short blocks would write the same file.
    session = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_{os.getpid()}_{next(_numbers)}"
    traced = Traced()
    with contextlib.ExitStack() as cleanup:
        into = directory or cleanup.enter_context(tempfile.TemporaryDirectory(prefix="perfsuite-trace-"))
        root = writable(Path(into))
        _wait_for_all()
        _start(root, session, perfetto=directory is not None)
        try:
            with jax.profiler.TraceAnnotation(BLOCK_MARK):
                yield traced
                _wait_for_all()
        finally:
            jax.profiler.stop_trace()
        folder = root / "plugins" / "profile" / session
        files = list(folder.glob("*.xplane.pb"))
        if not files:
            raise MeasurementError(f"{folder}: JAX's profiler wrote no trace")
        trace = read_trace(files[0])
    traced._trace = trace if directory is not None else dataclasses.replace(trace, path=None)


def trace_call(call: Call, *, runs: int = RUNS, directory: str | os.PathLike | None = None) -> Trace:
    """Trace `runs` warm runs of `call`, one after the other without waiting in between, as a training loop makes them.

    Raises what `trace_block` raises, `RecompilationError` when a run compiles, and `ValueError` for `runs` below 1.
    """
    if runs < 1:
        raise ValueError(f"trace_call({call.label}, runs=...): runs must be 1 or more, got {runs}")
    with borrowed(call) as subject:
        settle(subject)
        with steady(), trace_block(directory) as traced:
            for _ in range(runs):
                with jax.profiler.TraceAnnotation(RUN_MARK):
                    outputs = subject.run()
            # `trace_block` waits too, but only for the default backend, and without raising what failed there.
            jax.block_until_ready(outputs)
    return traced.trace


def affordable_runs(us: float) -> int:
    """How many runs of a call that takes about `us` are traced: 10, or as many as take a second, but at least 1."""
    return max(1, min(RUNS, int(SECONDS * 1e6 / max(us, 1.0))))


def _start(directory: Path, session: str, perfetto: bool) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    # The proto has every program that the process has compiled, not only those that the block runs: with it, the first
    # trace of a session over BERT's train steps took 1.9 MB, the thirtieth 38 MB. Events name their operations anyway.
    options.enable_hlo_proto = False
    options.session_id = session
    try:
        jax.profiler.start_trace(directory, create_perfetto_trace=perfetto, profiler_options=options)
    except RuntimeError as error:
        if "already" not in str(error):
            raise
        raise MeasurementError(
            f"{directory}: a trace is being recorded already, and JAX records one at a time. End that one first"
        ) from None


def writable(directory: Path) -> Path:
    """The directory, created if need be. Raises `MeasurementError` if no file can be written in it."""
    # Checked before the start: if JAX cannot write at the end, its profiler runs on for the rest of the process.
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise MeasurementError(f"{directory}: no trace can be written here ({error})") from None


def _wait_for_all() -> None:
    for array in jax.live_arrays():
        # An error of a computation is for the code that reads its result.
        with contextlib.suppress(Exception):
            array.block_until_ready()
