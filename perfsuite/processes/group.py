"""A session of several processes under `jax.distributed`: all measure, the slowest is reported, process 0 writes.

The user's conftest calls `jax.distributed.initialize(...)` before anything touches JAX's backend, and every process
runs the same `pytest --perf`. Where a clock decides (another pair or the end), process 0 decides for all, because a
program over all devices runs only where every process calls it. Each sample is the slowest process's.

The processes exchange values through the key-value store of JAX's coordination service, not through collectives on the
devices: those would disturb what is measured, and wait forever for a process that has died.

A process that dies is noticed at once, by its connection (see `members`), and the session ends in all others: with a
message, exit status 2, and nothing saved. A process that waits for the dead one in a program cannot be interrupted, so
it exits after `GRACE_SECONDS`, without pytest's summary.
"""

import contextlib
import dataclasses
import itertools
import os
import selectors
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import pytest

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import COORDINATION
from perfsuite.measure.private.compiler_stderr import compilers_silenced
from perfsuite.measure.private.coordination import Store, StoreUnreachable, ValueUnreadable, shared_store
from perfsuite.measure.serialise import held
from perfsuite.processes.members import Lifeline, Member, connect, meet

GRACE_SECONDS = 10.0
"""How long a process has to end by itself when the session ends because another one is gone."""
STUCK_SECONDS = 60.0
"""How long a process that failed a test, or skipped it, waits for the others at the test's end."""
EXIT_STATUS = int(pytest.ExitCode.INTERRUPTED)

_WAIT_SECONDS = 0.5
"""The longest that a process waits for a value before it looks whether the session is over."""

_PLAIN = (bool, int, float, str)
"""Types of what is agreed. A bool is an int too."""

_sessions = itertools.count()

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Message:
    """What one process gives in an exchange."""

    what: str
    given: Any
    note: str


class ProcessesDifferError(MeasurementError):
    """The processes of a session no longer do the same: one of them failed, or took another way through a test."""


