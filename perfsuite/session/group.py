"""A session of several processes under `jax.distributed`: all measure, the slowest is reported, process 0 writes.

The user's conftest calls `jax.distributed.initialize(...)` before anything touches JAX's backend, and every process
runs the same `pytest --perf`. A single process never imports this module: instruments see a `Group` through
`measure.peers` alone.

The processes exchange values through the key-value store of JAX's coordination service, which process 0 serves, not
through collectives on the devices: those would disturb what is measured, and wait forever for a process that has died.

A process that dies must end all others, at once and with a message. The store cannot do that: when process 0 dies, JAX
aborts the others within 0.5 s, 5 of 6 times without a message of perfsuite's, and a key that each process renews shows
the end of any other process after 10 s. So every process has a TCP connection to process 0, which the system closes
within 0.1 s: 6 of 6 sessions ended with a message and exit status 2 (2 busy cores, jax 0.10.2).
"""

import contextlib
import dataclasses
import hmac
import importlib.metadata
import itertools
import multiprocessing.connection
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import pytest

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import check_writable, load, parse, render
from perfsuite.gate.environment import Environment, device_slug, present_environment
from perfsuite.measure import peers
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import COORDINATION
from perfsuite.measure.private.coordination import Store, StoreUnreachable, ValueUnreadable, shared_store
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.measure.words import printable
from perfsuite.options import Options, options_that_must_agree

JOIN_SECONDS = 60.0
"""How long the processes wait for each other at the start, once JAX's backend runs in all of them."""
STUCK_SECONDS = 60.0
"""How long a process that failed a test, or skipped it, waits for the others at the test's end."""
GRACE_SECONDS = 2.0
"""How long process 0 outlives a session that ends early: without its store JAX aborts the others."""
EXIT_STATUS = int(pytest.ExitCode.INTERRUPTED)

_WAIT_SECONDS = 0.5
"""Between two looks for Ctrl-C while a process waits for a value."""
_GREETING_SECONDS = 5.0
_TOKEN_LENGTH, _NUMBER_LENGTH = 32, 7
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OWN = ("processor", "python")
"""Facts of the environment that may differ between the hosts of one session."""

_sessions = itertools.count()


class ProcessesDifferError(MeasurementError):
    """The processes of a session no longer do the same: one of them failed, or took another way through a test."""


@dataclasses.dataclass(frozen=True)
class _Message:
    """What one process gives in an exchange; `note` is for the message where the processes differ."""

    what: str
    value: Any
    note: str


