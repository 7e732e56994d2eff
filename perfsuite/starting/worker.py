"""Run as a script, in a process of its own: imports a module of the user's, and writes down what its function takes.

What the module prints, starts or ends is this process's, not that of the command.
"""

import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

SIZE = 8
"""Of a dimension that an annotation names and gives no number."""

_ARRAY = re.compile(r"\bjax(?:lib)?\.[\w.]*\bArray\b")
"""jax.Array as Python prints the class: by the module in which it is made."""

_VALUES = {bool: False, int: 1, float: 1.0}
_DTYPES = ("float32", "int32", "bool")
"""The first of these that an annotation allows; else the first that it has."""


class UnusableError(Exception):
    """The target cannot be used; the message says why."""


class Argument(NamedTuple):
    """The source of an argument, and what makes one for tracing: of an array its shape and type alone."""

    source: str
    make: Callable[[], Any]


UNSEEN = Argument("", lambda: None)


def argument_of(annotation: Any) -> Argument:
    """A value of this type; `UNSEEN` where the annotation does not say enough.

    jaxtyping's annotations are known by their `dim_str` and `dtypes`, which it documents for readers like this one.
    """
    if annotation in _VALUES:
        value = _VALUES[annotation]
        return Argument(repr(value), lambda: value)
    if hasattr(annotation, "dim_str") and hasattr(annotation, "dtypes"):
        return array_of(annotation)
    members = typing.get_args(annotation) if _is_union(annotation) else ()
    return next((seen for seen in map(argument_of, members) if seen.source), UNSEEN)


def array_of(annotation: Any) -> Argument:
    """An array of jaxtyping's annotation: `jnp.zeros((32, 8))`."""
    dtypes = annotation.dtypes if isinstance(annotation.dtypes, (tuple, list)) else _DTYPES  # else it is any
    sizes = [size_of(word) for word in annotation.dim_str.split()]
    if None in sizes:
        return UNSEEN
    shape = [size for size in sizes if size]
    if "prng_key" in dtypes:
        return UNSEEN if shape else Argument("jax.random.key(0)", _key)
    dtype = next((each for each in _DTYPES if each in dtypes), dtypes[0])
    written = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(shape)})"
    module = "np" if getattr(annotation.array_type, "__module__", "") == "numpy" else "jnp"
    of_type = "" if (module, dtype) == ("jnp", "float32") else f', "{dtype}"'
    return Argument(f"{module}.zeros({written}{of_type})", lambda: _shaped(tuple(map(int, shape)), dtype))


def _shaped(shape: tuple[int, ...], dtype: str) -> Any:
    import jax  # the user's module has it
    import jax.numpy as jnp

    return jax.ShapeDtypeStruct(shape, jnp.zeros((), dtype).dtype)


def _key() -> Any:
    import jax  # the user's module has it

    return jax.random.key(0)


def size_of(word: str) -> str | None:
    """One dimension of `dim_str`; empty for any number of dimensions, None for one that is computed from others."""
    word = word.rpartition("=")[2].lstrip("#?")
    if word.isdecimal():
        return word
    if word.startswith(("*", "...")):
        return ""
    return str(SIZE) if word.isidentifier() else None


