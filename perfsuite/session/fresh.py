"""The fresh process: pytest on one test, which hands back what it measures. Both ends of it, and what they exchange.

Some things are decided once a process, such as where its memory and its programs lie. They are the same for all samples
of that process, and no number of samples averages them out. So a ratio or a time fails a test only where a fresh
process sees it too.

`gating` is the mode of the session that asks. It starts a process like itself, with a folder: the `Request` is in it,
and the `Answer` comes there. In that process `prepare` turns off what another session must not do twice, `rerunning` is
the mode, and `RerunHooks` choose the test and write the answer.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.measure import progress
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.io import write_atomically
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.serialise import from_json, from_plain, plain
from perfsuite.measure.words import plural
from perfsuite.options import options_in_child
from perfsuite.processes import LAUNCH, TASK, Launch, Task, running
from perfsuite.session.modes import MOMENT, Answer, Elsewhere, Mode, Pair
from perfsuite.session.outcomes import Deferred

if TYPE_CHECKING:  # few sessions compare anything; and the fresh process imports these before any conftest
    from perfsuite.gate.limits import Compared, Limits
    from perfsuite.measure.metric import Estimate

AGAIN = "--perf-again"
"""The option, not in --help, that tells a process of the folder with its request."""

STARTING_SECONDS = 60.0
"""What Python, JAX and the imports of a project may take, on top of what was seen of it."""

SLACK = 2.0
"""How many times as long as the session took so far a fresh process may take."""

SLOWER_UNDER_VALGRIND = 50.0
"""How many times as long a process under Valgrind may take."""

_TESTS_OF_A_PROCESS = 9
"""That count instructions: one takes some 10 s, and a process 30 s to start.

