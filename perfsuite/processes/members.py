"""The processes of a session, and the connections on which one of them notices at once that another one has ended.

Values go through the store of JAX's coordination service, but the end of a process needs TCP connections. When the
process that serves the store dies, JAX aborts all others. With keys that each process renews every second, the others
ended by SIGABRT 0.2 to 0.5 s after the kill, 5 of 6 times without a message of perfsuite's, and took 10 s to miss any
other process. The system closes a connection within 0.1 s: 6 of 6 sessions ended with a message and exit status 2
(2 busy cores, jax 0.10.2).
"""

import contextlib
import hmac
import os
import secrets
import socket
import time
from typing import NamedTuple

import pytest

from perfsuite.measure.private.coordination import Store
from perfsuite.measure.words import printable

JOIN_SECONDS = 60.0
"""How long the processes wait for each other at the start, once JAX's backend runs in all of them."""

_ANSWER_SECONDS = 5.0
_TOKEN_BYTES = 32
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Member(NamedTuple):
    """One process of the session, and where it runs."""

    process: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


class Lifeline:
    """One end of a connection. It carries at most one message, the reason why the session ends."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._socket.settimeout(None)
        _keep_alive(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, why: str) -> None:
        """Tell the other end why the session ends, where there still is another end."""
        with contextlib.suppress(OSError):
            self._socket.sendall(why.replace("\n", " ").encode(errors="replace") + b"\n")

    def hear(self) -> str | None:
        """Wait for what the other end says. None where it has closed its end, as the system does for a killed one."""
        said = b""
        with contextlib.suppress(OSError):
            while (part := self._socket.recv(4096)) and not (said := said + part).endswith(b"\n"):
                pass
        return printable(said.decode(errors="replace").strip(), " ") or None

    def hang_up(self) -> None:
        """Close both directions, which ends every `hear` that waits, at either end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket. No thread may wait in `hear`: see `hang_up`."""
        self._socket.close()


def meet(store: Store, process: int, count: int) -> list[Member]:
    """All processes of the session, once each is there. Raises `pytest.UsageError` where one does not come."""
    store.put(f"members/{process}", (socket.gethostname(), os.getpid()))
    members = []
    for other in range(count):
        try:
            members.append(Member(other, *store.wait_for(f"members/{other}", JOIN_SECONDS, tuple[str, int])))
        except TimeoutError:
            raise pytest.UsageError(
                f"perfsuite under jax.distributed: process {other} did not join within {JOIN_SECONDS:g} s: "
                f"run the same pytest --perf in all {count} processes"
            ) from None
    return members


def connect(store: Store, me: Member, count: int) -> dict[int, Lifeline]:
    """A line to every other process in the process that serves the store; in the others, the line to that process.

    Raises `pytest.UsageError` where a process cannot be reached.
    """
    try:
        if store.serves:
            return _accept(store, me, count)
        return _reach(store, me, count)
    except (OSError, TimeoutError, OverflowError, ValueError) as error:  # the last two: of no port, process or token
        raise pytest.UsageError(
            f"perfsuite under jax.distributed: {me} has no connection ({error}): perfsuite needs a TCP connection from "
            "every process to the one that runs JAX's coordinator"
        ) from None


def _accept(store: Store, me: Member, count: int) -> dict[int, Lifeline]:
    if store.host in _LOOPBACK:  # all processes are on this machine: no other machine can connect
        server = socket.create_server(("127.0.0.1", 0))
    elif socket.has_dualstack_ipv6():
        server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", 0))
    token = secrets.token_hex(_TOKEN_BYTES // 2)
    lines: dict[int, Lifeline] = {}
    deadline = time.monotonic() + JOIN_SECONDS
    with server:
        store.put("server", (me.process, server.getsockname()[1], token))
        while len(lines) < count - 1:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            connection, _ = server.accept()
            connection.settimeout(_ANSWER_SECONDS)
            try:
                said, _, process = connection.recv(_TOKEN_BYTES + 8, socket.MSG_WAITALL).decode().partition(":")
                if not hmac.compare_digest(said, token):
                    raise ValueError("another program connected")
                lines[_number(int(process), count)] = Lifeline(connection)
            except (OSError, ValueError, TypeError):
                connection.close()
    return lines


def _reach(store: Store, me: Member, count: int) -> dict[int, Lifeline]:
    server, port, token = store.wait_for("server", JOIN_SECONDS, tuple[int, int, str])
    server, said = _number(server, count), f"{token}:{me.process:07}".encode()
    host = "127.0.0.1" if store.host in _LOOPBACK else store.host.strip("[]")
    connection = socket.create_connection((host, port), timeout=_ANSWER_SECONDS)
    connection.sendall(said)
    return {server: Lifeline(connection)}


def _number(process: int, count: int) -> int:
    """The number of a process of the session. Raises `ValueError` for another one."""
    if process not in range(count):
        raise ValueError(f"there is no process {process} of {count}")
    return process


def _keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute that the other machine no longer answers, where the system can be told so."""
    for level, option, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    ):
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(level, getattr(socket, option), value)
