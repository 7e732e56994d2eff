"""`judge.judge`: which file a metric belongs to, and what a save makes of the files. `test_targets_end_to_end` runs it all."""

import dataclasses
import subprocess

import pytest

from perfsuite.gate import environment
from perfsuite.gate.baseline import Entry, Revision
from perfsuite.gate.baseline_file import BaselineError, load, save
from perfsuite.gate.budget import Budget
from perfsuite.gate.environment import Environment, target_environment
from perfsuite.gate.limits import Limits
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.measure.targets import target_available
from perfsuite.measure.targets.target_available import TargetUnavailable
from perfsuite.options import Options
from perfsuite.session import judge as judge_module
from perfsuite.session.fresh import gating
from perfsuite.session.judge import CollectedTests, Judge, split_parameters
from perfsuite.session.records import TestRecord
from perfsuite.session.session import PerfSession

CPU = Environment("cpu", 8, "Xeon", "3.11.7", "0.10.2", "0.10.2")
TPU = Environment("TPU v5 lite", 4, "Xeon", "3.11.7", "0.10.2", "0.10.2", libtpu="0.0.42")
TEST = "test_a.py::test_step"
REPORTED = Entry(104.7, "ms", "time", "reported", source="a lab note")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """The judge of a session on a device of one's choice."""

    def start(present=CPU, *targets, save=True, strict=(), size="small", allow_missing=False):
        monkeypatch.setattr(judge_module, "present_environment", lambda: present)
        monkeypatch.setattr(judge_module, "installed", lambda package: "0.0.42")
        options = Options(
            active=True,
            only=False,
            save=save,
            strict=strict,
            size=size,
            seconds=1.0,
            baselines=tmp_path,
            targets=targets,
            targets_from="--perf-target",
            allow_missing=allow_missing,
        )
        return Judge(options)

    return start


def flops(value=100, target=None, name="step flops", **fields):
    return Metric(name, value, "FLOP", "size", target=target, **fields)


def ran(*metrics, test=TEST, passed=True):
    return TestRecord(test, passed, (), metrics)


def lost(judge, *metrics, unknown=(), test=TEST):
    """What a test that made these metrics lacks, by verdict."""
    return [(result.verdict, result.metric.title) for result in judge.absent(test, metrics, dict(unknown))]


def saved(judge, *records, collected=None):
    """Save what these tests made: the actions, by file and metric."""
    results, errors = judge.save(records, collected or CollectedTests())
    assert errors == []
    return {
        result.path.name: {f"{change.test}: {change.name}": change.action for change in result.changes}
        for result in results
    }


def entry(path, name="step flops", test=TEST):
    return load(path).get(test, name)


# Whose file.


def test_a_metric_of_a_target_goes_to_the_file_of_the_target_as_compiled(start, tmp_path):
    actions = saved(start(), ran(flops(), flops(90, "tpu-v5e")))
    assert actions == {name: {f"{TEST}: step flops": "create"} for name in ("cpu.json", "tpu-v5e.json")}
    here, there = entry(tmp_path / "cpu.json"), entry(tmp_path / "tpu-v5e.json")
    assert (here.value, here.provenance, here.environment) == (100, "measured", CPU)
    assert (there.value, there.provenance) == (90, "compiled")
    assert there.environment == target_environment(CPU, "TPU v5 lite", libtpu="0.0.42")


def test_a_metric_is_judged_against_the_file_of_its_own_device(start):
    saved(start(), ran(flops(), flops(90, "tpu-v5e")))
    judge = start(save=False)
    assert judge.judge(TEST, flops(100), None).verdict == Verdict.PASS
    assert judge.judge(TEST, flops(100, "tpu-v5e"), None).verdict == Verdict.FAIL
    assert judge.judge(TEST, flops(90, "tpu-v5e"), None).verdict == Verdict.PASS
    assert judge.judge(TEST, flops(90, "tpu-v6e"), None).verdict == Verdict.NEW