class Group:
    """The processes of one session, seen from one of them. `process` is its number, `members` are the names of all.

    `lines` are the connections: process 0's to every other process, and the others' to process 0. `doing` is the test
    that runs, or another part of the session, for messages.
    """

    def __init__(self, members: Sequence[str], process: int, store: Store, lines: Mapping[int, socket.socket]):
        self.process = process
        self.count = len(members)
        self.doing = "the start of the session"
        self.differences: list[str] = []
        """A sentence for each count or size that differs between the processes."""
        self.last_to_return: deque[str] = deque(["", ""], maxlen=2)
        """For each of the last two lists of samples, a sentence that names the process that mostly returned last.

        The times to ready do not show it: every process waits there for the slowest.
        """
        self._members = members
        self._store = store
        self._lines = lines
        self._exchanges = 0
        self._over = False
        self._left = False
        self._lock = threading.Lock()
        self._stderr = os.dup(2)  # pytest captures file descriptor 2 while a test runs
        self._watch = threading.Thread(target=self._watch_lines, name="perfsuite group", daemon=True)
        self._watch.start()

    @property
    def writes(self) -> bool:
        """Whether this is the process that saves baselines and reports."""
        return self.process == 0

    def exchange(self, what: str, value: Any = None, note: str = "", *, last: bool = False) -> list[Any]:
        """What every process gives, plain values in the order of the processes, once all have called this.

        Raises `ProcessesDifferError`, with the notes, where another process calls it with another `what`. After the
        `last` one each process may end.
        """
        self._exchanges += 1
        mine = _Message(what, value, note)
        try:
            messages = self._messages(mine, last)
        except (StoreUnreachable, ValueUnreadable) as error:
            self.end(f"process {self.process} cannot read what another one gave: {error}")
            raise
        if len({each.what for each in messages}) > 1:
            doing = "; ".join(
                f"process {process}: {each.what}{f' ({each.note})' if each.note else ''}"
                for process, each in enumerate(messages)
            )
            raise ProcessesDifferError(f"the processes of the session do not do the same: {doing}")
        return [each.value for each in messages]

    def agreed(self, value: Any) -> Any:
        """The value that process 0 has. See `measure.peers`."""
        return self.exchange(f"a decision in {self.doing}", value)[0]

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of all processes, number by number. See `measure.peers`."""
        by_sample = list(zip(*self.exchange(f"the samples of {self.doing}", times), strict=True))
        last = Counter(max(range(self.count), key=lambda process: each[process][0]) for each in by_sample)
        ((process, often),) = last.most_common(1)
        self.last_to_return.append(f"process {process} was the last to return in {often} of {len(by_sample)} samples")
        return [[max(each) for each in zip(*sample, strict=True)] for sample in by_sample]

    def worst(self, test: str, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        """The worst of all processes of every metric of a test, by title; those of kind info are process 0's.

        Counts and sizes that differ are noted in `differences`.
        """
        of_all = [
            {each.title: each for each in from_plain(list[Metric], metrics_there)}
            for metrics_there in self.exchange(f"the metrics of {test}", plain(list(metrics.values())))
        ]
        for process, each in enumerate(of_all):
            if each.keys() != of_all[0].keys():
                titles = ", ".join(sorted(each.keys() ^ of_all[0].keys()))
                pytest.fail(f"process 0 and process {process} recorded different metrics: {titles}", pytrace=False)
        return {title: self._worst(test, [each[title] for each in of_all]) for title in metrics}

    def _worst(self, test: str, versions: list[Metric]) -> Metric:
        first = versions[0]
        if first.kind == "info":
            return first
        if first.kind in ("count", "size") and len({each.value for each in versions}) > 1:
            values = ", ".join(f"{each.value:,.6g} in process {process}" for process, each in enumerate(versions))
            self.differences.append(f"{test}: {first.title} differs: {values}; the worst one counts")
        return (min if first.better == "higher" else max)(versions, key=lambda each: each.value)

    def baselines(self, options: Options) -> dict[str, Baselines]:
        """The baseline files of process 0, by device: the others need not have them.

        Raises `BaselineError` in process 0 where one cannot be read, or cannot be written although it is to be saved.
        That ends the session in the others.
        """
        texts = None
        if self.writes:
            devices = (device_slug(present_environment().device_kind), *options.targets)
            paths = [options.baselines / f"{device}.json" for device in devices]
            try:
                for path in paths if options.save else ():
                    check_writable(path)
                texts = {path.stem: render(load(path)) for path in paths}
            except BaseException as error:
                self.leave(str(error))
                raise
        first = self.exchange("the baselines", texts)[0]
        return {device: parse(text, device) for device, text in first.items()}

    def begin(self, config: pytest.Config, options: Options) -> Options:
        """Let instruments and hooks know of the group. Returns this process's options: process 0 writes the report."""
        config.pluginmanager.register(GroupHooks(self), "perfsuite-group")
        measuring = contextlib.ExitStack()
        measuring.enter_context(peers.together(self))
        config.add_cleanup(measuring.close)
        return options if self.writes else options._replace(report=None)

    def check_alike(self, options: Options, environment: Environment) -> None:
        """Raise `pytest.UsageError` in every process where an option or a version differs between them."""
        facts = {name: value for name, value in environment.as_dict().items() if name not in _OWN}
        of_all = self.exchange("the options of the session", plain(options_that_must_agree(options) | facts))
        for name in of_all[0]:
            if len({str(each.get(name)) for each in of_all}) > 1:
                values = ", ".join(f"{each.get(name)} in process {process}" for process, each in enumerate(of_all))
                self.refuse(f"the processes of a session must be started alike, but {name} is {values}")

    def refuse(self, why: str) -> None:
        """Raise `pytest.UsageError` in this process, which every other process does too."""
        self._over = True
        raise pytest.UsageError(why)

    def leave(self, why: str) -> None:
        """End the session in the other processes, because this one ends. Nothing where it has ended already."""
        if self._is_first_to_end():
            self._left = True
            message = f"{self._members[self.process]} ended its session: {' '.join(why.split())}"
            self._say(message)  # `close` ends this process before pytest prints an error of the start
            self._tell(message)

    def end(self, why: str) -> None:
        """End the session in all processes: with a message, exit status 2, and nothing saved.

        This process exits at once, because nothing can interrupt a program that waits for another process.
        """
        if not self._is_first_to_end():
            return
        self._say(f"{why}. The session ends in all {self.count} processes, during {self.doing}; nothing is saved")
        self._tell(why)
        self._exit(EXIT_STATUS)

    def close(self, status: int) -> None:
        """Close the connections. Exits at once where the session ended early: JAX would wait minutes for the others."""
        self.leave("it ended early")
        if self._left:
            self._exit(status or EXIT_STATUS)
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._watch.join(timeout=5.0)
        for line in self._lines.values():
            line.close()
        os.close(self._stderr)

    def _messages(self, mine: _Message, last: bool) -> list[_Message]:
        """The messages of all. Process 0 collects them, so that the others each wait for one value only."""
        folder = f"exchange {self._exchanges}"
        if not self.writes:
            self._store.put(f"{folder}/{self.process}", vars(mine))
            messages = self._wait_for(f"{folder}/all", list[_Message])
            self._over = self._over or last
            return messages
        messages = [mine, *(self._wait_for(f"{folder}/{other}", _Message) for other in range(1, self.count))]
        self._over = self._over or last  # the others may end once they have read
        self._store.put(f"{folder}/all", [vars(each) for each in messages])
        self._store.delete(f"exchange {self._exchanges - 1}")  # every process has read it
        return messages

    def _wait_for(self, key: str, kind: Any) -> Any:
        while True:
            with contextlib.suppress(TimeoutError):
                return self._store.wait_for(key, _WAIT_SECONDS, kind)

    def _watch_lines(self) -> None:
        """In a thread: end the session when another process is gone, or says why the session ends."""
        open_lines: dict[Any, int] = {line: process for process, line in self._lines.items()}
        while open_lines:
            ready: list[Any] = multiprocessing.connection.wait(list(open_lines))
            for line in ready:
                if why := heard(line):
                    self.end(why)
                    continue
                process = open_lines.pop(line)
                self.end(f"{self._members[process]} is gone: it was killed, or ended without a message")

    def _is_first_to_end(self) -> bool:
        with self._lock:
            first, self._over = not self._over, True
        return first

    def _say(self, message: str) -> None:
        os.write(self._stderr, f"\nperfsuite: process {self.process}: {message}\n".encode(errors="replace"))

    def _tell(self, why: str) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.sendall(why[:2000].encode(errors="replace"))

    def _exit(self, status: int) -> None:
        if self.writes:
            time.sleep(GRACE_SECONDS)
        sys.stdout.flush()
        os._exit(status)


