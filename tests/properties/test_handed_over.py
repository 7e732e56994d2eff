"""What another process hands over may be anything: it is read with the right types, or refused in clear words.

Each reader gets what perfsuite itself writes with parts of it changed, and bytes of no meaning.
`PERFSUITE_FUZZ=10000 pytest tests/properties/test_handed_over.py` tries more of it.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.against import runs
from perfsuite.against.notes import NOTES_FILE, Notes, Place, StageNote, TimeNote
from perfsuite.against.sides import Packages, Side, SideFailed
from perfsuite.instruments.cache import _read
from perfsuite.measure import imports
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey
from perfsuite.measure.serialise import from_json, from_plain, plain
from perfsuite.measure.targets import target_compiler
from perfsuite.measure.targets.target_available import TargetError
from perfsuite.measure.targets.target_compiler import CompileFailed, CompilerOutput
from perfsuite.measure.targets.target_worker import RESULT
from perfsuite.measure.targets.targets import target
from perfsuite.session.fresh import Request
from perfsuite.session.modes import Answer
from properties.edits import EXAMPLES, contents, misshapen, outcome

fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
V5E = target("tpu-v5e")
KEY = ProgramKey("step", "a1", {"computation": "b2"}, "module @step")
OUTPUT = {
    "memory": {"temp_size_in_bytes": 8},
    "compile_seconds": 0.5,
    "compiler": "TFRT",
    "hlo": "a",
}
METRICS = [
    Metric("step ratio", 1.5, "x", "ratio", interval=Interval(1.4, float("inf")), samples=30, quickest=1.2),
    Metric("step calls", 7, "calls", "count", detail={"f": 7}, places={"f": "m.py:1"}, at_least=("while at m.py:2",)),
]


def fits(kind, value) -> bool:
    """True; raises where a field of a value has another type than it is declared with."""
    from_plain(kind, plain(value))
    return True


@contextlib.contextmanager
def folder_with(**files: bytes) -> Iterator[Path]:
    """A folder with these files, in which nothing may change."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            Path(name, file.replace("_json", ".json")).write_bytes(content)
        before = {path: path.read_bytes() for path in Path(name).iterdir()}
        yield Path(name)
        assert {path: path.read_bytes() for path in Path(name).iterdir()} == before


_IMPORTED = {
    "modules": [{"name": "b.c", "importer": "a", "place": "a.py:3"}],
    "backends": [{"platform": "cpu", "place": "a.py:4"}],
    "name": "a",
}
READERS = {
    "metrics of a fresh process": (
        plain(Answer(METRICS)), "answer.json",
        lambda folder: from_json(Answer, (folder / "answer.json").read_bytes()), Answer,
    ),
    "values of a fresh process": (
        plain(Answer(values=[{"a": 1}])), "answer.json",
        lambda folder: from_json(Answer, (folder / "answer.json").read_bytes()), Answer,
    ),
    "a request": (
        plain(Request("a::b", "/a::b", budget={"ratio": 1.5}, process=1)), "request.json",
        lambda folder: from_json(Request, (folder / "request.json").read_bytes()), Request,
    ),
    "what a module imports": (
        _IMPORTED, "imported.json",
        lambda folder: from_json(imports.Imports, (folder / "imported.json").read_bytes()), imports.Imports,
    ),
}  # fmt: skip
"""What perfsuite writes, into which file, how it is read, and the type of that."""


@pytest.mark.parametrize("name", READERS)
@fuzzed
@given(data=st.data())
def test_what_another_process_writes_is_read_or_refused(name, data):
    written, file, read, kind = READERS[name]
    with folder_with(**{file.replace(".", "_"): data.draw(contents(written))}) as folder:
        value, error = outcome(ValueError, read, folder)
    assert error or fits(kind, value)


@fuzzed
@given(key=misshapen(plain(KEY)), programs=misshapen(plain([CachedProgram(KEY, "step", True, "")])))
def test_keys_of_a_fresh_process_are_read_or_refused(key, programs):
    for kind, value in ((ProgramKey, key), (list[CachedProgram], programs)):
        held, error = outcome(MeasurementError, _read, kind, value, "perf.cache_key")
        assert error or fits(kind, held)


_FAILED = {"error": {"stage": "compile", "type": "JaxRuntimeError", "message": "RESOURCE_EXHAUSTED: of vmem"}}


@fuzzed
@given(content=contents(OUTPUT) | contents(_FAILED))
def test_the_result_of_a_compilers_process_is_read_or_refused(content):
    with folder_with(**{RESULT.replace(".", "_"): content, "log": b"words"}) as folder:
        entry, error = outcome(TargetError, target_compiler._entry, V5E, folder, 0, folder / "log")
    if error:
        assert "the compiler for tpu-v5e" in str(error)
    else:
        _looked_at(entry)


@fuzzed
@given(entry=misshapen({**OUTPUT, "unsplit_hlo": "b"}) | misshapen(_FAILED))
def test_a_kept_result_of_another_shape_is_none(entry):
    if isinstance(entry, dict):  # see `targets.cache.read`
        _looked_at(entry)


def _looked_at(entry: dict) -> None:
    result = target_compiler._result(V5E, entry, cached=True)
    assert result is None or isinstance(result, CompileFailed) or fits(CompilerOutput, result)


_NOTES = Notes(
    tests={"a::b": ("passed", "")},
    stages=[StageNote("a::b", "step", "trace", 2, 0.5, "m.py:3")],
    times=[TimeNote("a::b", "step", 3.5, "us")],
    device="cpu",
    files=["/a.py"],
    path=["/"],
    places={"a::b": {"step": Place("m.py:3", {"f": "m.py:4"}, True, {"code": "a1"})}},
)


@fuzzed
@given(content=contents(plain(_NOTES)))
def test_notes_of_a_side_are_read_or_a_problem(content):
    side = Side("base", Packages({}), Path("/"))
    with folder_with(**{NOTES_FILE.replace(".", "_"): content, "output.txt": b"words"}) as folder:
        run, error = outcome(SideFailed, runs._run_that_ended, side, folder, 0, 60.0, 1.0)
    assert "imported" in str(error) if error else fits(Notes, run.notes)
    assert error or not run.problem or "ended with status 0; the end of its output: words" in run.problem
