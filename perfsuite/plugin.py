"""pytest's hooks and the fixtures. It imports neither jax nor numpy: an idle plugin must not slow a session down.

What only perf tests need is imported where they need it. `tests/integration/test_idle.py` lists all that an idle
session imports: each module takes about half a millisecond of it.
Hooks: https://docs.pytest.org/en/stable/reference/reference.html#hooks
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.options import HERE, SKIP_REASON, Options, add_options, asks_for_perf, marker_arguments, read_options

if TYPE_CHECKING:  # imports jax
    from perfsuite.fixture import Perf

_OPTIONS = pytest.StashKey[Options]()

_ERRORS = "perfsuite.measure.errors"
_LIBRARIES = {"jax", "jaxlib", "equinox", "flax", "optax", "perfsuite", "contextlib"}
"""Tracebacks leave their frames out where perfsuite raises from inside JAX, or at the end of a block of the test: the
message says everything they would."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)  # before any conftest is imported
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    if asks_for_perf(early_config.known_args_namespace):
        from perfsuite.processes import LAUNCH, Launch  # an idle session does without it

        early_config.stash[LAUNCH] = Launch.of(early_config, args)


@pytest.hookimpl(tryfirst=True)  # before any plugin is configured
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.perf_again:
        from perfsuite.session.fresh import prepare  # only a process that measures again needs it

        prepare(config, Path(config.option.perf_again))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "perf(tolerance=..., seconds=..., quiet=...): a performance test, run with --perf. tolerance: how much worse "
        "than its baseline a ratio or time may be (0.05 is 5 %). seconds: most time for one gate. quiet: under "
        "pytest-xdist, run it when all workers have ended, as a test that perfsuite times.",
    )
    options = config.stash[_OPTIONS] = read_options(config)
    if options.active:
        from perfsuite.processes import LAUNCH, Launch  # an idle session does without it

        if LAUNCH not in config.stash:  # a conftest named this plugin, too late for the hook above
            config.stash[LAUNCH] = Launch.of(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    options = config.stash[_OPTIONS]
    if options.active and not config.option.collectonly:
        from perfsuite.measure.compiler_stderr import compilers_silenced  # an idle session does without it

        with compilers_silenced():
            from perfsuite.hooks.gating import start  # imports jax

        start(config, options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "perf_target" not in metafunc.fixturenames:
        return
    for marker in metafunc.definition.iter_markers("parametrize"):
        names = marker.args[0] if marker.args else marker.kwargs.get("argnames", ())
        if "perf_target" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return  # the test chose its targets itself
    targets = metafunc.config.stash[_OPTIONS].targets
    metafunc.parametrize("perf_target", targets or [None], ids=targets or [HERE], indirect=True)


@pytest.hookimpl(tryfirst=True)  # before -m, which has to see the marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = config.stash[_OPTIONS]
    skip = pytest.mark.skip(reason=SKIP_REASON)
    others = []
    for item in items:
        if "perf" in getattr(item, "fixturenames", ()) and item.get_closest_marker("perf") is None:
            item.add_marker("perf")
        if item.get_closest_marker("perf") is None:
            others.append(item)
            continue

        marker_arguments(item)
        if not options.active:
            item.add_marker(skip)
    if options.only and others:
        items[:] = [item for item in items if item.get_closest_marker("perf") is not None]
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest makes its report of it
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, pytest.TestReport, object]:
    """Leave the libraries' frames out of the traceback of a recompilation or a transfer; --full-trace has them."""
    error = call.excinfo
    module = "" if error is None else type(error.value).__module__
    if error is not None and module == _ERRORS and not item.config.option.fulltrace:
        # Not by `ExceptionInfo.traceback`, which pytest builds again from these when it cuts its own frames off.
        entry = error.tb
        while entry.tb_next is not None:
            if _is_of_library(entry.tb_next.tb_frame.f_globals):
                entry.tb_next = entry.tb_next.tb_next
            else:
                entry = entry.tb_next
    report = yield
    report.perfsuite_says_why = module.startswith("perfsuite.")  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Leave perfsuite's messages out of pytest's short summary, which comes next: they stand above it."""
    for report in terminalreporter.stats.get("failed", ()) if config.option.tbstyle != "no" else ():
        if getattr(report, "perfsuite_says_why", False):
            if isinstance(report.longrepr, str):
                report.longrepr = None
            else:
                report.longrepr.reprcrash = None


def _is_of_library(names: dict) -> bool:
    module = str(names.get("__name__", ""))
    return module.partition(".")[0] in _LIBRARIES and not module.startswith("perfsuite.workloads.")


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> "Perf":
    """Measure JAX code: `perf.warm`, `perf.no_compiles`, `perf.time`, `perf.compare`, `perf.host_calls` and more.

    Using it marks the test `perf`. See `perfsuite.fixture.Perf`.
    """
    if not request.config.stash[_OPTIONS].active:
        pytest.skip(SKIP_REASON)  # the fixture was asked for while the test ran, so that collection could not see it
    if getattr(getattr(request.node, "obj", None), "is_hypothesis_test", False):
        pytest.fail(
            "perf measures a test's body once, and Hypothesis runs it many times: measure in a test of its own, with "
            "@pytest.mark.parametrize for the inputs, or an input that a @given test found to be the slow one",
            pytrace=False,
        )
    from perfsuite.hooks.gating import perf_of  # imports jax

    return perf_of(request)


@pytest.fixture(scope="session")
def perf_size(request: pytest.FixtureRequest) -> str:
    """The size asked for with --perf-size, "small" or "full": for fixtures that build workloads."""
    return request.config.stash[_OPTIONS].size


@pytest.fixture
def perf_target(request: pytest.FixtureRequest) -> str | None:
    """The device to compile for: each test runs once for every target of the ini option perf_targets.

    None, the present device, where no target is named.
    """
    if not hasattr(request, "param"):
        pytest.fail("perf_target must be an argument of the test or of its fixtures, to be seen while collecting")
    return request.param


@pytest.fixture
def compile_counter():
    """Count or forbid compilations in any test, with or without --perf.

    `with compile_counter.forbid(): ...` raises `RecompilationError` for a trace, lowering or compile inside, and
    `with compile_counter.count() as counted: ...` counts them.
    """
    from perfsuite.measure.compiles import compiles  # imports jax

    with compiles.observe():
        yield compiles
