"""Write a first perf test of a function.

perfsuite imports the function's module, makes the arguments from their
annotations, and traces the function with them; it runs nothing. An argument
that it cannot make is marked in the test, which fails with what to write there.
"""

import argparse
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from perfsuite.commands import CommandError, of_pytest
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.installed import install
from perfsuite.measure.targets.targets import target

SUMMARY = "write a first perf test of a function"

EXAMPLES = """examples:
  perfsuite init mypackage.train:step
  perfsuite init mypackage.train:Trainer.step
  perfsuite init mypackage.train:step --file checks/test_step.py
"""

SIZE = 8
"""Of a dimension that an annotation names and gives no number."""

_NAMED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)?)")
_FOLDERS = (".", "src")
_NUMBERS = {bool: False, int: 1, float: 1.0}
_DTYPES = ("float32", "int32", "bool", "prng_key")
"""The first of these that an annotation allows; else the first that it has."""

UNKNOWN = object()
"""Stands for an argument that the annotation does not tell."""

ANY = -1
"""Stands for any number of dimensions."""

_TAKEN = {"call", "fill_in", "jax", "jnp", "one_call", "perf", "perf_target"}
"""Names that the file has for something else."""

_TEMPLATE = '''\
"""Perf tests of {module}:{function}: `pytest --perf` runs them, `pytest --perf-save` records their baselines."""

{imports}from {module} import {imported}

from perfsuite import call


def one_call():
    """A call with new arguments, because it may donate them."""
    return call(
        {step},
{arguments}    )


def test_{name}_compiles_once(perf):
    made = one_call()
    made.run()
    with perf.no_compiles():
        for _ in range(3):
            made.run()


def test_{name}_does_not_do_more_on_the_host(perf):
    perf.host_calls(one_call())


def test_{name}_does_not_become_a_worse_program(perf, perf_target):
    program = perf.program(one_call(), perf_target)
    assert not program.lost_donations, "\\n".join(map(str, program.lost_donations))
'''

_FILL_IN = """

def fill_in(argument):
    raise NotImplementedError(f"{file}: write the argument `{{argument}}` of {function} in the place of fill_in")
"""

_CARRY = """\
        # Are the first n outputs the first n arguments of the next call, as of a train state? Then add carry=n.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the function or Class.method to test")
    parser.add_argument("--file", type=Path, help="the file to write (default: tests/test_perf_FUNCTION.py)")


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument that a call has to give. `value` is an array's shape and dtype, or `UNKNOWN`."""

    parameter: inspect.Parameter
    value: Any

    @property
    def keyword(self) -> str:
        """Its name, where it is given by that."""
        return self.parameter.name if self.parameter.kind is self.parameter.KEYWORD_ONLY else ""

    @property
    def source(self) -> str:
        """The expression in the test."""
        if self.value is UNKNOWN:
            return f'fill_in("{self.parameter.name}")'
        dtype = getattr(self.value, "dtype", None)
        if dtype is None:
            return repr(self.value)
        if "key<" in str(dtype):
            return "jax.random.key(0)"
        return f"jnp.zeros({self.value.shape}" + ("" if dtype == "float32" else f', "{dtype}"') + ")"

    def __str__(self) -> str:
        """`x: Float[Array, '8']`."""
        name, annotation = self.parameter.name, self.parameter.annotation
        return (
            name if annotation is inspect.Parameter.empty else f"{name}: {getattr(annotation, '__name__', annotation)}"
        )


def run(arguments: argparse.Namespace) -> int:
    """Write the test, and print what is next."""
    module, _, name = arguments.function.partition(":")
    file = arguments.file or Path("tests", f"test_perf_{name.replace('.', '_')}.py")
    if file.exists():
        raise CommandError(f"{file} is there already: give another with --file, or delete it")
    extras = _extras_of_targets()
    with compilers_silenced():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is run
        function, folder = load_function(arguments.function)
        needed = _arguments(function)
        unknown = [str(each) for each in needed if each.value is UNKNOWN]
        carry, problem = (0, "") if unknown else _carried(function, needed)
    text = _test(module, name, file.as_posix(), needed, carry)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be written ({error.strerror or error})") from None
    steps = {
        f"write the arguments of {name} into {file}: {'; '.join(unknown)}": unknown,
        f"correct the arguments of {name} in {file}: with them it raises {problem}": problem,
        f"add to pytest's settings: pythonpath = {folder}": folder,
        f"install the compilers of perf_targets, here and in CI: {install(*extras)}": extras,
        f"pytest --perf-save {file}": True,
        f"commit {file} and the baselines; from then on `pytest --perf` fails what got worse": True,
    }
    left = (step for step, is_left in steps.items() if is_left)
    print(f"wrote {file}", "next:", *(f"  {number}. {step}" for number, step in enumerate(left, 1)), sep="\n")
    return 0


def _extras_of_targets() -> list[str]:
    """The extras of perfsuite that bring the compilers for the ini option perf_targets."""
    names = of_pytest(lambda config: config.getini("perf_targets"))
    try:
        return sorted({{"tpu": "tpu", "cuda": "gpu"}[target(name).platform] for name in names})
    except ValueError as error:
        raise CommandError(f"the ini option perf_targets: {error}") from None


