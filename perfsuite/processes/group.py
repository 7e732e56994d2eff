"""A session of several processes under `jax.distributed`: all of them measure, the slowest speaks, process 0 writes.

The user's conftest calls `jax.distributed.initialize(...)` before anything touches JAX's backend, and every process
runs the same `pytest --perf`. Where a clock decides (another pair or the end), process 0 decides for all, because a
program over all devices runs only where every process calls it. Each sample is the slowest process's.

The processes talk over TCP connections of their own, not through collectives on the devices: those would be in the way
of what is measured, wait for ever for a process that has died, and be of no use once one has failed. JAX's collectives
are used once, to tell the others where process 0 is to be reached.

A process that dies is noticed at once, by its connection, and the session ends in all others: with a message, the exit
status 2, and nothing saved. A program that waits for the dead process cannot be interrupted, so what has not come to
its end in `GRACE_SECONDS` is ended the hard way.
"""

import contextlib
import json
import os
import selectors
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perfsuite.measure.compat.libtpu_stderr import libtpu_silenced
from perfsuite.measure.errors import MeasurementError
from perfsuite.processes.transport import Invitation, Line, LineError, Member, accept_invitation, myself

GRACE_SECONDS = 10.0
"""What a process has to come to its end in when the session ends because another one has gone."""
STUCK_SECONDS = 60.0
"""How long a process that failed a test, or skipped it, waits for the others at the test's end."""
EXIT_STATUS = int(pytest.ExitCode.INTERRUPTED)

_INVITATION_BYTES = 4096


class ProcessesDifferError(MeasurementError):
    """The processes of a session no longer do the same: one of them failed, or took another way through a test."""