def join() -> Group:
    """Connect this process with the others of the session. Every process must call it. Starts JAX's backend.

    Raises `pytest.UsageError` where they cannot be connected, or have other versions of perfsuite.
    """
    if lost := COORDINATION.lost():
        raise pytest.UsageError(f"{COORDINATION.sentence('perfsuite under jax.distributed')} ({lost})")
    count, process = jax.process_count(), jax.process_index()
    store = shared_store(f"perfsuite {next(_sessions)}")
    assert store is not None, "jax.distributed is initialized"
    try:
        members = meet(store, process, count)
        lines = accept(store, count) if process == 0 else reach(store, process)
    except (OSError, StoreUnreachable, ValueUnreadable) as error:  # a TimeoutError is an OSError
        raise pytest.UsageError(
            f"perfsuite under jax.distributed: process {process} has no connection ({error}): run the same pytest "
            f"--perf in all {count} processes, each of which needs a TCP connection to process 0"
        ) from None
    return Group(members, process, store, lines)


def meet(store: Store, process: int, count: int) -> list[str]:
    """The names of all processes of the session, once each is there. Raises `TimeoutError` where one does not come."""
    version = importlib.metadata.version("perfsuite")
    store.put(f"members/{process}", [socket.gethostname(), os.getpid(), version])
    members = []
    for other in range(count):
        try:
            host, pid, theirs = store.wait_for(f"members/{other}", JOIN_SECONDS, tuple[str, int, str])
        except TimeoutError:
            raise TimeoutError(f"process {other} did not join within {JOIN_SECONDS:g} s") from None
        if theirs != version:
            raise pytest.UsageError(f"process {other} has perfsuite {theirs}, process {process} has {version}")
        members.append(f"process {other} ({printable(host, ' ')}, pid {pid})")
    return members


