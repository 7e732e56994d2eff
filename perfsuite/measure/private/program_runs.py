"""JAX's private names that tell of each compiled program that runs: no public API counts them.

A warm call of a jitted function is one call into C++, which `sys.setprofile` does not see, nor do monitoring listeners.
Two places together see every run, each run once:

- the hook that JAX's fast path calls after a program (the one of `jax_debug_nans`), in every thread;
- `pxla.ExecuteReplicated.__call__`, through which JAX's slow path runs a program.
"""

import contextlib
import dataclasses
import functools
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import jax
import numpy as np

from perfsuite.measure.private import jax_stack, lowering, slow_path
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name
from perfsuite.measure.private.probing import fresh_function, undisturbed

_EXECUTE = Name("jax._src.interpreters.pxla", "ExecuteReplicated.__call__")
_PROGRAM_NAME = Attribute("jax._src.interpreters.pxla", "name")
_XLA_EXECUTABLE = Attribute("jax._src.interpreters.pxla", "xla_executable")
_UNSAFE_CALL = Attribute("jax._src.interpreters.pxla", "unsafe_call")

_HOOK = Name("jax._src.api", "_post_hook_state")
_UNSET = Name("jax._src.config", "config_ext.unset")
_SWITCHES = Name("jax._src.config", "debug_nans"), Name("jax._src.config", "debug_infs")
"""They replace the hook of the thread that switches them."""
_UPDATE = Attribute("jax._src.config", "_update_thread_local_hook")

_AHEAD_OF_TIME = Frame("jax._src.stages", "__call__", ("self",))
"""The call of a function that was compiled ahead of time."""
_EXECUTABLE = Attribute("jax._src.stages", "_executable")

_BOUND = ("name", "donated_invars", "in_shardings", "out_shardings", "compiler_options_kvs")
_BINDING = tuple(
    Frame("jax._src.pjit", name, ("jaxpr", *_BOUND)) for name in ("_pjit_call_impl", "_pjit_call_impl_python")
)
_FUNCTION_OF = Name("jax._src.core", "jaxpr_as_fun")

_ALSO = (*jax_stack.BINDING, jax_stack.PMAP, slow_path.MISS)
"""What tells JAX's own operations from the user's functions, by functions of these modules."""

Hook: TypeAlias = Callable[[Any, tuple, dict[str, Any], Any, FrameType], None]
"""Gets a jitted function whose program JAX's fast path has run, its arguments, its outputs, and the caller's frame."""


_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')

_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*", re.MULTILINE)
"""What a compiled program's text says of the source."""


class TextUnknown(Exception):  # noqa: N818  (a report, not a fault)
    """A program has no text that says all of it."""


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """One run of a compiled program. `operation` says that JAX itself defined the function, such as `jnp.add`'s.

    `frame` is the frame that ran it, of JAX's or of the user's code. `key()` is equal for two runs of one program while
    both are observed, None where that is not known. `text()` is the program without names of files and lines: it has to
    be asked for while the run is observed, and may trace and lower. It raises `TextUnknown` for a program whose text
    leaves something out.
    """

    name: str
    operation: bool
    frame: FrameType
    key: Callable[[], Hashable] = dataclasses.field(default=lambda: None, compare=False)
    text: Callable[[], str] = dataclasses.field(default=str, compare=False)