def test_a_ratio_is_limited_by_its_budget_and_by_the_baseline_of_the_present_device(start):
    def cycles(value, target=None):
        return Metric("step cycles", value, "x", "ratio", target=target)

    saved(start(), ran(cycles(2.0), cycles(4.0, "tpu-v5e")))
    limits = start(save=False).limits(Budget(overhead_us=3.0), TEST, "step cycles", None)
    assert (limits.budget, limits.baseline) == ({"overhead_us": 3.0}, pytest.approx(4.0))
    assert start(save=False).limits(Budget(), TEST, "another", None) == Limits()
    assert start(save=True).limits(Budget(ratio=2), TEST, "step cycles", None) == Limits({"ratio": 2}, 4.0)


def test_a_target_that_is_not_known_is_an_error(start):
    with pytest.raises(ValueError, match="tpu-v5e"):
        start().judge(TEST, flops(target="abacus"), None)


# Another host, another day.


def test_a_save_on_another_host_changes_nothing_in_the_file_of_a_target(start, tmp_path):
    saved(start(), ran(flops(target="tpu-v5e")))
    before = (tmp_path / "tpu-v5e.json").read_bytes()
    other = dataclasses.replace(CPU, processor="EPYC", python="3.13.1", device_count=1)
    assert saved(start(other), ran(flops(target="tpu-v5e"))) == {"tpu-v5e.json": {f"{TEST}: step flops": "keep"}}
    assert (tmp_path / "tpu-v5e.json").read_bytes() == before


def test_what_a_target_measured_or_a_document_reported_is_not_trimmed_here(start, tmp_path):
    measured = Entry(3.0, "ms", "time", "measured", TPU)
    save(tmp_path / "tpu-v5e.json", {TEST: {"step": measured, "step 3": REPORTED}})
    judge = start()
    assert saved(judge, ran(flops(target="tpu-v5e"))) == {"tpu-v5e.json": {f"{TEST}: step flops": "create"}}
    assert lost(start(save=False), flops(target="tpu-v5e")) == []
    # Nor when the test is deleted.
    assert saved(start(), collected=collected("test_a.py::test_other", of_targets=())) == {
        "tpu-v5e.json": {f"{TEST}: step flops": "trim"}
    }
    assert load(tmp_path / "tpu-v5e.json").metrics == {TEST: {"step": measured, "step 3": REPORTED}}


def test_a_metric_of_a_target_that_its_test_no_longer_makes_is_missing_and_trimmed(start):
    saved(start(), ran(flops(target="tpu-v5e"), flops(target="tpu-v5e", name="step peak")))
    assert lost(start(save=False), flops(target="tpu-v5e")) == [(Verdict.MISSING, "step peak @ tpu-v5e")]
    actions = saved(start(), ran(flops(target="tpu-v5e")))
    assert actions == {"tpu-v5e.json": {f"{TEST}: step flops": "keep", f"{TEST}: step peak": "trim"}}


def test_a_test_that_no_longer_compiles_for_a_target_at_all_leaves_nothing_in_its_file(start):
    saved(start(), ran(flops(), flops(target="tpu-v5e")), ran(flops(target="tpu-v5e"), test="test_a.py::test_other"))
    assert lost(start(save=False), flops()) == [(Verdict.MISSING, "step flops @ tpu-v5e")]
    assert saved(start(), ran(flops())) == {
        "cpu.json": {f"{TEST}: step flops": "keep"},
        "tpu-v5e.json": {f"{TEST}: step flops": "trim"},
    }


def test_a_test_that_did_not_pass_loses_nothing(start):
    saved(start(), ran(flops(), flops(target="tpu-v5e")))
    assert saved(start(CPU, "tpu-v5e"), ran(passed=False)) == {"cpu.json": {}, "tpu-v5e.json": {}}


def test_files_that_are_not_there_and_stay_so_are_not_mentioned(start, tmp_path):
    assert saved(start(CPU, "tpu-v6e"), ran(flops(target="tpu-v5e"))).keys() == {"tpu-v5e.json"}
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["tpu-v5e.json"]


# Tests that run once for every target.


def collected(*tests, of_targets=(TEST,), without_perf=()):
    files = {test.partition("::")[0] for test in tests}
    return CollectedTests(None, files, set(tests), set(of_targets), set(without_perf))


