"""Lowering and compiling as public JAX does not: for any platform, through any wrapper, for a device that is absent.

- `jax.jit(f).trace(...).lower(lowering_platforms=...)` is public, but `filter_jit`, `nnx.jit` and a project's own
  wrappers have `.lower` only. All of them end in `Traced.lower`, which `lowering` replaces.
- Public JAX compiles for an absent device only what it has lowered for that device, which needs libtpu in the process
  that lowers. `jax.export` takes only what `jax.jit` itself returned, no `filter_jit`, and refuses calls of the host
  (jax 0.10.2). So `compile_module`, in a process of its own, compiles StableHLO.

For the present device nothing here raises where a name has moved: then less is known.
"""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import jax
import numpy as np

from perfsuite.measure.private.capabilities import ABSENT_COMPILERS, LOWERING
from perfsuite.measure.private.jax_stack import static_arguments, without_statics
from perfsuite.measure.private.names import Attribute, Frame, Moved, Name

_LOWER = LOWERING.needs(Name("jax._src.stages", "Traced.lower"))
_CALLER = LOWERING.needs(Frame("jax._src.pjit", "jit_lower", ("jit_func", "args", "kwargs")))
_BACKEND = LOWERING.needs(Name("jax._src.interpreters.mlir", "ModuleContext.get_backend"))
_PLATFORMS = LOWERING.needs(Attribute("jax._src.interpreters.mlir", "platforms"))
_MAKE_CALLBACK = LOWERING.needs(Attribute("jax._src.callback", "make_python_callback_from_host_send_and_recv"))
_LOWERING = LOWERING.needs(Attribute("jax._src.stages", "_lowering"))
_OPTIONS = LOWERING.needs(Attribute("jax._src.interpreters.pxla", "_compiler_options_kvs"))
_DEBUG_INFO = LOWERING.needs(Attribute("jax._src.core", "debug_info"))
_ARGUMENT_NAMES = LOWERING.needs(Attribute("jax._src.linear_util", "arg_names"))
_SOURCE = LOWERING.needs(Attribute("jax._src.core", "source_info"))
_SUMMARIZE = LOWERING.needs(Name("jax._src.source_info_util", "summarize"))

_IR_CONTEXT = ABSENT_COMPILERS.needs(Name("jax._src.interpreters.mlir", "make_ir_context"))
_PARSE = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "Module.parse"))
_SYMBOLS = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "SymbolTable"))
_LIST = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "ArrayAttr"))
_COMPILE_OPTIONS = ABSENT_COMPILERS.needs(Name("jax._src.compiler", "get_compile_options"))
_COMPILE = ABSENT_COMPILERS.needs(Name("jaxlib._jax", "CompileOnlyPyClient.compile"))
_DEVICES = ABSENT_COMPILERS.needs(Name("jaxlib._jax", "DeviceList"))

# The number of arguments from which jax packs those of a TPU program into one tuple (`dispatch.should_tuple_args`).
MOST_PLAIN_ARGUMENTS = 2000


@dataclasses.dataclass
class Lowering:
    """The trace that was lowered, and its leaves in the order of `Lowered.args_info`.

    `leaves` is None where they are not known from static arguments.
    """

    traced: jax.stages.Traced | None = None
    leaves: list[Any] | None = None


@contextlib.contextmanager
def lowering(platform: str | None) -> Iterator[Lowering]:
    """Lower for `platform` whatever this thread lowers inside; None is the platform of the arguments.

    For another platform raises `Moved` where a name has moved, so ask for the capability first.
    """
    result, thread = Lowering(), threading.get_ident()

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(self: jax.stages.Traced, **options: Any) -> jax.stages.Lowered:
            if threading.get_ident() == thread:
                result.traced, result.leaves = self, _leaves(sys._getframe(1))
                if platform is not None:
                    options["lowering_platforms"] = (platform,)
            return original(self, **options)

        return lower

    with contextlib.ExitStack() as replaced:
        if platform is not None:
            replaced.enter_context(_without_device(platform))
        if platform is not None or not _LOWER.missing():
            replaced.enter_context(_LOWER.replaced(watching))
        yield result


class _NoDevice:
    """Stands in for the runtime of an absent device, which JAX hands the functions to call back.

    They are no part of the program's text, and the program will not run.
    """

    def __getattr__(self, name: str) -> Any:
        if name != _MAKE_CALLBACK.name:
            raise AttributeError(name)
        return lambda *_, **__: None