@contextlib.contextmanager
def observing_programs(observe: Callable[[ProgramRun], None]) -> Iterator[None]:
    """Tell `observe` of every program that begins to run inside, in the thread that runs it."""

    def through_slow_path(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executing(self: Any, *args: Any) -> Any:
            observe(_slow_run(self, sys._getframe(1)))
            return execute(self, *args)

        return executing

    def hook(jitted: Any, args: tuple, kwargs: dict[str, Any], _: Any, frame: FrameType) -> None:
        observe(_fast_run(jitted, args, kwargs, frame))

    with _EXECUTE.replaced(through_slow_path), hooked_calls(hook):
        yield


@contextlib.contextmanager
def telling_outputs(tell: Callable[[Any], None]) -> Iterator[None]:
    """Tell `tell` what every program that runs inside puts out, once it has begun, in the thread that runs it."""

    def through_slow_path(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executing(self: Any, *args: Any) -> Any:
            outputs = execute(self, *args)
            tell(outputs)
            return outputs

        return executing

    with (
        _EXECUTE.replaced(through_slow_path),
        hooked_calls(lambda jitted, args, kwargs, outputs, frame: tell(outputs)),
    ):
        yield


def is_ready(array: jax.Array) -> bool:
    """Whether an array is ready, or deleted, without waiting for it."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)  # keys cannot tell
    try:
        return bool(array.is_ready())  # type: ignore[attr-defined]
    except RuntimeError:
        if array.is_deleted():  # to the next program, maybe of another thread
            return True
        raise


@contextlib.contextmanager
def hooked_calls(hook: Hook) -> Iterator[None]:
    """Call `hook` after every program that JAX's fast path runs inside, in any thread; what was hooked goes on.

    A thread that was ever inside `jax.debug_nans`, which `jax.vmap` of a jitted function is too, has a hook of its own
    from then on, if only None. It is taken from this thread, and from any thread that comes through one inside. Of
    another thread that got it before and comes through none, nothing is heard.
    """
    state, unset, outside = _HOOK.get(), _UNSET.get(), [True]

    def chained(first: Any) -> Callable[..., None]:
        def after(jitted: Any, args: tuple, kwargs: dict[str, Any], outputs: Any) -> None:
            __tracebackhide__ = True
            if callable(first):
                first(jitted, args, kwargs, outputs)
            if not outside:
                hook(jitted, args, kwargs, outputs, sys._getframe(1))

        after.first = first  # type: ignore[attr-defined]
        return after

    def hook_here(_: Any = None) -> None:
        # JAX's own hook looks at the configuration, so a thread may have the one of all threads in place of None.
        own = state.get_local()
        state.set_local(chained(own) if callable(own) else unset)

    def updating(update: Callable[[Any], None] | None) -> Callable[[Any], None]:
        def updated(value: Any) -> None:
            if update is not None:
                update(value)
            hook_here()

        return updated

    before, before_here, thread = state.get_global(), state.get_local(), threading.get_ident()
    switches = [(switch, _UPDATE.of(switch)) for switch in (each.get() for each in _SWITCHES)]
    for_all = chained(before)
    outside.clear()
    state.set_global(for_all)
    hook_here()
    for switch, update in switches:
        setattr(switch, _UPDATE.name, updating(update))
    try:
        yield
    finally:
        outside.append(True)
        for switch, update in switches:
            setattr(switch, _UPDATE.name, update)
        if state.get_global() is for_all:  # else jax_debug_nans was switched in the meantime
            state.set_global(before)
        if threading.get_ident() == thread:
            own = state.get_local()  # else jax.debug_nans was entered or left in the meantime
            state.set_local(before_here if own is unset and before_here is None else getattr(own, "first", own))


def _fast_run(jitted: Any, args: tuple, kwargs: dict[str, Any], frame: FrameType) -> ProgramRun:
    function = getattr(jitted, "__wrapped__", None)
    if function is not None:
        name, of_jax = _said(jitted.__name__), jax_stack.belongs_to_jax(function)
        key = functools.partial(_key, jitted, args, kwargs)
        return ProgramRun(name, of_jax, frame, key, functools.partial(_lowered_text, jitted, args, kwargs))
    if (bound := jax_stack.bound_program(frame)) is not None:
        return ProgramRun(_said(bound.name), bound.of_jax, frame, text=functools.partial(_bound_text, frame, args))
    compiled = _AHEAD_OF_TIME.local(frame, "self") if _AHEAD_OF_TIME.runs(frame) else None
    program = _UNSAFE_CALL.of(_EXECUTABLE.of(compiled))
    name = _said(_PROGRAM_NAME.of(program, "?"))
    return ProgramRun(name, False, frame, text=functools.partial(_compiled_text, program))


def _slow_run(executable: Any, frame: FrameType) -> ProgramRun:
    outer: FrameType | None = frame
    of_jax = False
    while outer is not None and outer.f_globals.get("__name__", "").startswith("jax."):
        if (function := slow_path.jitted_function(outer)) is not None:
            of_jax = jax_stack.belongs_to_jax(function)
            break
        if (bound := jax_stack.bound_program(outer)) is not None:
            of_jax = bound.of_jax
        outer = outer.f_back
    name = _said(_PROGRAM_NAME.of(executable, "?"))
    return ProgramRun(name, of_jax, frame, lambda: executable, functools.partial(_compiled_text, executable))


def _key(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> Hashable:
    """A jitted function with what its program depends on in its arguments, and maybe more."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    return jitted, structure, tuple(map(_leaf_signature, leaves))


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False), leaf.sharding  # a key has no weak type
    if isinstance(leaf, np.ndarray | np.generic):
        return np.shape(leaf), leaf.dtype
    return type(leaf), leaf  # it may be static


def _lowered_text(jitted: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """The program as JAX hands it to the compiler. Arguments that were donated to it need not be there any more."""
    lowered = jitted.lower(*args, **kwargs)
    if (options := lowering.compiler_options(lowered)) is None:
        raise TextUnknown("the options of its compiler are not known")
    named = sorted((name, str(value)) for name, value in options.items())
    return _complete(f"{lowered.as_text()}{named or ''}")


def _bound_text(frame: FrameType, args: tuple) -> str:
    """The program that JAX binds under a transformation outside of any jitted function."""
    binding = next(each for each in _BINDING if each.runs(frame))
    function = jax.jit(_FUNCTION_OF.get()(binding.local(frame, "jaxpr")))
    bound = [(name, str(binding.local(frame, name))) for name in _BOUND]
    return _complete(f"{bound}{function.lower(*args).as_text()}")


def _compiled_text(executable: Any) -> str:
    """The compiled program, for which JAX's slow path has no other text at hand."""
    try:
        modules = _XLA_EXECUTABLE.of(executable).hlo_modules()
    except AttributeError:
        raise TextUnknown("the program that JAX runs is not known") from None
    text = "\n".join(_METADATA.sub("", _TABLES.sub("", module.to_string())) for module in modules)
    if "{...}" in text:
        raise TextUnknown("a large constant is left out of its program's text")
    return _complete(text)


def _complete(text: str) -> str:
    if "_callback" in text:
        raise TextUnknown("its program calls back into Python")
    return text


def _said(name: str) -> str:
    """`step` for `jit(step)`."""
    outer, bracket, inner = name.partition("(")
    name = inner[:-1] if bracket and outer == "jit" and inner.endswith(")") else name
    return "lambda" if name == "<lambda>" else name


def probe() -> None:
    """Run a program through JAX's slow path, and then through the fast one: each run is seen once (10 ms)."""
    function, argument = fresh_function(), np.float32(1)
    jitted = jax.jit(function)
    seen: list[str] = []
    heard: list[tuple[Any, tuple, Any]] = []

    def hook(fn: Any, args: tuple, _: dict[str, Any], outputs: Any, __: FrameType) -> None:
        heard.append((fn, args, outputs))

    with undisturbed(), observing_programs(lambda run: seen.append(run.name)), hooked_calls(hook):
        for path in ("slow", "fast"):
            seen.clear()
            jitted(argument)
            if (times := seen.count(function.__name__)) != 1:
                raise Moved(f"a program that JAX's {path} path runs once is seen {times} times")
    # Other threads may run programs, too.
    own = [(args, outputs) for fn, args, outputs in heard if fn is jitted]
    if not any(args and args[0] is argument and jax.tree.leaves(outputs) for args, outputs in own):
        raise Moved("the hook of JAX's fast path does not get the arguments and outputs of a call")
