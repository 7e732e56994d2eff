"""What another process hands over may be anything: it is read with the right types, or refused in clear words.

Each reader gets what perfsuite itself writes with parts of it changed, and bytes of no meaning.
`PERFSUITE_FUZZ=10000 pytest tests/properties/test_handed_over.py` tries more of it.
"""

import contextlib
import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.against import environments, runs
from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.notes import NOTES_FILE, Notes, Place, StageNote, TimeNote
from perfsuite.against.sides import Side, SideFailed
from perfsuite.against.tree import _folder_of
from perfsuite.bisecting import releases
from perfsuite.bisecting.found import Step
from perfsuite.bisecting.kept import Kept
from perfsuite.bisecting.metric import of_step
from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_format import render
from perfsuite.instruments.compiling.cache import _held
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.imports import imports
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey
from perfsuite.measure.serialise import from_json, made, plain
from perfsuite.measure.targets import target_compiler
from perfsuite.measure.targets.target_available import TargetError
from perfsuite.measure.targets.target_compiler import CompileFailed, CompilerOutput
from perfsuite.measure.targets.target_worker import HLO, RESULT
from perfsuite.measure.targets.targets import target
from perfsuite.processes import handover
from perfsuite.processes.handover import Request, Values
from perfsuite.starting.project import StartError
from perfsuite.starting.target import Parameter, Target, _read
from properties.edits import EXAMPLES, contents, misshapen, outcome

fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
V5E = target("tpu-v5e")
KEY = ProgramKey("step", "a1", {"computation": "b2"}, {"computation": "a module"}, "module @step")
OUTPUT = {"cost": {"flops": 2.0}, "memory": {"temp_size_in_bytes": 8}, "compile_seconds": 0.5, "compiler": "TFRT"}
METRICS = [
    Metric("step ratio", 1.5, "x", "ratio", interval=Interval(1.4, float("inf")), samples=30, slowed=1.2),
    Metric("step calls", 7, "calls", "count", detail={"f": 7}, places={"f": "m.py:1"}, at_least=("while at m.py:2",)),
]


def fits(kind, value) -> bool:
    """True; raises where a field of a value has another type than it is declared with."""
    made(kind, plain(value))
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


@fuzzed
@given(content=contents(plain({"test_it.py::test_step": METRICS})))
def test_metrics_of_a_fresh_process_are_read_or_refused(content):
    with folder_with(metrics_json=content) as folder:
        metrics, error = outcome(ValueError, handover.read_metrics, folder)
    assert str(error) if error else fits(dict[str, list[Metric]], metrics)


@fuzzed
@given(content=contents(plain(Values([{"a": 1}], ["jax"]))))
def test_values_of_a_fresh_process_are_read_or_refused(content):
    with folder_with(values_json=content) as folder:
        values, error = outcome(ValueError, handover.read_values, folder)
    assert str(error) if error else fits(Values, values)


@fuzzed
@given(key=misshapen(plain(KEY)), programs=misshapen(plain([CachedProgram(KEY, "step", True, "")])))
def test_keys_of_a_fresh_process_are_read_or_refused(key, programs):
    for kind, value in ((ProgramKey, key), (list[CachedProgram], programs)):
        held, error = outcome(MeasurementError, _held, kind, value, "perf.cache_key")
        assert "perf.cache_key: what a fresh process" in str(error) if error else fits(kind, held)


@fuzzed
@given(content=contents("the test was skipped there"))
def test_a_reason_is_one_text(content):
    with folder_with(reason_json=content) as folder:
        assert isinstance(handover.read_reason(folder), str)


@fuzzed
@given(content=contents(plain(Request("a::b", "/a::b", budget={"ratio": 1.5}, baseline=1.25, packages=["jax"]))))
def test_a_request_is_read_or_refused(content):
    with folder_with(request_json=content) as folder:
        request, error = outcome(ValueError, handover.read_request, folder)
    assert str(error) if error else fits(Request, request)


_FAILED = {"error": {"stage": "compile", "type": "JaxRuntimeError", "message": "RESOURCE_EXHAUSTED: of vmem"}}


@fuzzed
@given(content=contents(OUTPUT) | contents(_FAILED), text=st.just(b"HloModule a") | st.binary(max_size=20))
def test_the_result_of_a_compilers_process_is_read_or_refused(content, text):
    with folder_with(**{RESULT.replace(".", "_"): content, HLO: text, "log": b"words"}) as folder:
        entry, error = outcome(TargetError, target_compiler._entry, V5E, folder, 0, folder / "log")
    if error:
        assert "the compiler for tpu-v5e" in str(error)
    else:
        _looked_at(entry)