def accept(store: Store, count: int) -> dict[int, socket.socket]:
    """In process 0: a connection from every other process, which a token from the store lets in."""
    local = store.host in _LOOPBACK  # then all processes are on this machine, and no other machine can connect
    both = socket.has_dualstack_ipv6() and not local
    token = secrets.token_hex(_TOKEN_LENGTH // 2)
    lines: dict[int, socket.socket] = {}
    with socket.create_server(
        ("127.0.0.1" if local else "", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
    ) as server:
        store.put("server", [server.getsockname()[1], token])
        deadline = time.monotonic() + JOIN_SECONDS
        while len(lines) < count - 1:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            line, _ = server.accept()
            line.settimeout(_GREETING_SECONDS)
            greeting = heard(line, _TOKEN_LENGTH + _NUMBER_LENGTH)
            line.settimeout(None)
            number = greeting[_TOKEN_LENGTH:]
            if hmac.compare_digest(greeting[:_TOKEN_LENGTH].encode(), token.encode()) and number.isdecimal():
                lines[int(number)] = line
            else:
                line.close()  # of another program
    return lines


def reach(store: Store, process: int) -> dict[int, socket.socket]:
    """In the other processes: the connection to process 0."""
    port, token = store.wait_for("server", JOIN_SECONDS, tuple[int, str])
    host = "127.0.0.1" if store.host in _LOOPBACK else store.host.strip("[]")
    line = socket.create_connection((host, port), timeout=_GREETING_SECONDS)
    line.sendall(f"{token}{process:0{_NUMBER_LENGTH}}".encode())
    line.settimeout(None)
    return {0: line}


def heard(line: socket.socket, most: int = 4096) -> str:
    """What the other end says, in one line. Empty where it has closed its end, as the system does for a killed one."""
    try:
        return printable(line.recv(most).decode(errors="replace"), " ").strip()
    except OSError:
        return ""


class GroupHooks:
    """pytest's hooks in a session of several processes: the same tests and the same outcomes in all."""

    def __init__(self, group: Group):
        self.group = group
        self._status = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        mine = [item.nodeid for item in session.items]
        (first, _), *others = of_all = self.group.exchange("the collected tests", [mine, bool(session.testsfailed)])
        for process, each in enumerate(others, 1):
            if each != of_all[0]:
                only = [f"{test} in process 0 only" for test in first if test not in set(each[0])]
                only += [f"{test} in process {process} only" for test in each[0] if test not in set(first)]
                what = "; ".join(only[:3]) or "the same ones in another order, or not all of them could be collected"
                self.group.refuse(f"the processes of a session must collect the same tests, but there are {what}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.group.doing = item.nodeid
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        """Exchange the outcomes of a test's set-up, its body and its end: what fails in one process fails in all."""
        report = yield
        error = call.excinfo
        if error is not None and isinstance(error.value, ProcessesDifferError):
            report.longrepr = str(error.value)  # this process's traceback explains nothing
        text = report.longreprtext if error is None else error.exconly(tryshort=True)
        why = "" if report.passed else " ".join(text.split())[:500]
        of_all = list(enumerate(self._outcomes(report, why)))
        failed = "; ".join(
            f"process {process}: {why}"
            for process, (outcome, why) in of_all
            if outcome == "failed" and process != self.group.process
        )
        if failed and report.failed:
            report.sections.append(("perfsuite", f"failed in other processes too: {failed}"))
        elif failed:
            _fail(report, f"{report.outcome} in this process, failed in {failed}")
        elif len({outcome for _, (outcome, _) in of_all} - {"failed"}) > 1:
            outcomes = "; ".join(f"{outcome} in process {process}" for process, (outcome, _) in of_all)
            _fail(report, f"the processes do not agree: {outcomes}")
        return report

    def _outcomes(self, report: pytest.TestReport, why: str) -> list[tuple[str, str]]:
        """The outcome and its reason in every process."""
        what = f"the end of {report.nodeid} ({report.when})"
        stuck = (
            f"process {self.group.process} {report.outcome} {report.nodeid} ({why}), and the others did not reach the "
            f"end of that test within {STUCK_SECONDS:g} s: they wait for it in a program, which nothing can interrupt"
        )
        timer = threading.Timer(STUCK_SECONDS, self.group.end, [stuck])
        timer.daemon = True
        if not report.passed:
            timer.start()
        try:
            while True:
                # A process that was still measuring learns here that this one is at the end of the test.
                with contextlib.suppress(ProcessesDifferError):
                    return self.group.exchange(what, [report.outcome, why], note=why)
        finally:
            timer.cancel()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # Before the baselines are saved.
        self._status = int(exitstatus)
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            self.group.leave(f"exit status {self._status}")
            return
        self.group.doing = "the end of the session"
        if len(set(self.group.exchange("the end of the session", self._status, last=True))) > 1:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.group.writes:
            name = f"process {self.group.process} of {self.group.count}"
            terminalreporter.line(f"perfsuite: {name}: process 0 writes the report")
            return
        for line in self.group.differences:
            terminalreporter.line(line, yellow=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self.group.close(self._status)


def _fail(report: pytest.TestReport, why: str) -> None:
    report.outcome = "failed"
    report.longrepr = why
    if hasattr(report, "wasxfail"):
        del report.wasxfail
