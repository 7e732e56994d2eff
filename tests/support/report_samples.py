"""Reports for tests: by hand, and as Hypothesis strategies."""

import dataclasses

import hypothesis.strategies as st

from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.model import OUTCOMES, Header, Report
from perfsuite.session.records import (
    Block,
    ProgramRecord,
    TestRecord,
    Timeline,
    TraceRecord,
)

HEADER = Header(
    project="project",
    date="2026-01-02T03:04:05+00:00",
    seconds=12.5,
    exit_status=0,
    device="cpu",
    environment=Environment("cpu", 8, "a processor", "3.11.7", "0.10.2", "0.10.2"),
    perfsuite="0.1",
    size="small",
    baselines="baselines",
)


def metric(name: str = "step flops", value: float = 2, verdict: Verdict = Verdict.PASS, **fields) -> Result:
    """A count that passed, but for what is given: fields of a metric and of a result."""
    of_metric = {"unit": "FLOP", "kind": "count"}
    of_metric |= {key: fields.pop(key) for key in Metric.__dataclass_fields__ if key in fields}
    return Result("", Metric(name, value, **of_metric), verdict, **fields)


def perf_test(name: str = "test_step", *results: Result, **fields) -> TestRecord:
    """A test that passed, but for what is given."""
    id = name if "::" in name else f"test_it.py::{name}"
    values = {"passed": True, "metrics": (), "file": "test_it.py", "line": 3, "seconds": 0.5, **fields}
    return TestRecord(id, results=tuple(dataclasses.replace(each, test=id) for each in results), **values)


def timeline(name: str = "product", **fields) -> Timeline:
    """A loop with one operation, one of unknown time, then one beside a gather that the device waits for: 100 us."""
    blocks = (
        Block("loops", f"loop {name}", name, 0.0, 60.0),
        Block("device", name, name, 0.0, 20.0, runs=3, limit="compute", basis=name),
        Block("device", f"unknown {name}", name, 60.0, None),
        Block("device", name, name, 60.0, 80.0, limit="memory", basis=name),
        Block("collectives", f"gather {name}", name, 70.0, 100.0, 20.0, limit="link", basis=name),
    )
    return Timeline(**{"us": 100.0, "waiting_us": 20.0, "blocks": blocks, **fields})


def estimated_program(name: str = "step", **fields) -> ProgramRecord:
    """A program with estimates that differ from those of its baseline."""
    gone = Block("device", f"gone {name}", name, 0.0, 50.0)
    timelines = {"timeline": timeline(name), "timeline_before": timeline(name, us=50.0, waiting_us=0.0, blocks=(gone,))}
    return ProgramRecord(name, name, name, name, 1, False, **{"titles": (), "compared": True, **timelines, **fields})


_texts = st.text(max_size=12)
_numbers = st.floats(allow_nan=False)
_counts = st.integers(0, 2**70)


@st.composite
def _intervals(draw) -> Interval:
    low, high = sorted((draw(_numbers), draw(_numbers)))
    return Interval(low, high)


def _tuples(of: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(of, max_size=2).map(tuple)


def _maybe(of: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | of


_names = st.text("ab|`<> \N{SNOWMAN}", min_size=1).filter(str.strip)
_metrics = st.builds(
    Metric,
    name=_names,
    value=st.floats(allow_nan=False, allow_infinity=False) | _counts,
    unit=_names,
    kind=st.sampled_from(["size", "ratio", "time", "info"]),
    better=st.sampled_from(["lower", "higher"]),
    interval=_maybe(_intervals()),
    samples=_maybe(_counts),
    detail=_maybe(st.dictionaries(_texts, _counts, max_size=2)),
)
_results = st.builds(
    Result,
    test=_texts,
    metric=_metrics,
    verdict=st.sampled_from(Verdict),
    source=st.sampled_from([None, "budget", "baseline"]),
    limit=_maybe(_numbers),
    baseline=_maybe(_numbers | _counts),
    note=_texts,
    cause=_texts,
)
_programs = st.builds(
    ProgramRecord,
    _texts,
    _maybe(_texts),
    _texts,
    _texts,
    _counts,
    st.booleans(),
    _tuples(_texts),
    st.booleans(),
    _tuples(_texts),
)
_traces = st.builds(
    TraceRecord,
    *[_texts] * 2,
    _counts,
    _tuples(
        st.builds(
            Metric,
            st.sampled_from(["step trace device", "\N{SNOWMAN}"]),
            st.integers(0, 9),
            st.just("us"),
            st.just("info"),
        )
    ),
    _tuples(st.tuples(_texts, _numbers, _numbers)),
    _texts,
)
_tests = st.builds(
    TestRecord,
    test=_texts,
    passed=st.booleans(),
    results=_tuples(_results),
    metrics=st.just(()),
    outcome=st.sampled_from(OUTCOMES),
    message=_texts,
    programs=_tuples(_programs),
    traces=_tuples(_traces),
    blamed=_maybe(st.tuples(_texts, _counts)),
)
reports = st.builds(
    Report,
    header=st.builds(
        Header,
        seconds=_numbers,
        environment=st.builds(Environment, _texts, st.integers(1, 9), *[_texts] * 4),
    ),
    tests=_tuples(_tests),
    notes=_tuples(_texts),
)
"""Any report: its numbers may be infinite, its texts anything but half a surrogate pair."""
