"""The private names of jax and jaxlib that compiling StableHLO needs.

Public JAX compiles for a device that is not present only what it has lowered for that device, which needs libtpu in the
process that lowers. `jax.export` takes only what `jax.jit` itself returned, no `filter_jit`, and refuses calls of the
host (jax 0.10.2). Only `target_worker` imports this module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfsuite.measure.private.capabilities import ABSENT_COMPILERS
from perfsuite.measure.private.names import Name

_CONTEXT = ABSENT_COMPILERS.needs(Name("jax._src.interpreters.mlir", "make_ir_context"))
_PARSE = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "Module.parse"))
_SYMBOLS = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "SymbolTable"))
_LIST = ABSENT_COMPILERS.needs(Name("jaxlib.mlir.ir", "ArrayAttr"))
_OPTIONS = ABSENT_COMPILERS.needs(Name("jax._src.compiler", "get_compile_options"))
_COMPILE = ABSENT_COMPILERS.needs(Name("jaxlib._jax", "CompileOnlyPyClient.compile"))
_DEVICES = ABSENT_COMPILERS.needs(Name("jaxlib._jax", "DeviceList"))

# The number of arguments from which jax packs those of a TPU program into one tuple (`dispatch.should_tuple_args`).
MOST_PLAIN_ARGUMENTS = 2000


def parse_stablehlo(stablehlo: bytes) -> Any:
    """The module of a StableHLO text."""
    with _CONTEXT.get()():
        return _PARSE.get()(stablehlo)


def compile_module(module: Any, devices: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compile a module for as many partitions as there are devices, with the options that `jax.jit` would set.

    `options` are those of `jax.jit(compiler_options=...)`. Returns the executable, which need not be able to run.
    """
    parameters, outputs = propagation(module)
    compile_options = _OPTIONS.get()(
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
    given = _shardings(main, "arg_attrs", len(arguments))
    left = _shardings(main, "res_attrs", len(results))
    return (
        [text is None and not _is_token(kind) for text, kind in zip(given, arguments, strict=True)],
        [(text is None or "?" in text) and not _is_token(kind) for text, kind in zip(left, results, strict=True)],
    )


def _shardings(function: Any, which: str, count: int) -> list[str | None]:
    # MLIR leaves the list out where all are empty.
    listed: Any = _LIST.get()(function.attributes[which]) if which in function.attributes else [{}] * count
    names = ("sdy.sharding", "mhlo.sharding")
    return [next((str(each[name]) for name in names if name in each), None) for each in listed]


def _is_token(kind: Any) -> bool:
    return str(kind) == "!stablehlo.token"
