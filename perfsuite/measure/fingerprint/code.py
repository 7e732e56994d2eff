"""What a function's code does, as text: the same for the same source in other lines, of another file or folder."""

import dataclasses
import dis
import functools
import hashlib
from types import CodeType
from typing import Any

_SKIPPED = frozenset({"NOP", "CACHE", "EXTENDED_ARG", "RESUME"})
"""What the compiler adds for its own ends. A NOP keeps the line of a statement that does nothing."""
_HAS_DOCSTRING = 0x4000000
"""A flag of Python 3.13."""
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})


@dataclasses.dataclass(frozen=True)
class Code:
    """`digest` stands for all that the code does. The names are those that it, and the code inside it, looks up.

    `inner` are the functions that are defined inside.
    """

    digest: str
    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]
    inner: tuple[CodeType, ...]


@functools.lru_cache(maxsize=4096)
def read(code: CodeType) -> Code:
    """Read the instructions of a code object. Docstrings, comments and the names of local variables do not count."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _SKIPPED]
    places = {each.offset: place for place, each in enumerate(instructions)}
    inner = [read(each) for each in _inner(code)]

    def named(opnames: frozenset[str], found: str) -> tuple[str, ...]:
        own = [str(each.argval) for each in instructions if each.opname in opnames]
        return tuple(dict.fromkeys([*own, *(name for each in inner for name in getattr(each, found))]))

    lines = [_header(code)]
    lines += [f"{each.opname} {_argument(each, places)}" for each in instructions]
    return Code(
        hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest(),
        named(_READS, "globals"),
        named(_ATTRIBUTES, "attributes"),
        named(frozenset({"IMPORT_NAME"}), "imports"),
        tuple(code for each in _inner(code) for code in (each, *read(each).inner)),
    )


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _header(code: CodeType) -> str:
    arguments = code.co_argcount + code.co_kwonlyargcount
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING
    # The table has offsets in the bytecode and no lines.
    table = code.co_exceptiontable.hex()
    return f"{counts} {code.co_varnames[:arguments]} {code.co_freevars} {code.co_cellvars} {table}"


def _argument(instruction: dis.Instruction, places: dict[int, int]) -> str:
    if instruction.opcode in dis.hasconst:
        return _constant(instruction.argval)
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        # What is skipped may have been the target: then the next one that is not.
        return str(min((place for offset, place in places.items() if offset >= instruction.argval), default=-1))
    if instruction.opcode in dis.hasname:
        return instruction.argrepr
    if instruction.opcode in dis.hasfree:
        return str(instruction.argval)
    return str(instruction.arg)


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"code {read(value).digest}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"  # its order is that of the hash seed
    return f"{type(value).__name__} {value!r}"
