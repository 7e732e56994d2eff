"""Fresh processes that are like those of other machines: what a session asks of them, and what they hand over."""

import os
import re
from types import SimpleNamespace

import pytest

from perfsuite.measure.errors import MeasurementError
from perfsuite.processes import rerun
from perfsuite.processes.handover import Request, read_values
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session.child_modes import Rerunning
from perfsuite.session.mode import Elsewhere
from perfsuite.session.modes import Gating
from perfsuite.session.session import Deferred, PerfSession


def session():
    return SimpleNamespace(group=None, cache=None)


def asked(mode, item):
    here = lambda given: [os.getcwd(), dict(given)]
    return mode.seen_elsewhere(Elsewhere(item, "cache_key", here, processes=3, given={"folder": "x"}))


@pytest.fixture
def processes(monkeypatch, request):
    """Fresh processes that give these in turn, values or why there are none; what was asked of each."""

    def give(*values):
        coming, seen = iter(values), []

        def values_of(config, made):
            seen.append(made)
            value = next(coming)
            if isinstance(value, str):
                raise ProcessFailed(value)
            return value

        monkeypatch.setattr(rerun, "values_of", values_of)
        return seen

    return give


def test_each_process_is_asked_for_the_same(processes, request):
    seen = processes(1, 2, 3)
    assert asked(Gating(session()), request.node) == [1, 2, 3]
    assert [made.process for made in seen] == [0, 1, 2]
    assert all((made.metric, made.given) == ("cache_key", {"folder": "x"}) for made in seen)
    assert all(made.test == request.node.nodeid for made in seen)


def test_a_process_that_hands_nothing_over_is_said(processes, request):
    seen = processes(1, "it ended with SIGKILL")
    said = r"^perf\.cache_key: fresh process 2 of 3 handed nothing over: it ended with SIGKILL$"
    with pytest.raises(MeasurementError, match=said):
        asked(Gating(session()), request.node)
    assert len(seen) == 2


def test_a_process_hands_over_what_it_sees_in_other_folders_and_ends_the_test(tmp_path, request):
    before = os.getcwd()
    mode = Rerunning(session(), tmp_path, Request("test", "test", "cache_key", process=1, given={"folder": "y"}))
    with pytest.raises(pytest.skip.Exception, match="handed over"):
        asked(mode, request.node)
    assert os.getcwd() == before
    assert read_values(tmp_path) == [str(tmp_path / "elsewhere"), {"folder": "y"}]


@pytest.mark.parametrize(
    "asks",
    [
        Request("test", "test"),
        Request("test", "test", "cache_key"),
        Request("test", "test", "cache_key #2", process=0),
    ],
)
def test_a_process_for_another_metric_starts_no_others(tmp_path, request, asks):
    assert asked(Rerunning(session(), tmp_path, asks), request.node) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("need", ["processes", "quiet"])
def test_a_worker_of_xdist_leaves_what_it_cannot_measure_to_the_main_process(need):
    worker = SimpleNamespace(in_worker=True, group=None)
    said = re.escape("perf.it: other processes share the machine under pytest-xdist; run it with `-n 0`")
    with pytest.raises(Deferred, match=said):
        PerfSession.check(worker, "perf.it", (need, "alone"))
    PerfSession.check(SimpleNamespace(in_worker=False, group=None), "perf.it", (need,))