def _without_device(platform: str) -> contextlib.AbstractContextManager[None]:
    """Let calls of the host be lowered for a platform without its runtime, in this thread.

    JAX needs the runtime for nothing else in a program for a TPU or a GPU.
    """
    thread = threading.get_ident()

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except (ValueError, RuntimeError):  # of another platform, or not installed
                if threading.get_ident() != thread or tuple(_PLATFORMS.of(self, ())) != (platform,):
                    raise
                return _NoDevice()

        return get_backend

    return _BACKEND.replaced(replacing)


def compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any] | None:
    """The `compiler_options` that `jax.jit` was given, which the lowered text lacks; None where they are not known."""
    if LOWERING.lost():
        return None
    options = _OPTIONS.of(_LOWERING.of(lowered))
    return None if options is None else dict(options)


def argument_names(traced: jax.stages.Traced) -> tuple[str, ...]:
    """JAX's names of all leaves of the arguments, which the program's parameters have too; empty where unknown."""
    return tuple(_ARGUMENT_NAMES.of(_DEBUG_INFO.of(traced.jaxpr.jaxpr)) or ())


def source_line(equation: Any) -> str:
    """The user's line that made an equation, `model.py:42:8 (step)`; "" where it is not known."""
    source = _SOURCE.of(equation)
    try:
        return "" if source is None else _SUMMARIZE.get()(source)
    except Moved:
        return ""


def _leaves(caller: FrameType) -> list[Any] | None:
    """The leaves of the arguments that the caller of `Traced.lower` was given, without the static ones."""
    jitted, args, kwargs = (_CALLER.local(caller, name) for name in _CALLER.locals)
    if not _CALLER.runs(caller) or args is None or kwargs is None or (statics := static_arguments(jitted)) is None:
        return None
    return jax.tree.leaves(without_statics(args, kwargs, statics))


# For a device that is absent.


def parse_stablehlo(stablehlo: bytes) -> Any:
    """The module of a StableHLO text."""
    with _IR_CONTEXT.get()():
        return _PARSE.get()(stablehlo)


def compile_module(module: Any, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compile a module for as many partitions as there are devices, with the options that `jax.jit` would set.

    `options` are those of `jax.jit(compiler_options=...)`. Returns the executable, which need not be able to run.
    """
    parameters, outputs = propagation(module)
    compile_options = _COMPILE_OPTIONS.get()(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array(devices, dtype=object).reshape(1, len(devices)),
        env_options_overrides=dict(options),
    )
    is_tpu = devices[0].platform == "tpu"
    compile_options.parameter_is_tupled_arguments = is_tpu and len(parameters) > MOST_PLAIN_ARGUMENTS
    build = compile_options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = parameters
    build.allow_spmd_sharding_propagation_to_output = outputs
    with module.context:
        return _COMPILE.get()(
            devices[0].client,
            module,
            executable_devices=_DEVICES.get()(tuple(devices)),
            compile_options=compile_options,
        )


def propagation(module: Any) -> tuple[list[bool], list[bool]]:
    """Whether the compiler may choose the sharding, for each argument and each output of the main function.

    As in `pxla.get_prop_to_input_output`: it may where no sharding was given, and where an output's sharding leaves a
    dimension open (`PartitionSpec.UNCONSTRAINED`). Tokens have no sharding to choose.
    """
    main = _SYMBOLS.get()(module.operation)["main"]
    arguments, results = main.type.inputs, main.type.results
    inputs = _shardings(main, "arg_attrs", len(arguments))
    outputs = _shardings(main, "res_attrs", len(results))
    return (
        [text is None and not _is_token(kind) for text, kind in zip(inputs, arguments, strict=True)],
        [(text is None or "?" in text) and not _is_token(kind) for text, kind in zip(outputs, results, strict=True)],
    )


def _shardings(function: Any, which: str, count: int) -> list[str | None]:
    # MLIR leaves the list out where all are empty.
    listed: Any = _LIST.get()(function.attributes[which]) if which in function.attributes else [{}] * count
    names = ("sdy.sharding", "mhlo.sharding")
    return [next((str(each[name]) for name in names if name in each), None) for each in listed]


def _is_token(kind: Any) -> bool:
    return str(kind) == "!stablehlo.token"
