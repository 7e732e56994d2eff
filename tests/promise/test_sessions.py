"""The scripts that run real sessions: what they build, how they count, and that they can find a false alarm."""

import math

import jax
import pytest

from promise.calls import BUILDS, UNLIKE
from promise.sessions import EXPERIMENTS, Experiment, Outcome, read, table, verdicts, write

MAKERS = {maker.__name__: maker for pair in UNLIKE.values() for maker in pair} | BUILDS


@pytest.mark.parametrize("name", MAKERS)
def test_two_calls_of_one_function_share_nothing_that_was_built(name):
    first, second = MAKERS[name](), MAKERS[name]()
    assert first.fn is not second.fn
    arrays = [[leaf for leaf in jax.tree.leaves(made.args) if isinstance(leaf, jax.Array)] for made in (first, second)]
    assert not set(map(id, arrays[0])) & set(map(id, arrays[1]))
    for made in (first, second):
        jax.block_until_ready(made.run())
        jax.block_until_ready(made.run())


QUICK = ["--sessions=1", "--seconds=1"]


def test_a_gate_that_fails_is_found_and_only_what_the_folder_lacks_is_run(tmp_path, capsys):
    experiment, arguments = EXPERIMENTS["python"], [*QUICK, f"--folder={tmp_path}"]
    outcomes = experiment.main(arguments)
    assert [(each.name, each.verdict, each.machine) for each in outcomes] == [
        ("ten times", "fail", "quiet"),
        ("once", "pass", "quiet"),
    ]
    assert all(each.ratio > 0 and each.seconds > 0 for each in outcomes)
    assert "quiet: 1 of 1 sessions failed" in capsys.readouterr().out
    write(tmp_path / "others", outcomes[:1])
    (tmp_path / "others").replace(tmp_path / "outcomes.jsonl")
    (kept, again) = experiment.main(arguments)
    assert (kept, again.name) == (outcomes[0], "once")
    report = tmp_path / "report" / "report.json"
    report.unlink()
    assert experiment.main(arguments) == [kept, again]
    assert not report.exists()


def test_baselines_are_saved_once_and_gate_the_sessions_after(tmp_path, monkeypatch):
    """Of one comparison of the ten."""
    name, arguments = "python/product", [*QUICK, f"--folder={tmp_path}"]
    monkeypatch.setitem(EXPERIMENTS, "another_day", Experiment({name: UNLIKE[name]}))
    (outcome,) = EXPERIMENTS["another_day"].main(arguments)
    assert outcome.verdict != "new"
    (file,) = (tmp_path / "baselines").glob("*.json")
    before = file.read_bytes()
    EXPERIMENTS["another_day"].main([*arguments, "--sessions=2"])
    assert file.read_bytes() == before


def report(outcome, *results):
    test = {"test": "test_promise.py::test[memory]", "outcome": outcome, "message": "", "seconds": 1.5}
    of = [{"title": "memory ratio to ready", "metric": {"value": 1.062}, "verdict": verdict} for verdict in results]
    return {"tests": [{**test, "results": [*of, {"title": "memory overhead to ready", "verdict": "info"}]}]}


@pytest.mark.parametrize(
    ("outcome", "results", "verdict"),
    [
        ("passed", ["pass", "new"], "pass"),
        ("passed", ["inconclusive"], "inconclusive"),
        ("failed", ["pass", "fail"], "fail"),
        ("passed", ["not comparable"], "not comparable"),
    ],
)
def test_the_verdict_is_read_from_the_report_of_the_session(outcome, results, verdict):
    assert verdicts(report(outcome, *results), 3, "busy") == [Outcome(3, "busy", "memory", verdict, 1.062, 1.5)]


@pytest.mark.parametrize("broken", [("error",), ("failed", "pass"), ("passed", "fail")])
def test_a_test_that_failed_for_another_reason_is_no_outcome(broken):
    with pytest.raises(RuntimeError, match="memory"):
        verdicts(report(*broken), 1, "quiet")


def test_the_table_counts_verdicts_and_the_scatter_between_sessions(tmp_path):
    outcomes = [
        Outcome(1, "quiet", "memory", "fail", math.exp(0.01), 2.0),
        Outcome(2, "quiet", "memory", "pass", math.exp(-0.01), 4.0),
        Outcome(1, "quiet", "sort", "new", 2.0, 1.0),
        Outcome(1, "busy", "memory", "inconclusive", 1.0, 1.0),
    ]
    for outcome in outcomes:
        write(tmp_path / "kept", [outcome])
    assert read(tmp_path / "kept") == outcomes
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(outcomes).splitlines()[2:]]
    assert rows == [
        ["memory", "quiet", "2", "1", "0", "0", "1", "0", "1", "1.4 %", "3.0"],
        ["sort", "quiet", "1", "0", "0", "0", "0", "1", "2", "", "1.0"],
        ["memory", "busy", "1", "0", "1", "0", "0", "0", "1", "", "1.0"],
    ]