def test_a_session_for_other_targets_keeps_what_tests_made_for_the_rest(start):
    here, v5e, v6e = (f"{TEST}[{name}]" for name in ("here", "tpu-v5e", "tpu-v6e"))
    saved(
        start(),
        ran(flops(), test=here),
        ran(flops(), flops(target="tpu-v5e"), test=v5e),
        ran(flops(target="tpu-v6e"), test=v6e),
    )
    actions = saved(start(CPU, "tpu-v5e"), ran(flops(), flops(target="tpu-v5e"), test=v5e), collected=collected(v5e))
    assert actions == {name: {f"{v5e}: step flops": "keep"} for name in ("cpu.json", "tpu-v5e.json")}
    assert saved(start(), ran(flops(), test=here), collected=collected(here)) == {
        "cpu.json": {f"{here}: step flops": "keep"}
    }


def test_a_deleted_test_is_trimmed_from_the_file_of_its_target(start):
    kept, gone, renamed = f"{TEST}[tpu-v5e]", "test_a.py::test_gone[tpu-v5e]", f"{TEST}[dropout-tpu-v5e]"
    metric = flops(target="tpu-v5e")
    saved(start(), *(ran(metric, test=test) for test in (kept, gone, renamed)))
    actions = saved(start(CPU, "tpu-v5e"), ran(metric, test=kept), collected=collected(kept))
    assert actions == {
        "tpu-v5e.json": {
            f"{kept}: step flops": "keep",
            f"{gone}: step flops": "trim",
            f"{renamed}: step flops": "trim",
        }
    }


def test_a_deleted_test_is_trimmed_from_the_file_of_a_target_that_no_other_test_compiles_for(start):
    saved(start(), ran(flops()), ran(flops(target="tpu-v5e"), test="test_a.py::test_gone"))
    assert saved(start(), ran(flops()), collected=collected(TEST, of_targets=())) == {
        "cpu.json": {f"{TEST}: step flops": "keep"},
        "tpu-v5e.json": {"test_a.py::test_gone: step flops": "trim"},
    }


def test_metrics_of_the_other_size_stay(start):
    saved(start(size="full"), ran(flops(900, "tpu-v5e")))
    saved(start(), ran(flops(target="tpu-v5e")))
    assert saved(start(), ran(flops(target="tpu-v5e"))) == {"tpu-v5e.json": {f"{TEST}: step flops": "keep"}}
    assert start(save=False, size="full").judge(TEST, flops(900, "tpu-v5e"), None).verdict == Verdict.PASS
    assert start(save=False).judge(TEST, flops(900, "tpu-v5e"), None).verdict == Verdict.FAIL


def test_a_tests_parameters_are_what_stands_in_its_brackets():
    assert split_parameters("dir[1]/test_a.py::TestB::test_c[x[0]-y]") == ("dir[1]/test_a.py::TestB::test_c", "x[0]-y]")
    assert split_parameters("test_a.py::test_c") == ("test_a.py::test_c", "")


# The target is the present device.


def test_on_the_target_itself_what_was_measured_is_recorded(start, tmp_path):
    judge = start(TPU)
    assert judge.path_of("tpu-v5e") == judge.path_of(None)
    for order in ((flops(90), flops(91, "tpu-v5e")), (flops(91, "tpu-v5e"), flops(90))):
        assert saved(start(TPU), ran(*order)).keys() == {"tpu-v5e.json"}
        assert entry(tmp_path / "tpu-v5e.json").provenance == "measured"
        assert entry(tmp_path / "tpu-v5e.json").value == 90


def test_the_target_and_a_host_without_it_agree_on_one_entry(start, tmp_path):
    saved(start(), ran(flops(90, "tpu-v5e")))
    assert start(TPU, save=False).judge(TEST, flops(90), None).verdict == Verdict.PASS
    assert start(TPU, save=False).judge(TEST, flops(92), None).verdict == Verdict.FAIL
    assert saved(start(TPU), ran(flops(90))) == {"tpu-v5e.json": {f"{TEST}: step flops": "update"}}
    # From now on it is measured, and a compiled metric that agrees adds nothing.
    assert saved(start(), ran(flops(90, "tpu-v5e"))) == {"tpu-v5e.json": {f"{TEST}: step flops": "keep"}}
    assert entry(tmp_path / "tpu-v5e.json").provenance == "measured"