def describe(function: Callable) -> dict[str, Any]:
    """What a perf test of the function needs: its arguments, whether it is jitted, and how many outputs are carried."""
    try:
        parameters = list(_signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UnusableError("Python cannot tell its parameters") from None
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _OPEN]
    if not needed:  # `*args` alone may stand for any, as behind a decorator
        needed = [each for each in parameters if each.kind is each.VAR_POSITIONAL]
    if keywords := [each.name for each in needed if each.kind is each.KEYWORD_ONLY]:
        raise UnusableError(
            f"it needs {' and '.join(keywords)} by keyword: name a function that takes its arguments by position"
        )
    values = {each.name: argument_of(each.annotation) for each in needed}
    seen = {
        "parameters": [[each.name, values[each.name].source, _written(each)] for each in needed],
        "jitted": hasattr(function, "lower"),
        "carry": 0,
        "problem": "",
    }
    if UNSEEN not in values.values():
        try:
            seen["carry"] = carried(function, [each.make() for each in values.values()])
        except Exception as error:
            seen["problem"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return seen


def carried(function: Callable, args: Sequence[Any]) -> int:
    """How many of the first outputs are the first arguments of the next call, as of a train state.

    Traces the function, and runs nothing: what it raises then, it would raise in the test.
    """
    import jax  # the user's module has it

    arrays = [number for number, each in enumerate(args) if hasattr(each, "dtype")]

    def with_arrays(given: Sequence[Any]) -> Any:
        merged = list(args)
        for number, each in zip(arrays, given, strict=True):
            merged[number] = each
        return function(*merged)

    outputs = jax.eval_shape(with_arrays, [args[number] for number in arrays])
    several = list(outputs) if type(outputs) in (tuple, list) else [outputs]
    alike = 0
    for output, arg in zip(several, args, strict=False):
        if not hasattr(arg, "dtype") or _abstract(jax, output) != _abstract(jax, arg):
            break
        alike += 1
    return alike


def _abstract(jax: Any, value: Any) -> Any:
    leaves, structure = jax.tree.flatten(value)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(function: Callable) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (TypeError, ValueError):
        raise
    except Exception:  # an annotation that is imported for type checkers alone
        return inspect.signature(function)


def _written(parameter: inspect.Parameter) -> str:
    """The annotation as people write it; empty without one."""
    if parameter.annotation is parameter.empty:
        return ""
    return _ARRAY.sub("jax.Array", str(parameter).partition(": ")[2].replace("jaxtyping.", ""))


def _is_union(annotation: Any) -> bool:
    import types  # here alone

    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def load(module: str, name: str, given: Iterable[str], further: Iterable[str]) -> tuple[Any, str, str]:
    """The function, the module's file, and the first of the folders `further` that the import needs, or nothing.

    `given` are folders that pytest puts on the path anyway. Raises `UnusableError`.
    """
    sys.path[:0] = given
    importlib.invalidate_caches()
    top = module.partition(".")[0]
    needed = ""
    if importlib.util.find_spec(top) is None:
        needed = next((folder for folder in further if _has(folder, top)), "")
        sys.path[:0] = [needed] if needed else []
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise UnusableError(f"there is no module {error.name}") from None
        raise UnusableError(f"its import fails: {_last_line(error)}") from None
    except (Exception, SystemExit) as error:
        raise UnusableError(f"its import fails: {_last_line(error)}") from None
    if not hasattr(imported, name):
        own = [each for each, value in vars(imported).items() if _of(value, module) and not each.startswith("_")]
        has = f": it has {', '.join(own)}" if own else ", and no other function"
        raise UnusableError(f"the module has no {name}{has}")
    found = getattr(imported, name)
    if inspect.isclass(found) or not callable(found):
        what = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise UnusableError(f"{name} is {what}: name a function")
    return found, getattr(imported, "__file__", None) or "", needed


def _has(folder: str, top: str) -> bool:
    from importlib.machinery import PathFinder  # here alone

    return PathFinder.find_spec(top, [folder]) is not None


def _of(value: Any, module: str) -> bool:
    return callable(value) and not inspect.isclass(value) and getattr(value, "__module__", None) == module


def _last_line(error: BaseException) -> str:
    """The error, with the line that raised it outside of the machinery of imports."""
    said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return said
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
    last = frames[-1] if frames else None
    return f"{said} at {last.filename}:{last.lineno}" if last and last.filename != __file__ else said


def main(module: str, name: str, output: str, given: str, further: str) -> None:
    """Write what is seen of the function to `output`, as JSON; the folders are JSON too."""
    sys.argv[1:] = []
    try:
        function, file, needed = load(module, name, json.loads(given), json.loads(further))
        seen = {**describe(function), "file": file, "needed": needed, "error": ""}
    except UnusableError as error:
        seen = {"error": str(error)}
    with open(output, "w", encoding="utf-8") as written:
        json.dump(seen, written)


if __name__ == "__main__":
    main(*sys.argv[1:])