def load_function(text: str) -> tuple[Callable, str]:
    """The function `module:name`, and the folder that pytest has to put on its path for the import, "" for none.

    Raises `CommandError` where there is no such function.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise CommandError(f"{text!r} is not module:function, such as mypackage.train:step")
    module, name = match.groups()
    sys.path[:0] = map(str, of_pytest(lambda config: config.getini("pythonpath")))
    top, folder = module.partition(".")[0], ""
    if importlib.util.find_spec(top) is None:
        folder = next((each for each in _FOLDERS if PathFinder.find_spec(top, [os.path.abspath(each)])), "")
        sys.path[:0] = [os.path.abspath(folder)] if folder else []
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part, None)
    except (Exception, SystemExit) as error:
        raise CommandError(f"`import {module}` fails: {type(error).__name__}: {error}") from None
    if inspect.isclass(function) or not callable(function):
        what = "is not there" if function is None else f"is a {type(function).__name__}"
        raise CommandError(f"{module}:{name} {what}: name a function, or a method: Class.method")
    return function, folder


def _arguments(function: Callable) -> list[Argument]:
    """Those without a default."""
    try:
        try:
            parameters = inspect.signature(function, eval_str=True).parameters.values()
        except NameError:  # an annotation that is imported for type checkers alone
            parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise CommandError(f"Python cannot tell the parameters of the function ({error})") from None
    open_ended = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = (each for each in parameters if each.default is each.empty and each.kind not in open_ended)
    return [Argument(each, value_for(each.annotation)) for each in needed]


def value_for(annotation: Any) -> Any:
    """A value of the type, of an array its shape and dtype alone; `UNKNOWN` where the annotation says too little.

    jaxtyping's annotations are known by their `dim_str` and `dtypes`, which it documents for readers like this one.
    """
    if isinstance(annotation, type) and annotation in _NUMBERS:
        return _NUMBERS[annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        values = map(value_for, typing.get_args(annotation))
        return next((each for each in values if each is not UNKNOWN), UNKNOWN)
    if not (hasattr(annotation, "dim_str") and hasattr(annotation, "dtypes")):
        return UNKNOWN
    import jax  # the user's module has it

    dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple | list) else _DTYPES  # else it is any
    dtype = next((each for each in _DTYPES if each in dtypes), dtypes[0])
    sizes = [_size(word) for word in annotation.dim_str.split()]
    if None in sizes or (dtype == "prng_key" and sizes):
        return UNKNOWN
    return jax.random.key(0) if dtype == "prng_key" else jax.ShapeDtypeStruct([n for n in sizes if n != ANY], dtype)


def _size(word: str) -> int | None:
    """One dimension of `dim_str`; `ANY` number of them, or None for one that is computed from others."""
    word = word.rpartition("=")[2].lstrip("#?")
    if word.isdecimal():
        return int(word)
    if word.startswith(("*", "...")):
        return ANY
    return SIZE if word.isidentifier() else None


def _carried(function: Callable, needed: list[Argument]) -> tuple[int, str]:
    """How many of the first outputs are like the first arguments, as of a train state; and what tracing raises."""
    import jax  # the user's module has it

    arrays = {place: each.value for place, each in enumerate(needed) if hasattr(each.value, "dtype")}

    def with_arrays(arrays: dict[int, Any]) -> Any:
        values = [arrays.get(place, each.value) for place, each in enumerate(needed)]
        pairs = list(zip(needed, values, strict=True))
        keywords = {each.keyword: value for each, value in pairs if each.keyword}
        return function(*(value for each, value in pairs if not each.keyword), **keywords)

    try:
        outputs = jax.eval_shape(with_arrays, arrays)
    except Exception as error:
        return 0, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    carry = 0
    for output in outputs if type(outputs) in (tuple, list) else [outputs]:
        value = None if carry not in arrays or needed[carry].keyword else arrays[carry]
        if value is None or getattr(output, "shape", None) != value.shape or output.dtype != value.dtype:
            break
        carry += 1
    return carry, ""


def _test(module: str, name: str, file: str, needed: list[Argument], carry: int) -> str:
    source = "".join(f"        {each.keyword and f'{each.keyword}='}{each.source},  # {each}\n" for each in needed)
    imports = (("import jax\n", "jax.random"), ("import jax.numpy as jnp\n", "jnp.zeros"))
    imported = "".join(line for line, used in imports if used in source)
    unknown = any(each.value is UNKNOWN for each in needed)
    source += _CARRY if unknown else f"        carry={carry},\n" if carry else ""
    owner, dot, method = name.partition(".")
    # Pytest would take an imported test_step for a test.
    alias = f"the_{owner}" if owner in _TAKEN or owner.lower().startswith("test") else owner
    text = _TEMPLATE + (_FILL_IN if unknown else "")
    return text.format(
        module=module,
        function=name,
        name=name.replace(".", "_"),
        file=file,
        step=f"{alias}{dot}{method}",
        imported=owner if alias == owner else f"{owner} as {alias}",
        imports=imported,
        arguments=source,
    )