def test_on_the_target_itself_compiled_metrics_are_saved_and_trimmed_too(start):
    saved(start(), ran(flops(target="tpu-v5e"), flops(target="tpu-v5e", name="step peak")))
    judge = start(TPU, "tpu-v5e")
    assert saved(judge, ran(flops(target="tpu-v5e"))) == {
        "tpu-v5e.json": {f"{TEST}: step flops": "keep", f"{TEST}: step peak": "trim"}
    }


# A file that cannot be used.


def test_a_damaged_file_of_a_target_that_is_named_stops_the_session(start, tmp_path):
    (tmp_path / "tpu-v5e.json").write_text("{")
    with pytest.raises(BaselineError, match=r"tpu-v5e\.json:1: "):
        start(CPU, "tpu-v5e")


def test_a_damaged_file_is_refused_when_it_is_first_used_and_the_other_is_saved(start, tmp_path):
    (tmp_path / "tpu-v5e.json").write_text("{")
    judge = start()
    with pytest.raises(BaselineError, match=r"tpu-v5e\.json:1: "):
        judge.judge(TEST, flops(target="tpu-v5e"), None)
    results, (error,) = judge.save([ran(flops(), flops(target="tpu-v5e"))], CollectedTests())
    assert [result.path.name for result in results] == ["cpu.json"]
    assert str(error).startswith(f"{tmp_path / 'tpu-v5e.json'}:1: ")
    assert (tmp_path / "tpu-v5e.json").read_text() == "{"


def test_a_damaged_file_that_the_session_does_not_use_is_nobodys_business(start, tmp_path):
    (tmp_path / "nvidia-h100.json").write_text("{")
    judge = start()
    assert saved(judge, ran(flops())) == {"cpu.json": {f"{TEST}: step flops": "create"}}
    assert lost(start(save=False), flops()) == []


# Recorded metrics that are not made any more.


def test_a_metric_that_cannot_be_made_here_is_missing_only_where_a_compiler_is_not_installed(start, monkeypatch):
    host_calls = Metric("step host calls", 3, "calls", "count")
    saved(start(), ran(host_calls, flops(target="tpu-v5e"), flops()))
    elsewhere = start(dataclasses.replace(CPU, python="3.13.1"), save=False)
    monkeypatch.setattr(target_available, "check_available", no_compiler)
    assert lost(elsewhere) == [
        (Verdict.MISSING, "step flops"),
        (Verdict.NOT_COMPARABLE, "step host calls"),
        (Verdict.MISSING, "step flops @ tpu-v5e"),
    ]
    alone = start(dataclasses.replace(CPU, process_count=2), save=False, allow_missing=True)
    assert {verdict for verdict, _ in lost(alone)} == {Verdict.NOT_COMPARABLE}


def no_compiler(platform):
    raise TargetUnavailable("libtpu is not installed")


def test_a_metric_that_cannot_be_made_here_stays_when_the_rest_is_saved(start, monkeypatch):
    seconds = [Metric("compile seconds", 3.0, "s", "info", target=target) for target in (None, "tpu-v5e")]
    saved(start(), ran(flops(), flops(target="tpu-v5e"), *seconds))
    monkeypatch.setattr(target_available, "check_available", no_compiler)
    judge = start()
    results = tuple(judge.absent(TEST, [flops()], {}))
    record = dataclasses.replace(ran(flops()), results=results)
    assert saved(judge, record) == {
        "cpu.json": {f"{TEST}: step flops": "keep", f"{TEST}: compile seconds": "trim"},
        "tpu-v5e.json": {f"{TEST}: step flops": "keep", f"{TEST}: compile seconds": "keep"},
    }