The same number on every machine: what ran before in a process changes what Python's interpreter does for one code.
"""

_REQUEST, _ANSWER, _OUTPUT = "request.json", "answer.json", "output.txt"
_LAST_WORDS = 300
"""Characters of what a process wrote last, where that is all that is known of its end."""
_LONGEST_REASON = 500


@dataclasses.dataclass(frozen=True)
class Request:
    """What a fresh process is to measure again.

    `test` is the id of the test, and `argument` what names it on pytest's command line. `metric` is the name of one
    comparison's ratio, which is sampled until the limits of `budget` are settled (`gate.limits.Limits`); None asks for
    all metrics of the test, of which those with the titles `doubtful` are over their limit. `cache` is the folder where
    the facts of programs are kept, None keeps none.

    With `process`, `metric` is that of another instrument, which hands over values of its own in place of metrics:
    `given` is for it, and `process` is the number of the process (`like_another`).

    With `under_valgrind`, the ids of tests of one file, Valgrind runs the process, and it hands over what each of them
    counts.

    `elsewhere` has what other processes handed over for the same test, by metric.
    """

    test: str
    argument: str
    metric: str | None = None
    budget: dict[str, float] = dataclasses.field(default_factory=dict)
    doubtful: list[str] = dataclasses.field(default_factory=list)
    cache: str | None = None
    process: int | None = None
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    under_valgrind: list[str] = dataclasses.field(default_factory=list)
    elsewhere: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


# The session that asks.


def gating(cache: Path | None = None, *, in_worker: bool = False, together: int = 1) -> Mode:
    """Sample until the limits are decided. A broken one counts where a fresh process breaks it too.

    `cache` is the folder where the facts of programs are kept. A worker of pytest-xdist (`in_worker`) leaves what a
    fresh process has to confirm to the main process; of several processes that measure `together` none is started.
    """

    def ask(item: pytest.Item, **asked: Any) -> Answer:
        if together > 1:
            return Answer(failure=f"{together} processes measure together here")
        if in_worker:
            raise Deferred("a ratio or a time over its limit, which a fresh process confirms")
        folder = None if cache is None else str(cache)
        argument = str(item.path) if len(asked.get("under_valgrind", ())) > 1 else argument_of(item)
        values = dict(others.values[item.nodeid])
        return measure_again(item.config, Request(item.nodeid, argument, cache=folder, elsewhere=values, **asked))

    others = _Others(ask)

    def compare(pair: Pair, limits: "Limits") -> "Compared":
        from perfsuite.gate.limits import Compared  # see the top

        compared = Compared(pair.compare(settled=limits.end))
        if not compared.broken(limits):
            return compared
        with progress.waiting(f"{pair.name} is over its limit: comparing again in a fresh process"):
            answer = ask(pair.item, metric=pair.metric, budget=dict(limits.budget))
        if answer.failure:
            return dataclasses.replace(compared, failure=answer.failure)
        ratio, overhead = answer.metrics
        return dataclasses.replace(compared, again=(_estimate(ratio), _estimate(overhead)))

    def all_again(item: pytest.Item, titles: Sequence[str]) -> Answer:
        with progress.waiting(f"{item.nodeid} is over its baseline: measuring again in a fresh process"):
            return ask(item, doubtful=list(titles))

    return Mode(compare, gates=True, measure_again=all_again, elsewhere=others.of)


class _Others:
    """Other processes, and the values that they handed over, by test and by metric. `ask` starts one."""

    def __init__(self, ask: Callable[..., Answer]):
        self._ask = ask
        self.values: defaultdict[str, dict[str, list[Any]]] = defaultdict(dict)

    def of(self, asked: Elsewhere) -> list[Any]:
        """What each process returned. Raises `MeasurementError` where one came to no such metric."""
        values = self.values[asked.item.nodeid]
        if not asked.under_valgrind:
            values[asked.metric] = self._in_each(asked)
        elif asked.metric not in values:
            self._count(asked)
        return values[asked.metric]

    def _in_each(self, asked: Elsewhere) -> list[Any]:
        values = []
        for number in range(asked.processes):
            which = f"fresh process {number + 1} of {asked.processes}"
            with progress.waiting(f"{asked.item.name}: {which} for {asked.metric}"):
                answer = self._ask(asked.item, metric=asked.metric, process=number, given=dict(asked.given))
            if answer.failure:
                raise MeasurementError(f"perf.{asked.metric}: {which} handed nothing over: {answer.failure}")
            values.append(answer.values)
        return values

    def _count(self, asked: Elsewhere) -> None:
        """Have processes under Valgrind count for a test, and for the later ones of its file: they start slowly.

        Without those that had a process: where one did not come to its metric, another for it says why.
        """
        items = asked.item.session.items
        later = [item for item in items[items.index(asked.item) + 1 :] if item.path == asked.item.path]
        others = [item.nodeid for item in later if item.nodeid not in self.values and _names_instructions(item)]
        own = asked.item.nodeid
        for tests in ([own, *others], [own]) if others else ([own],):  # by itself it has a process that says why
            with progress.waiting(f"{asked.item.name}: counting instructions, {plural(len(tests), 'test')}"):
                answer = self._ask(asked.item, metric=asked.metric, process=0, under_valgrind=tests)
            for test in tests:
                self.values[test] |= (answer.values or {}).get(test, {})
            if asked.metric in self.values[own]:
                return
        failure = answer.failure or "the test did not come to it there"
        raise MeasurementError(f"perf.{asked.metric}: the process under Valgrind handed nothing over: {failure}")


def _names_instructions(item: pytest.Item) -> bool:
    """Whether the body of a test has `perf.instructions`, or an argument of that name."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    if code is None:
        return False
    keywords = itertools.chain.from_iterable(each for each in code.co_consts if isinstance(each, tuple))
    return "instructions" in {*code.co_names, *keywords}


def measure_again(config: pytest.Config, request: Request) -> Answer:
    """What a fresh process, like the session of `config`, measures of what `request` asks for.

    Many tests that count instructions are shared out among processes, as many at once as there are processors.
    """
    answers: list[Answer] = []
    parts, processors = _shared_out(request)
    try:
        for start in range(0, len(parts), len(processors)):
            with contextlib.ExitStack() as stack:
                pairs = zip(parts[start:], processors, strict=False)
                waits = [stack.enter_context(_started(config, part, processor)) for part, processor in pairs]
                answers += [answered() for answered in waits]
    except OSError as error:
        return Answer(failure=f"it could not be started ({error})")
    if len(answers) == 1:
        return answers[0]
    values = {test: counts for each in answers for test, counts in (each.values or {}).items()}
    return dataclasses.replace(answers[0], values=values)