@fuzzed
@given(entry=misshapen({**OUTPUT, "hlo": "HloModule a", "unsplit_hlo": "b"}) | misshapen(_FAILED))
def test_a_kept_result_of_another_shape_is_none(entry):
    if isinstance(entry, dict):  # see `targets.cache.read`
        _looked_at(entry)


def _looked_at(entry: dict) -> None:
    result = target_compiler._result(V5E, entry, cached=True)
    assert result is None or isinstance(result, CompileFailed) or fits(CompilerOutput, result)


_SEEN = {
    "parameters": [["x", "jnp.zeros((8,))", "Float[Array, '8']"]],
    "jitted": True,
    "carry": 1,
    "problem": "",
    "file": "/a/train.py",
    "needed": "/a",
    "error": "",
}


@fuzzed
@given(content=contents(_SEEN) | contents({"error": "the module has no step"}))
def test_what_init_sees_of_a_function_is_read_or_refused(content):
    with folder_with(seen_json=content) as folder:
        seen, error = outcome(StartError, _read, folder / "seen.json", "a.train", "step", "ended with status 0: ")
    if error:
        assert str(error).startswith("a.train:step: ")
    else:
        assert isinstance(seen, Target)
        assert all(fits(Parameter, each) for each in seen.parameters)
        assert (type(seen.jitted), type(seen.carry), type(seen.problem)) == (bool, int, str)


_IMPORTED = {
    "modules": [{"name": "b.c", "bytes": 10, "importer": "a", "place": "a.py:3"}],
    "backends": [{"platform": "cpu", "place": "a.py:4"}],
    "moved": "",
    "error": "",
}


@fuzzed
@given(content=contents(_IMPORTED))
def test_what_a_module_imports_is_read_or_refused(content):
    output, error = outcome(ValueError, from_json, imports._Output, content)
    assert error or fits(imports._Output, output)


_NOTES = Notes(
    tests={"a::b": ("passed", "")},
    uncollected={"c.py": "SyntaxError"},
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
    side = Side("base", VirtualEnvironment(Path("/"), (), {}, ()), Path("/"))
    with folder_with(**{NOTES_FILE.replace(".", "_"): content, "output.txt": b"words"}) as folder:
        run, error = outcome(SideFailed, runs._run_that_ended, side, folder, 0, 60.0, 1.0)
    assert "imported" in str(error) if error else fits(Notes, run.notes)
    assert error or not run.problem or "ended with status 0; the end of its output: words" in run.problem


_STEPS = (
    Step("a1", "good", 3.0, "calls", device="cpu", packages={"jax": "0.10.2"}),
    Step("b2", "bad", 4.5, "us", interval=Interval(1.1, 1.2), baselines={"cpu": render(Baselines("cpu"))}),
)


@functools.cache
def kept_steps() -> tuple[str, dict]:
    """The name and the content of a file of steps."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Path(folder), {"metric": "step"})
        for each in _STEPS:
            kept.add(each)
        assert Kept(Path(folder), {"metric": "step"}).steps == {"a1": _STEPS[0], "b2": _STEPS[1]}
        return kept.path.name, json.loads(kept.path.read_bytes())


@fuzzed
@given(data=st.data())
def test_kept_steps_are_read_with_their_baselines_or_made_again(data):
    name, steps = kept_steps()
    with folder_with(**{name.replace(".", "_"): data.draw(contents(steps))}) as folder:
        kept = Kept(folder, {"metric": "step"})
    assert all(step.id == id and fits(Step, step) for id, step in kept.steps.items())
    for step in kept.steps.values():
        of_step(step)


_MARKER = {"key": "k", "specs": ["jax==0.10.1"], "packages": {"jax": "0.10.1"}, "contradictions": ["a needs b"]}


@fuzzed
@given(content=contents(_MARKER))
def test_an_environment_with_an_odd_marker_is_made_again(content):
    with folder_with(**{"perfsuite-environment_json": content}) as folder:
        found = environments._read(folder, ["jax==0.10.1"], "k")
    assert found is None or fits(VirtualEnvironment, found)


@fuzzed
@given(content=contents({"url": "file:///a/b", "dir_info": {"editable": True}}))
def test_an_odd_address_of_an_editable_install_is_none(content):
    found = _folder_of(content.decode("utf-8", errors="replace"))
    assert found is None or found.is_absolute()


_FILES = [
    {"filename": "a-1.0-py3-none-any.whl", "requires-python": ">=3.10", "yanked": False},
    {"filename": "a-1.1.tar.gz", "yanked": "broken"},
]


@fuzzed
@given(content=contents({"meta": {"api-version": "1.1"}, "files": _FILES}))
def test_a_list_of_releases_is_read_or_refused(content):
    files, _ = outcome(ValueError, releases._listed, content)
    for version, file in files or ():
        assert releases._is_version(version)
        assert releases._for_this_python(file.get("requires-python") or "") in (True, False)
