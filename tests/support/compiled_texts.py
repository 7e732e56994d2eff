"""Texts of compiled programs read to facts: those kept in `hlo/`, small ones written by hand, and what is compiled here."""

import gzip
import importlib
import pathlib
import sys

import jax
import jax.numpy as jnp

from perfsuite.measure.call import Call, call
from perfsuite.measure.hlo.module import HloModule, packed, read_module
from perfsuite.measure.program.program import Origin, Program
from perfsuite.measure.program.program_reader import read_program
from support.compilers import skip_without_compiler
from support.programs import program_of

FOLDER = pathlib.Path(__file__).parent / "hlo"
sys.path.insert(0, str(FOLDER))
PROGRAMS = importlib.import_module("programs")
TEXTS = {path.name.removesuffix(".txt.gz"): gzip.decompress(path.read_bytes()).decode() for path in FOLDER.glob("*.gz")}
LINES = (FOLDER / "programs.py").read_text().splitlines()

ORIGIN = Origin(
    label="step",
    target=None,
    device_kind="a device",
    partitions=1,
    slices=1,
    compiler="a compiler",
    cached=False,
    lower_seconds=0.5,
    compile_seconds=2.0,
    memory_bytes=None,
    rates=None,
)
MEMORY = {
    "argument_size_in_bytes": 1000,
    "output_size_in_bytes": 300,
    "alias_size_in_bytes": 200,
    "temp_size_in_bytes": 50,
    "generated_code_size_in_bytes": 7,
}


def proto(text: str) -> bytes:
    """The proto of an HLO text, by XLA's own parser."""
    try:  # jaxlib has no public parser, and only tests write HLO by hand
        from jaxlib._hlo import hlo_module_from_text
    except ImportError:  # before 0.10.2
        from jaxlib._jax import hlo_module_from_text

    return hlo_module_from_text(text).as_serialized_hlo_module_proto()


def parse(text: str) -> HloModule:
    """The module of an HLO text."""
    return read_module(packed(proto(text)))


def read(text: str, *, origin=ORIGIN, memory=MEMORY, donations=()) -> Program:
    """The facts in a text, with made-up metrics of memory."""
    return read_program(origin, parse(text), memory, donations)


def module(entry: str, *before: str, header: str = "") -> str:
    """A text with an entry of these lines, of which the last is the root, and the computations before it.

    The entry has the parameters %a, %b and %c, of shape f32[8,16].
    """
    lines = [f"%{name} = f32[8,16]{{1,0}} parameter({number})" for number, name in enumerate("abc")]
    lines += [line.strip() for line in entry.strip().splitlines()]
    lines[-1] = "ROOT " + lines[-1]
    body = "".join(f"  {line}\n" for line in lines)
    return f"HloModule m{header}\n\n" + "".join(f"{one.strip()}\n\n" for one in before) + f"ENTRY %main {{\n{body}}}\n"


def computation(name: str, *lines: str) -> str:
    """A computation of these lines, of which the last is the root."""
    *first, last = lines
    return f"%{name} {{\n" + "".join(f"  {line}\n" for line in first) + f"  ROOT {last}\n}}"


def spec(*shape: int, dtype=jnp.float32, sharding=None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def jitted(function, *arguments, **options) -> Call:
    """The call of a function under `jax.jit`."""
    return call(jax.jit(function, **options), *arguments)


def compile_here_or_for(target, function, *arguments) -> Program:
    """The facts of a function under `jax.jit`; skips the test where there is no compiler for the target."""
    if target is not None:
        skip_without_compiler(target)
    return program_of(jitted(function, *arguments), target)
