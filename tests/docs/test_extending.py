"""docs/extending.md, followed: a distribution with an instrument of its own measures, saves a baseline, and fails a regression."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from support.markdown_blocks import DOCS, blocks, difference

from perfsuite.instruments import base
from perfsuite.measure.errors import MeasurementError

PAGE = blocks((DOCS / "extending.md").read_text(encoding="utf-8"))
FILES = {block.file: block.text for block in PAGE if block.file}


@pytest.fixture
def run(pytester, monkeypatch):
    """A function that runs pytest in a process that has the installed distribution of the page."""
    uv = pytest.importorskip("uv", reason="uv builds the distribution").find_uv_bin()
    for name, text in FILES.items():
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(text, encoding="utf-8")
    install = [uv, "pip", "install", "--offline", "--no-deps", "--python", sys.executable, "--target", "installed", "."]
    subprocess.run(install, check=True, capture_output=True, text=True)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path / "installed"))
    return lambda *options: pytester.runpytest_subprocess(*options, "test_step.py")


def test_the_instrument_of_the_page_saves_and_gates(run, pytester):
    run("--perf-save").assert_outcomes(passed=1)
    run("--perf", "--perf-strict").assert_outcomes(passed=1)
    (message,) = (block.text for block in PAGE if block.language == "text")
    test = FILES["test_step.py"].replace("(x + 1,)", "(x + 1, x + 2)")
    over_its_limit = (
        "\n\ndef test_limit(perf: OutputBytes):\n    perf.output_bytes(call(step, jnp.ones(256)), limit=2000)\n"
    )
    (pytester.path / "test_step.py").write_text(test + over_its_limit, encoding="utf-8")
    result = run("--perf")
    result.assert_outcomes(failed=2)
    assert (missing := difference(message, result.stdout.str())) is None, f"{missing}\n{result.stdout}"
    result.stdout.fnmatch_lines(
        [
            "*BudgetExceeded: step output bytes is 2,048 bytes, +2.4 % over the budget of 2,000 bytes",
            "*most of it: output 0",
        ]
    )


def offer(monkeypatch, *entries):
    """Have other distributions offer methods: pairs of a method and the value of its entry point."""

    class Offered(EntryPoint):
        dist = SimpleNamespace(name="other", version="2.0")

    foreign = {}
    for method, value in entries:
        foreign.setdefault(method, []).append(Offered(method, value, base.GROUP))
    monkeypatch.setattr(base, "foreign_methods", lambda: foreign)


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("time", ["json:loads"], "perf.time is an instrument of perfsuite and of other 2.0: "),
        ("bytes", ["json:loads", "json:dumps"], "perf.bytes is an instrument of other 2.0 and of other 2.0: "),
        (
            "bytes",
            ["no.module:Bytes"],
            "perf.bytes: no.module:Bytes of other 2.0 cannot be imported: ModuleNotFoundError",
        ),
        ("bytes", ["json:Bytes"], "perf.bytes: json:Bytes of other 2.0 cannot be imported: AttributeError"),
        (
            "bytes",
            ["json:JSONEncoder"],
            "perf.bytes: json:JSONEncoder of other 2.0 must be a subclass of Instrument with ",
        ),
        (
            "bytes",
            ["perfsuite.instruments:Instrument"],
            "must be a subclass of Instrument with the method 'bytes', got ",
        ),
    ],
)
def test_an_instrument_that_cannot_be_used_is_an_error_that_names_its_distribution(
    monkeypatch, method, values, message
):
    offer(monkeypatch, *((method, value) for value in values))
    with pytest.raises(MeasurementError) as raised:
        base.instrument_class(method)
    assert message in str(raised.value)
    assert base.instrument_class("host_calls").__name__ == "HostInstrument"