class Group:
    """The processes of one session, seen from one of them. `process` is its number, of `count`.

    `doing` is what the session is at, for messages: the test that runs.
    """

    def __init__(self, members: list[Member], me: Member, talk: list[Line], silent: list[Line]):
        self.members = members
        self.process = me.process
        self.count = len(members)
        self.doing = "the start of the session"
        self.differences: list[str] = []
        """Metrics of which the processes saw different ones, in words."""
        self.last_to_return: deque[str] = deque(["", ""], maxlen=2)
        """Of the last two lots of samples, which process was the last to return, in words.

        When a program over all devices is ready says nothing of that: everybody waits in it for the slowest.
        """
        self._me = me
        self._talk = talk
        self._silent = silent
        self._over: str | None = None
        self._noticed = threading.Event()
        self._ended = False
        self._left = False
        self._lock = threading.Lock()
        # pytest takes file descriptor 2 away while a test runs, and this is for then.
        self._stderr = os.dup(2)
        self._watch = threading.Thread(target=self._watch_lines, name="perfsuite peers", daemon=True)
        self._watch.start()

    @property
    def writes(self) -> bool:
        """Whether this is the process that saves baselines and reports."""
        return self.process == 0

    def exchange(self, what: str, given: Any = None, note: str = "", *, last: bool = False) -> list[Any]:
        """What every process gives, in their order. All have to come here with the same `what`.

        Waits for the others, however long they take. Raises `ProcessesDifferError` where they come with something else,
        and `pytest.exit.Exception` where one is gone. `note` is what the others are told of this process then. After
        the `last` one each process may go.
        """
        self.check()
        self._ended = last  # before it: the others may be gone when this process has its answer
        message = {"what": what, "given": given, "note": note}
        try:
            reply = self._gathered(message) if self.writes else self._asked(message)
        except LineError:
            self._ended = False
            # The silent line says which process it is.
            if not self._noticed.wait(2.0):
                self._end("a process of the session is gone")
            self.check()
            raise  # not reached
        if "differ" in reply:
            raise ProcessesDifferError(_difference(reply["differ"]))
        return reply["given"]

    def check(self) -> None:
        """Raise `pytest.exit.Exception` where the session is over, because a process is gone."""
        if self._over is not None:
            pytest.exit(self._over, returncode=EXIT_STATUS)

    def agreed(self, value: Any) -> Any:
        """The value that process 0 has. See `measure.peers`."""
        return self.exchange(f"a decision in {self.doing}", value if self.writes else None)[0]

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of all processes, number by number. See `measure.peers`."""
        of_all = self.exchange(f"the samples of {self.doing}", times)
        by_sample = list(zip(*of_all, strict=True))
        last = Counter(max(range(self.count), key=lambda process: each[process][0]) for each in by_sample)
        ((process, often),) = last.most_common(1)
        self.last_to_return.append(f"process {process} was the last to return in {often} of {len(by_sample)} samples")
        return [[max(times) for times in zip(*each, strict=True)] for each in by_sample]

    def only_writer(self, make: Callable[[], Any]) -> Any:
        """What `make` gives in process 0, in all processes: plain values. Where it raises, the session ends for all."""
        given = None
        if self.writes:
            try:
                given = make()
            except BaseException as error:
                self.leave(" ".join(str(error).split()) or type(error).__name__)
                raise
        return self.exchange(f"what process 0 found at {self.doing}", given)[0]

    @contextlib.contextmanager
    def ending_where_stuck(self, why: str) -> Iterator[None]:
        """End the session where the block takes too long: the others wait for this process in a program."""
        message = (
            f"{self._me} {why}, and {STUCK_SECONDS:g} s later the others had not come to the end of that test: they "
            "wait for it in a program, which nothing can interrupt"
        )
        timer = threading.Timer(STUCK_SECONDS, self._end, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def leave(self, why: str) -> None:
        """End the session in the other processes, because this one goes. Nothing where it has ended already."""
        if not self._ended and self._over is None:
            self._ended = self._left = True
            self._tell({"over": f"{self._me} ended its session: {why}", "goes": self.process})

    def end(self) -> None:
        """The session ends in all processes, and all know why."""
        self._ended = True

    def go(self, status: int) -> None:
        """End this process at once where others are gone or going: at its exit JAX would wait for them for minutes."""
        if self._over is not None or self._left:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status or EXIT_STATUS)

    def close(self) -> None:
        """Close the lines. The session has ended."""
        for line in (*self._talk, *self._silent):
            line.hang_up()
        self._watch.join(timeout=5.0)
        for line in (*self._talk, *self._silent):
            line.close()
        os.close(self._stderr)

    def _asked(self, message: dict) -> dict:
        self._talk[0].send(message)
        return self._talk[0].receive()

    def _gathered(self, message: dict) -> dict:
        messages = [message, *(line.receive() for line in self._talk)]
        if len({each["what"] for each in messages}) == 1:
            reply: dict[str, Any] = {"given": [each["given"] for each in messages]}
        else:
            reply = {"differ": [[each["what"], each["note"]] for each in messages]}
        for line in self._talk:
            line.send(reply)
        return reply

    def _watch_lines(self) -> None:
        """In a thread: end the session when another process goes, or says that it is over."""
        others = self.members[1:] if self.writes else self.members[:1]
        with selectors.DefaultSelector() as selector:
            for line, member in zip(self._silent, others, strict=True):
                selector.register(line, selectors.EVENT_READ, (line, member))
            while selector.get_map():
                for key, _ in selector.select():
                    line, member = key.data
                    try:
                        said = line.receive()
                    except LineError:
                        selector.unregister(line)
                        if self._over is not None and member.process == 0:
                            os._exit(EXIT_STATUS)
                        self._end(f"{member} is gone: it was killed, or ended without a word", goes=member.process)
                    else:
                        self._end(said["over"], goes=said["goes"])

    def _end(self, why: str, *, goes: int | None = None) -> None:
        """The session is over, in all processes.

        Without process 0 there is nobody to report, and JAX, whose coordinator it mostly is, aborts within moments.
        """
        with self._lock:
            if self._over is not None or self._ended:
                return
            message = f"{why}. The session ends in all {self.count} processes (while at {self.doing}); nothing is saved"
            self._over = message
            self._noticed.set()
        os.write(self._stderr, f"\nperfsuite: process {self.process}: {message}\n".encode(errors="replace"))
        self._tell({"over": why, "goes": goes})
        if goes == 0:
            os._exit(EXIT_STATUS)
        timer = threading.Timer(GRACE_SECONDS, os._exit, [EXIT_STATUS])
        timer.daemon = True
        timer.start()
        for line in self._talk:
            line.hang_up()

    def _tell(self, message: dict) -> None:
        for line in self._silent:
            with contextlib.suppress(LineError):
                line.send(message)


def join() -> Group | None:
    """Connect this process with the others of the session; None where it is the only one. Starts JAX's backend.

    Every process must come here. Raises `pytest.UsageError` where they cannot be connected.
    """
    import jax

    with libtpu_silenced():
        count = jax.process_count()
    if count == 1:
        return None
    import numpy as np
    from jax.experimental import multihost_utils

    me = myself(jax.process_index())
    machine = np.frombuffer(_machine(), np.uint8)
    everyone_here = bool((np.ptp(multihost_utils.process_allgather(machine), axis=0) == 0).all())
    invitation, words = None, {}
    if me.process == 0:
        try:
            invitation = Invitation(everyone_here=everyone_here)
            words = invitation.words
        except OSError as error:
            words = {"error": f"process 0 cannot open a port: {error}"}
    text = json.dumps(words).encode().ljust(_INVITATION_BYTES)
    words = json.loads(bytes(multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))))
    if "error" in words:
        raise pytest.UsageError(f"perfsuite under jax.distributed: {words['error']}")
    try:
        if invitation is None:
            talk, silent = accept_invitation(words, me)
            members = [Member(*each) for each in talk.receive()]
            return Group(members, me, [talk], [silent])
        answers = invitation.answers(count)
        members = [me, *(member for member, _, _ in answers)]
        for _, line, _ in answers:
            line.send(members)
        return Group(members, me, [line for _, line, _ in answers], [line for _, _, line in answers])
    except LineError as error:
        raise pytest.UsageError(f"perfsuite under jax.distributed: {error}") from None


def _machine() -> bytes:
    """32 bytes that differ between machines, and between containers that have a network of their own."""
    import hashlib
    import socket

    network = ""
    with contextlib.suppress(OSError):
        network = os.readlink("/proc/self/ns/net")
    return hashlib.sha256(f"{socket.gethostname()} {network}".encode()).digest()


def _difference(of_all: list[list[str]]) -> str:
    by_what: dict[str, list[int]] = {}
    for process, (what, _) in enumerate(of_all):
        by_what.setdefault(what, []).append(process)
    told = [
        f"process {', '.join(map(str, processes))}: {what}"
        + "".join(f" ({of_all[process][1]})" for process in processes if of_all[process][1])
        for what, processes in by_what.items()
    ]
    return f"the processes of the session do not do the same: {'; '.join(told)}"