def _shared_out(request: Request) -> tuple[list[Request], Sequence[int | None]]:
    """The requests for each process, and the processors to count on."""
    tests = request.under_valgrind
    if not tests:
        return [request], [None]
    starts = range(0, len(tests), _TESTS_OF_A_PROCESS)
    parts = [dataclasses.replace(request, under_valgrind=tests[each : each + _TESTS_OF_A_PROCESS]) for each in starts]
    free = sorted(os.sched_getaffinity(0))
    return parts, random.SystemRandom().sample(free, len(free))  # other sessions count too


@contextlib.contextmanager
def _started(config: pytest.Config, request: Request, processor: int | None) -> Iterator[Callable[[], Answer]]:
    """Start a process, under Valgrind where it gets a processor, and give what waits for its answer."""
    launch = config.stash[LAUNCH]
    with tempfile.TemporaryDirectory(prefix="perfsuite-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_atomically(folder / _REQUEST, json.dumps(plain(request)))
        # This process holds most of a GPU's memory already. JAX's documentation (GPU memory allocation) advises
        # this for processes that share one.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **launch.environment}
        if request.process is not None:
            environment |= environment_of_another(request.process, folder)
        line = command(config, folder)
        seconds = allowed_seconds(launch, len(request.doubtful) * config.option.perf_seconds)
        if processor is not None:
            from perfsuite.measure import instructions  # few tests count them

            line = instructions.under_valgrind(folder, processor) + line
            environment["GLIBC_TUNABLES"] = instructions.MALLOC
            seconds *= SLOWER_UNDER_VALGRIND
        output = folder / _OUTPUT
        end = time.monotonic() + seconds
        with running(line, directory=launch.directory, environment=environment, output=output) as ended:
            yield lambda: _handed_over(folder, ended(max(end - time.monotonic(), 0)))


def allowed_seconds(launch: Launch, sampling: float = 0.0) -> float:
    """How long a fresh process may take for a test: it does some of what this session did, imports and compiling too.

    Beside `sampling`, the seconds for what is in doubt, one that is as fast needs no more than this one took. `SLACK`
    and `STARTING_SECONDS` are for a busier machine, and for what came before this session could look at the clock.
    """
    return STARTING_SECONDS + SLACK * (time.monotonic() - launch.started + sampling)


def argument_of(item: pytest.Item) -> str:
    """What names a test on the command line from any folder: ids are relative to the rootdir, arguments are not."""
    file = item.getparent(pytest.Module)
    if file is None or not item.nodeid.startswith(f"{file.nodeid}::"):
        return item.nodeid
    return f"{file.path}{item.nodeid[len(file.nodeid) :]}"


def command(config: pytest.Config, folder: Path) -> list[str]:
    """The command line: that of this session, so that rootdir, ini file, conftests and plugins are the same.

    Which test is meant is in the request: an id may hold what a command line cannot. What is to be left undone is
    turned off in `prepare`, except what is too late there.
    """
    launch = config.stash[LAUNCH]
    # With pytest's capturing, what a process wrote would end with it when it crashes.
    added = [f"{AGAIN}={folder}", "--capture=no"]
    if getattr(config, "cache", None) is not None:
        added.append(f"--override-ini=cache_dir={folder / 'cache'}")
    if hasattr(config.option, "no_cov"):  # of pytest-cov
        added.append("--no-cov")
    arguments = list(launch.arguments)
    options_end = arguments.index("--") if "--" in arguments else len(arguments)
    return [sys.executable, *launch.flags, "-m", "pytest", *arguments[:options_end], *added, *arguments[options_end:]]


def _handed_over(folder: Path, status: int | None) -> Answer:
    with contextlib.suppress(FileNotFoundError):
        try:
            return from_json(Answer, (folder / _ANSWER).read_bytes())
        except ValueError as error:
            return Answer(failure=f"what it handed back cannot be read ({error})")
    end = "was stopped because its time was up" if status is None else f"ended with {_status(status)}"
    written = (folder / _OUTPUT).read_bytes()[-4 * _LAST_WORDS :].decode(errors="replace")
    last = " ".join(written.split())[-_LAST_WORDS:]
    return Answer(failure=f"it {end}{f'; the last that it wrote: {last}' if last else ''}")


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _estimate(metric: Metric) -> "Estimate":
    from perfsuite.measure.metric import Estimate  # see the top

    return Estimate(metric.value, metric.interval or Interval(-math.inf, math.inf))


# The fresh process.

TURNED_OFF: dict[str, object] = {
    **options_in_child(),
    # pytest
    "pyargs": False,  # the test is named by its path
    "usepdb": False,
    "trace": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,  # which also stands above the ini option
    # pytest-xdist
    "numprocesses": 0,
    "distload": False,
    "dist": "no",
    "tx": [],
    # pytest-benchmark
    "benchmark_json": None,
    "benchmark_save": None,
    "benchmark_autosave": None,
    "benchmark_histogram": None,
    # pytest-html, pytest-json-report, pytest-reportlog, allure-pytest
    "htmlpath": None,
    "json_report": False,
    "report_log": None,
    "allure_report_dir": None,
}
"""What writes (reports, baselines, pytest's cache) or waits for a person, and would do it a second time: values of
options, by pytest's names for them, where the session has them."""


def prepare(config: pytest.Config, folder: Path) -> None:
    """Make the session that of the test asked for, before any plugin is configured.

    Raises `pytest.UsageError` where `folder` has no request.
    """
    try:
        request = from_json(Request, (folder / _REQUEST).read_bytes())
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"perfsuite: no request in {folder} ({error}); the option is for its own use") from None
    for name, value in TURNED_OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    # What was given is emptied when it is first used.
    config.option.basetemp = str(folder / "basetemp")
    config.args = [request.argument]
    config.pluginmanager.register(RerunHooks(folder, request), "perfsuite-again")
    # pytest's cache is an empty one here, so that the user's is left alone; but programs take minutes to compile.
    cache = None if request.cache is None else Path(request.cache)
    config.stash[TASK] = Task(lambda: rerunning(folder, request), cache, cache)