class Group:
    """The processes of one session, seen from one of them. `process` is its number, of `count`.

    `doing` is the test that runs, or another part of the session, for messages.
    """

    def __init__(self, members: list[Member], process: int, store: Store, lines: Mapping[int, Lifeline]):
        self.members = members
        self.process = process
        self.count = len(members)
        self.doing = "the start of the session"
        self.differences: list[str] = []
        """A sentence for each count or size that differs between the processes."""
        self.last_to_return: deque[str] = deque(["", ""], maxlen=2)
        """For each of the last two lists of samples, a sentence that names the process that mostly returned last.

        The times to ready do not show it: every process waits there for the slowest.
        """
        self._me = members[process]
        self._store = store
        self._lines = lines
        self._server = process if store.serves else next(iter(lines))
        self._exchanges = 0
        self._over: str | None = None
        self._ended = False
        self._left = False
        self._lock = threading.Lock()
        # While a test runs, pytest captures file descriptor 2.
        self._stderr = os.dup(2)
        self._watch = threading.Thread(target=self._watch_lines, name="perfsuite group", daemon=True)
        self._watch.start()

    @property
    def writes(self) -> bool:
        """Whether this is the process that saves baselines and reports."""
        return self.process == 0

    def exchange(
        self, what: str, given: Any = None, note: str = "", *, kind: Any = Any, first: bool = False, last: bool = False
    ) -> list[Any]:
        """What every process gives, in the order of the processes; with `first`, what process 0 gives alone.

        All have to call this with the same `what`.

        Waits for the others, however long they take. Raises `ProcessesDifferError`, with the notes, where another
        process calls it with another `what`; `pytest.exit.Exception` where one is gone, or gives what is not of the
        type `kind`. After the `last` one each process may end.
        """
        self.check()
        self._exchanges += 1
        try:
            messages = self._exchanged(_Message(what, given, note))
            alike = len({each.what for each in messages}) == 1
            heard = messages[: 1 if first else None] if alike else []
            gave = [_held(kind, each, process) for process, each in enumerate(heard)]
        except StoreUnreachable as error:
            self._end(f"{self.members[self._server]} is gone: {error}", gone=self._server)
            self.check()
            raise
        except ValueUnreadable as error:
            self._end(f"{error}: run the same version of perfsuite in all processes")
            self.check()
            raise
        self._ended = last
        if not alike:
            raise ProcessesDifferError(_difference(messages))
        return gave

    def check(self) -> None:
        """Raise `pytest.exit.Exception` where the session is over, because a process is gone."""
        if self._over is not None:
            pytest.exit(self._over, returncode=EXIT_STATUS)

    def agreed(self, value: Any) -> Any:
        """The value that process 0 has. See `measure.peers`."""
        kind = next((each for each in _PLAIN if isinstance(value, each)), Any)
        return self.exchange(f"a decision in {self.doing}", value if self.writes else None, kind=kind, first=True)[0]

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of all processes, number by number. See `measure.peers`."""
        of_all = self.exchange(f"the samples of {self.doing}", times, kind=list[list[float]])
        if len({tuple(map(len, each)) for each in (times, *of_all)}) > 1:
            raise ProcessesDifferError(f"the processes of the session took other samples of {self.doing}")
        by_sample = list(zip(*of_all, strict=True))
        last = Counter(max(range(self.count), key=lambda process: each[process][0]) for each in by_sample)
        ((process, often),) = last.most_common(1)
        self.last_to_return.append(f"process {process} was the last to return in {often} of {len(by_sample)} samples")
        return [[max(times) for times in zip(*each, strict=True)] for each in by_sample]

    def only_writer(self, make: Callable[[], T], kind: type[T]) -> T:
        """What `make` gives in process 0, in all processes. Where it raises, the session ends in all of them."""
        given = None
        if self.writes:
            try:
                given = make()
            except BaseException as error:
                self.leave(" ".join(str(error).split()) or type(error).__name__)
                raise
        return self.exchange(f"what process 0 found at {self.doing}", given, kind=kind, first=True)[0]

    @contextlib.contextmanager
    def ending_where_stuck(self, why: str) -> Iterator[None]:
        """End the session where the block takes too long: the others wait for this process in a program."""
        message = (
            f"{self._me} {why}, and the others did not reach the end of that test within {STUCK_SECONDS:g} s: they "
            "wait for it in a program, which nothing can interrupt"
        )
        timer = _timer(STUCK_SECONDS, self._end, message)
        try:
            yield
        finally:
            timer.cancel()

    def leave(self, why: str) -> None:
        """End the session in the other processes, because this one ends. Nothing where it has ended already."""
        if not self._ended and self._over is None:
            self._ended = self._left = True
            self._tell(f"{self._me} ended its session: {why}")

    def end(self) -> None:
        """The session ends in all processes, and all know why."""
        self._ended = True

    def go(self, status: int) -> None:
        """End this process at once where others are gone or going: at its exit JAX would wait for them for minutes.

        The process that serves the store ends last: without it, JAX aborts the others.
        """
        if self._over is None and not self._left:
            return
        if self._store.serves:
            self._watch.join(self._grace_seconds())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or EXIT_STATUS)

    def close(self) -> None:
        """Close the connections. The session has ended."""
        for line in self._lines.values():
            line.hang_up()
        self._watch.join(timeout=5.0)
        for line in self._lines.values():
            line.close()
        os.close(self._stderr)

    def _exchanged(self, message: _Message) -> list[_Message]:
        """The messages of all processes. Process 0 collects them, so that the others each wait for one value only."""
        folder = f"exchange {self._exchanges}"
        if not self.writes:
            self._store.put(f"{folder}/{self.process}", vars(message))
            messages = self._wait_for(f"{folder}/all", list[_Message])
            if len(messages) != self.count:
                raise ValueUnreadable(f"there are {len(messages)} messages of {self.count} processes")
            return messages
        others = range(1, self.count)
        messages = [message, *(self._wait_for(f"{folder}/{other}", _Message) for other in others)]
        try:
            self._store.put(f"{folder}/all", [vars(each) for each in messages])
        except RecursionError:
            raise ValueUnreadable("the values of the other processes are nested too deep") from None
        self._store.delete(f"exchange {self._exchanges - 1}")  # every process has read it
        return messages

    def _wait_for(self, key: str, kind: type[T]) -> T:
        while True:
            try:
                return self._store.wait_for(key, _WAIT_SECONDS, kind)
            except TimeoutError:
                self.check()

    def _watch_lines(self) -> None:
        """In a thread: end the session when another process is gone, or says why the session ends."""
        with selectors.DefaultSelector() as selector:
            for process, line in self._lines.items():
                selector.register(line, selectors.EVENT_READ, (process, line))
            while selector.get_map():
                for key, _ in selector.select():
                    process, line = key.data
                    why = line.hear()
                    if why is not None:
                        self._end(why)
                        continue
                    selector.unregister(line)
                    if process == self._server and self._over is not None:
                        os._exit(EXIT_STATUS)  # before JAX aborts it
                    member = self.members[process]
                    self._end(f"{member} is gone: it was killed, or ended without a message", gone=process)

    def _tell(self, why: str) -> None:
        for line in self._lines.values():
            line.say(why)

    def _end(self, why: str, *, gone: int | None = None) -> None:
        """The session is over, in all processes.

        Without the process that serves the store, JAX aborts this one within moments: it exits at once.
        """
        with self._lock:
            if self._over is not None or self._ended:
                return
            message = f"{why}. The session ends in all {self.count} processes, during {self.doing}; nothing is saved"
            self._over = message
        os.write(self._stderr, f"\nperfsuite: process {self.process}: {message}\n".encode(errors="replace"))
        if gone == self._server:
            os._exit(EXIT_STATUS)
        self._tell(why)
        _timer(self._grace_seconds(), os._exit, EXIT_STATUS)

    def _grace_seconds(self) -> float:
        """Longer where this process serves the store, which the others need until they have ended."""
        return GRACE_SECONDS + (1.0 if self._store.serves else 0.0)


def join() -> Group | None:
    """Connect this process with the others of the session; None where it is the only one. Starts JAX's backend.

    Every process must call it. Raises `pytest.UsageError` where they cannot be connected.
    """
    with compilers_silenced():
        count, process = jax.process_count(), jax.process_index()
    if count == 1:
        return None
    if lost := COORDINATION.lost():
        raise pytest.UsageError(f"{COORDINATION.sentence('perfsuite under jax.distributed')} ({lost})")
    store = shared_store(f"perfsuite {next(_sessions)}")
    if store is None:
        raise pytest.UsageError(
            f"JAX has {count} processes and no coordination service: call jax.distributed.initialize() in conftest.py"
        )
    try:
        members = meet(store, process, count)
        return Group(members, process, store, connect(store, members[process], count))
    except (StoreUnreachable, ValueUnreadable) as error:
        raise pytest.UsageError(f"perfsuite under jax.distributed: {error}") from None


def _timer(seconds: float, function: Callable[..., Any], argument: Any) -> threading.Timer:
    timer = threading.Timer(seconds, function, [argument])
    timer.daemon = True
    timer.start()
    return timer


def _held(kind: Any, message: _Message, process: int) -> Any:
    """What a process gives, of the type `kind`. All processes see the same, so the session ends in all of them."""
    try:
        return held(kind, message.given)
    except ValueError as error:
        raise ValueUnreadable(f"what process {process} gave for {message.what} cannot be read ({error})") from None


def _difference(messages: list[_Message]) -> str:
    by_what: dict[str, list[int]] = {}
    for process, message in enumerate(messages):
        by_what.setdefault(message.what, []).append(process)
    parts = [
        f"process {', '.join(map(str, processes))}: {what}"
        + "".join(f" ({messages[process].note})" for process in processes if messages[process].note)
        for what, processes in by_what.items()
    ]
    return f"the processes of the session do not do the same: {'; '.join(parts)}"