def test_what_an_instrument_cannot_tell_is_not_missing_and_says_why(start):
    saved(start(), ran(flops()))
    judge = start(save=False)
    (result,) = judge.absent(TEST, [], {("step flops", None): "the compiler does not tell it"})
    assert (result.verdict, result.incomparable) == (Verdict.NOT_COMPARABLE, "the compiler does not tell it")


def test_info_and_what_a_document_reports_is_never_missing(start, tmp_path):
    seconds = Metric("compile seconds", 3.0, "s", "info")
    saved(start(), ran(seconds))
    save(tmp_path / "cpu.json", {TEST: {"step 3": REPORTED}})
    assert lost(start(save=False)) == []


def test_a_test_is_gone_where_its_file_was_collected_whole_or_where_it_measures_nothing(start):
    others = ["test_a.py::test_gone", "test_b.py::test_elsewhere", "test_a.py::test_plain"]
    saved(start(), ran(flops()), *(ran(flops(), test=test) for test in others))
    judge = start(save=False)
    assert judge.gone(CollectedTests()) == []
    tests = collected(TEST, "test_a.py::test_plain", without_perf=["test_a.py::test_plain"])
    assert [(result.verdict, result.test) for result in judge.gone(tests)] == [
        (Verdict.MISSING, "test_a.py::test_gone"),
        (Verdict.MISSING, "test_a.py::test_plain"),
    ]
    assert start().gone(collected(TEST)) == [], "a save removes them, and says so"


def test_a_test_is_gone_with_its_file_where_the_folder_was_collected_whole(start, tmp_path):
    saved(start(), *(ran(flops(), test=f"{file}::test_step") for file in ("tests/test_a.py", "tests/b/test_b.py")))
    judge = start(save=False)
    assert judge.gone(CollectedTests(tmp_path, {"other", "tests/test_c.py"})) == [], "another folder, and one file"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").touch()  # it was left out (--ignore), or could not be imported
    assert [result.test for result in judge.gone(CollectedTests(tmp_path, {"tests"}))] == [
        "tests/b/test_b.py::test_step"
    ]


def test_calls_that_changed_places_are_said(start):
    def calls(first, second):
        return [Metric(first, 3, "calls", "count", id="host_calls"), Metric(second, 3, "calls", "count", id="#2")]

    saved(start(), ran(*calls("fast host calls", "slow host calls")))
    judge = start(save=False)

    def moved(*names):
        return [judge.judge(TEST, metric, None).recorded_as for metric in calls(*names)]

    assert moved("slow host calls", "fast host calls") == ["fast host calls", "slow host calls"]
    assert moved("fast host calls", "slow host calls") == ["", ""]
    assert moved("faster host calls", "slow host calls") == ["", ""], "a new name is no other call's"


# A save.


def test_a_save_judges_nothing_that_it_records(start):
    saved(start(), ran(flops(100, name="worse"), flops(100, name="better"), flops(name="lost")))
    judge = start(save=True)
    made = [flops(200, name="worse"), flops(50, name="better"), flops(7, name="new")]
    assert {judge.judge(TEST, metric, None).verdict for metric in made} == {Verdict.RECORDED}
    assert lost(judge, *made) == []
    assert {change.partition(": ")[2]: action for change, action in saved(judge, ran(*made))["cpu.json"].items()} == {
        "worse": "update", "better": "update", "new": "create", "lost": "trim",
    }  # fmt: skip


def test_a_save_says_from_what_worsening_on_a_gate_of_samples_fails(start):
    """The samples of 2.5 to 3.5 x, of which the quickest blocks give 2 x, fail where even these are over the limit."""
    noisy = Metric("a ratio", 3.0, "x", "ratio", interval=Interval(2.5, 3.5), quickest=2.0)
    rate = Metric("b rate", 3.0, "steps/s", "time", "higher", interval=Interval(2.5, 4.5))
    alone = Metric("c ratio", 3.0, "x", "ratio")
    record = dataclasses.replace(ran(noisy, rate, alone, flops()), tolerances={"a ratio": 0.5})

    def reaches():
        judge = start()
        saved, _ = judge.save([record], CollectedTests())
        return [(each.metric.name, each.limit, each.share, each.noisy) for each in judge.reaches([record], saved)]

    assert reaches() == [("b rate", 1.5, 2.0, False), ("a ratio", 4.5, 1.25, False)]
    # A gate of samples as these fails from there on.
    assert [slowed(start(save=False), noisy, 2.25 * times) for times in (0.99, 1.01)] == [Verdict.PASS, Verdict.FAIL]
    # What the save keeps is the baseline still.
    record = dataclasses.replace(record, metrics=(dataclasses.replace(noisy, value=2.6, quickest=1.0),))
    assert reaches() == [("a ratio", 4.5, 3.5, True)]


