"""The main process of pytest-xdist runs each test that waits for it, and says which it could not."""

from types import SimpleNamespace

import pytest

from perfsuite.hooks.workers import MainHooks
from perfsuite.session.judge import CollectedTests


def hooks(config, dist="load"):
    made = SimpleNamespace(getoption={"dist": dist}.get, rootpath=config.rootpath, hook=config.hook)
    return MainHooks(made, SimpleNamespace(collected=CollectedTests()))


@pytest.mark.parametrize(
    ("dist", "test", "own"),
    [
        ("load", "test_a.py::test_b@c", "test_a.py::test_b@c"),
        ("loadgroup", "test_a.py::test_b@c", "test_a.py::test_b"),
        ("loadgroup", "test_a.py::test_b[x@y]", "test_a.py::test_b[x@y]"),
        ("loadgroup", "test_a.py::test_b[x@y]@c", "test_a.py::test_b[x@y]"),
        ("loadgroup", "at@home/test_a.py::test_b", "at@home/test_a.py::test_b"),
    ],
)
def test_a_test_that_no_worker_reported_waits_under_its_own_id(pytestconfig, dist, test, own):
    main = hooks(pytestconfig, dist)
    main.pytest_runtest_logfinish(test)
    assert main.waiting == [own]
    main.pytest_runtest_logreport(SimpleNamespace(nodeid=own))
    assert main.waiting == []


def test_a_worker_that_crashes_hands_nothing_over(pytestconfig):
    main = hooks(pytestconfig)
    main.pytest_testnodedown(SimpleNamespace())
    assert main.session.collected.files == set()
    main.pytest_testnodedown(SimpleNamespace(workeroutput={"perfsuite": {"files": ["test_a.py"]}}))
    assert main.session.collected.files == {"test_a.py"}


@pytest.fixture
def one_waits(pytester):
    """A project in which `test_b` waits for the main process."""
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        from perfsuite.hooks.workers import MainHooks

        def pytest_sessionstart(session):
            main = MainHooks(session.config, None)
            main.pytest_runtest_logfinish("test_a.py::test_b")
            session.config.pluginmanager.register(main)
        """
    )
    return pytester


@pytest.mark.parametrize("arguments", [(), ("-q",)])
def test_tests_that_a_session_leaves_waiting_are_told(one_waits, arguments):
    one_waits.makepyfile(test_a="def test_a(): assert 0\ndef test_b(): pass")
    result = one_waits.runpytest_inprocess("-x", *arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["1 test for a quiet machine did not run: the session ended before"])


def test_a_test_that_the_main_process_cannot_find_is_an_error(one_waits):
    one_waits.makepyfile(test_a="def test_a(): pass")
    result = one_waits.runpytest_inprocess()
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "1 test for a quiet machine: now, in the main process",
            "a worker of pytest-xdist left this test to the main process, which cannot find it: run it with `-n 0`",
        ]
    )
