"""The instructions of a compiled program, with what surrounds them: operands, computation, runs, and source line."""

import dataclasses
import itertools
import os
import re
import site
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from perfsuite.measure.hlo.hlo_module import Frame, Instruction, Module, Shape
from perfsuite.measure.hlo.runs import Runs

_LIBRARIES = tuple(
    {*site.getsitepackages(), site.getusersitepackages()}
    | {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

_COMPREHENSION = re.compile(r"(\.<locals>\.<(listcomp|setcomp|dictcomp|genexpr)>)+$")
"""What Python calls the frame of one. A reader looks for the function around it."""

_LOWERING = os.path.join(Path(__file__).parents[1], "")
"""The package `measure`. What JAX adds when it lowers a call comes from its line that asks JAX to, no one's."""


class Placed(NamedTuple):
    """An instruction, the shapes of its operands, the computation that it is in, and how often that runs."""

    op: Instruction
    operands: tuple[Shape, ...]
    within: str
    runs: int


def placed_in(module: Module, runs: Runs, calls: Callable[[Instruction], Iterable[str]]) -> Iterator[Placed]:
    """The instructions of the entry and of every computation that it reaches by `calls`, each once."""
    reached = {module.entry: None}
    waiting = [module.entry]
    while waiting:
        for op in module.computations[waiting.pop()].instructions:
            new = dict.fromkeys(name for name in calls(op) if name not in reached)
            reached |= new
            waiting += new
    for name in reached:
        computation = module.computations[name]
        shapes = {op.name: op.shapes for op in computation.instructions}
        for op in computation.instructions:
            operands = tuple(shape for operand in op.operands for shape in shapes[operand])
            yield Placed(op, operands, name, runs.times[name])


def bytes_of(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes)


def source_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame outside installed libraries; failing that, the innermost. None where no line is a user's."""
    theirs = list(itertools.takewhile(lambda frame: not frame.file.startswith(_LOWERING), stack))
    found = next((frame for frame in theirs if not frame.file.startswith(_LIBRARIES)), theirs[0] if theirs else None)
    return found and dataclasses.replace(found, function=_COMPREHENSION.sub("", found.function))