def slowed(judge, metric, times):
    """The verdict of a metric whose samples all take so many times as long, beside none that spread."""
    quickest = metric.quickest * times
    exact = dataclasses.replace(metric, value=quickest, interval=Interval(quickest, quickest), quickest=quickest)
    return judge.judge(TEST, exact, 0.5).verdict


def test_a_save_accepts_what_got_worse_and_no_verdict_is_a_failure(start):
    saved(start(), ran(flops(100)))
    assert start().judge(TEST, flops(200), None).verdict == Verdict.RECORDED
    assert start(save=False).judge(TEST, flops(200), None).failed


# What was checked out.


def test_the_commit_is_recorded_where_a_test_changed(start, tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "code").mkdir()
    (tmp_path / "code/step.py").write_text("1")
    (tmp_path / "baselines").mkdir()
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD")

    def revisions(*records):
        judge = start()
        judge.options = judge.options._replace(baselines=tmp_path / "baselines")
        saved(judge, *records)
        return load(tmp_path / "baselines/cpu.json").revisions

    other = ran(flops(), test="test_a.py::test_other")
    assert revisions(ran(flops()), other) == dict.fromkeys([TEST, other.test], Revision(first))
    git("add", "-A")
    git("commit", "-qm", "second")
    second = git("rev-parse", "HEAD")
    assert revisions(ran(flops(7)), other) == {TEST: Revision(second), other.test: Revision(first)}
    # Now the baselines differ from the commit, which makes nothing dirty.
    assert revisions(ran(flops(8)), other)[TEST] == Revision(second)
    (tmp_path / "code/step.py").write_text("2")
    assert revisions(ran(flops(9)), other)[TEST] == Revision(second, dirty=True)


def test_without_git_no_commit_is_recorded(start, tmp_path):
    saved(start(), ran(flops()))
    assert load(tmp_path / "cpu.json").revisions == {}


# What this machine lacks.


def test_what_is_not_available_skips_the_test_and_fails_it_under_strict(start):
    with pytest.raises(pytest.skip.Exception, match="libtpu is not installed"):
        PerfSession(start(), gating()).unavailable("libtpu is not installed")
    with pytest.raises(pytest.fail.Exception, match=r"libtpu is not installed \(--perf-strict\)"):
        PerfSession(start(save=False, strict=("new",)), gating()).unavailable("libtpu is not installed")


# The way to another process.


def test_a_record_survives_the_way_to_another_process():
    compiled = flops(target="tpu-v5e", detail={"copy": 1}, places={"copy": "model.py:42 in attention"})
    failed = Result("test_a.py::test_step", compiled, Verdict.FAIL)
    record = dataclasses.replace(ran(compiled, flops()), results=(failed,))
    assert from_plain(TestRecord, plain(record)) == record


def test_a_package_of_a_test_is_recorded_and_named_when_its_version_changes(start, monkeypatch):
    calls = Metric("step host calls", 3, "calls", "count")
    monkeypatch.setattr(environment, "installed", lambda package: f"{package} 1.0")
    saved(start(), dataclasses.replace(ran(calls), packages=("hypothesis",)))
    monkeypatch.setattr(environment, "installed", lambda package: f"{package} 2.0")
    worse = start(save=False).judge(TEST, dataclasses.replace(calls, value=4), None)
    assert worse.versions == ("hypothesis hypothesis 1.0 -> hypothesis 2.0",)