def rerunning(folder: Path, request: Request) -> Mode:
    """Make the one comparison that is asked for, hand it over, and end the test there.

    What comes before it is sampled for a moment only. Where all metrics are asked for, so are comparisons that are not
    in doubt.
    """
    from perfsuite.gate.limits import Compared, Limits  # see the top

    asked_for = 0.0  # seconds

    def seconds(asked: float) -> float:
        nonlocal asked_for
        asked_for = asked
        return asked if request.metric is None else MOMENT

    def compare(pair: Pair, limits: Limits) -> Compared:
        if request.metric is None and pair.metric in request.doubtful:
            # From another day, and only all of the time breaks its limit.
            return Compared(pair.compare(settled=lambda ratio, overhead: False))
        if request.metric != pair.metric:
            return Compared(pair.compare(seconds=0))
        comparison = pair.compare(seconds=asked_for, settled=Limits(request.budget).end)
        answer(folder, Answer(comparison.metrics(pair.name)))
        pytest.skip("the comparison was handed over")

    counts: defaultdict[str, dict[str, list[Any]]] = defaultdict(dict)

    def elsewhere(asked: Elsewhere) -> list[Any] | None:
        if request.under_valgrind and asked.under_valgrind:
            values = [asked.here({"folder": str(folder)})]
            counts[asked.item.nodeid][asked.metric] = values
            answer(folder, Answer(values=counts))
            return values
        if request.process is None or request.metric != asked.metric:
            return request.elsewhere.get(asked.metric)
        other = folder / "elsewhere"
        other.mkdir()
        with like_another(request.process, other):
            values = asked.here(request.given)
        answer(folder, Answer(values=values))
        pytest.skip("the values were handed over")

    return Mode(compare, seconds=seconds, seconds_to_know=seconds, elsewhere=elsewhere)


