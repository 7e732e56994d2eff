"""The frames in which JAX runs a callback of a compiled program: no public API says that a frame is one.

The program of `jax.pure_callback`, `io_callback`, `jax.debug.callback` or `jax.debug.print` calls Python in the thread
that called the program, where its inputs are ready, and else in a thread of XLA's. So whatever is counted in one thread
must leave callbacks out, or it is another number from run to run. A callback outside any program, as of
`jax.debug.print` outside `jit`, always runs in the thread that asks for it, and is no such frame.

Without it, what callbacks do is counted too.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

from perfsuite.measure.private.names import Frame

Profile: TypeAlias = Callable[[FrameType, str, Any], None]
"""What `sys.setprofile` takes."""

_RUNS_CALLBACK = Frame("jax._src.callback", "_wrapped_callback"), Frame("jax._src.buffer_callback", "wrapped_callback")
"""The outermost frame of a callback, which JAX's C++ calls."""


def runs_callback(frame: FrameType) -> bool:
    """Whether JAX's C++ calls this frame for a callback of a compiled program."""
    return any(each.runs(frame) for each in _RUNS_CALLBACK)


def outside_callbacks(profile: Profile) -> Profile:
    """`profile`, which hears nothing of what callbacks of compiled programs do."""
    callback: FrameType | None = None

    def outside(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal callback
        if callback is not None:
            if event == "return" and frame is callback:
                callback = None
        elif event == "call" and runs_callback(frame):
            callback = frame
        else:
            profile(frame, event, argument)

    return outside