def answer(folder: Path, answer: Answer) -> None:
    """Hand the answer over. One that says why there is none leaves what is there."""
    if not answer.failure or not (folder / _ANSWER).exists():
        write_atomically(folder / _ANSWER, json.dumps(plain(answer)))


class RerunHooks:
    """Leaves the test asked for, hands over its metrics where all are asked for, or writes down why there are none."""

    def __init__(self, folder: Path, request: Request):
        self.folder = folder
        self.request = request
        self.found = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # whatever other plugins take away: some choose tests by their number
    def pytest_collection_modifyitems(self, items: list[pytest.Item]):
        named = {item.nodeid: item for item in reversed(items)}
        result = yield
        items[:] = [named[test] for test in self.request.under_valgrind or [self.request.test] if test in named]
        self.found = self.request.test in named
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say(f"{report.nodeid or 'the test'} could not be collected there ({_line(report.longreprtext)})")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        what = {"setup": "the test's set-up", "call": "the test"}.get(call.when)
        if what is None or call.excinfo is None:
            return report
        error = call.excinfo.value
        if isinstance(error, pytest.skip.Exception):
            self._say(f"the test was skipped there ({_line(str(error))})")
        elif isinstance(error, pytest.FixtureLookupError):
            self._say(f"{what} failed there (no fixture {error.argname!r})")
        else:
            self._say(f"{what} failed there ({_line(call.excinfo.exconly(tryshort=True))})")
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        metrics = from_plain(list[Metric], report.perfsuite["metrics"]) if hasattr(report, "perfsuite") else []
        if self.request.metric is None and metrics:  # also of a test that fails there, once it has made them
            answer(self.folder, Answer(metrics))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo) -> None:
        self._say(f"its session was ended there ({_line(excinfo.exconly(tryshort=True))})")

    @pytest.hookimpl(trylast=True)  # all fixtures have ended
    def pytest_sessionfinish(self) -> None:
        """Say why there is nothing, and leave out the terminal's summary.

        Nobody reads it, and Hypothesis's part of it took 0.8 of 3.3 s of such a process (2-core x86-64 machine).
        """
        what = "using perf" if self.request.metric is None else f"making the comparison {self.request.metric!r}"
        what = f"coming to {self.request.metric}" if self.request.process is not None else what
        self._say(f"the test ended there without {what}" if self.found else "the test was not found there")
        pytest.exit("the rest of this session is left out: another one started it, for what it measures")

    def _say(self, failure: str) -> None:
        answer(self.folder, Answer(failure=failure))


def _line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}..."


def environment_of_another(number: int, folder: Path) -> dict[str, str]:
    """The variables of process `number`, which are the same in every session but for the folder."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return {"PYTHONHASHSEED": str(number), "HOSTNAME": _host(number), "TMPDIR": str(temporary)}


@contextlib.contextmanager
def like_another(number: int, folder: Path) -> Iterator[None]:
    """Be process `number` of those on other machines, which works in `folder`: what must not change a program differs.

    Beside the variables of `environment_of_another`: the working folder, the host name, `jax.process_index()`, and the
    number of programs that were compiled before.
    """
    import jax  # the process that starts this one needs none

    host = _host(number)
    for other in range(number):
        jax.block_until_ready(jax.jit(lambda x, other=other: x + other)(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(socket, "gethostname", lambda: host)
        patch.setattr(platform, "node", lambda: host)
        if hasattr(os, "uname"):
            system, _, *others = os.uname()
            patch.setattr(os, "uname", lambda: os.uname_result((system, host, *others)))
        # JAX itself asks by another name.
        patch.setattr(jax, "process_index", lambda backend=None: number)
        yield


def _host(number: int) -> str:
    return f"perfsuite-host-{number}"
