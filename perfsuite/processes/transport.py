"""The connections between the processes of a session: process 0 in the middle, two lines to each of the others.

Messages are JSON, so that nothing which is received can run. A line of talk is read where the measuring stands and
nowhere else. The other line is silent: a thread that waits on it costs nothing, and when a process ends, however it
does, its system closes the line at once.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from typing import Any, NamedTuple

CONNECT_SECONDS = 60.0
"""The longest that processes wait for each other's first word, once all of them are there."""

_LENGTH = struct.Struct(">Q")
_MOST_BYTES = 1 << 30
_ROLES = ("talk", "silent")


class LineError(Exception):
    """There is nobody at the other end of a line, or no line at all."""


class Line:
    """One connection, for messages that are plain values."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Raises `LineError`."""
        content = json.dumps(message).encode()
        try:
            self._socket.sendall(_LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise LineError(str(error)) from None

    def receive(self) -> Any:
        """Wait for the next message. Raises `LineError` where the other end has closed."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _MOST_BYTES:
            raise LineError(f"a message of {length} bytes is none of perfsuite's")
        return json.loads(self._read(length))

    def close(self) -> None:
        """Close it. No other thread may be waiting in `receive`: see `hang_up`."""
        self._socket.close()

    def hang_up(self) -> None:
        """Say that nothing more will come or be read, which ends every `receive` that waits, at either end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except OSError as error:
                raise LineError(str(error)) from None
            if not part:
                raise LineError("the connection was closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Member(NamedTuple):
    """One process of the session, and where it runs."""

    process: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


def myself(process: int) -> Member:
    return Member(process, socket.gethostname(), os.getpid())


class Invitation:
    """What process 0 makes, and the others need, to be connected: `words`, plain values."""

    def __init__(self, *, everyone_here: bool):
        # Where all processes are on one machine, nobody else can reach them.
        if everyone_here:
            self._server = socket.create_server(("127.0.0.1", 0))
            hosts = ["127.0.0.1"]
        else:
            self._server = _server_of_all_interfaces()
            hosts = _own_addresses()
        self._token = secrets.token_hex(16)
        self.words = {"hosts": hosts, "port": self._server.getsockname()[1], "token": self._token}

    def answers(self, processes: int) -> list[tuple[Member, Line, Line]]:
        """The members other than process 0, in order, with a line of talk and a silent one each. Raises `LineError`."""
        found: dict[int, dict[str, Line]] = {}
        members: dict[int, Member] = {}
        deadline = time.monotonic() + CONNECT_SECONDS
        with self._server:
            while len(members) < processes - 1 or any(len(lines) < len(_ROLES) for lines in found.values()):
                self._server.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    connection, _ = self._server.accept()
                except OSError:
                    missing = sorted({*range(1, processes)} - {*members})
                    raise LineError(f"process {', '.join(map(str, missing))} did not connect to process 0") from None
                if (said := self._answer(connection)) is not None:
                    member = Member(*said["member"])
                    members[member.process] = member
                    found.setdefault(member.process, {})[said["role"]] = Line(connection)
        return [(members[each], found[each]["talk"], found[each]["silent"]) for each in sorted(members)]

    def _answer(self, connection: socket.socket) -> dict | None:
        """What one that connected says. None for whoever does not know the token."""
        connection.settimeout(5.0)
        try:
            line = Line(connection)
            said = line.receive()
            if not hmac.compare_digest(str(said["token"]), self._token) or said["role"] not in _ROLES:
                raise LineError("a stranger")
            line.send("welcome")
        except (LineError, ValueError, KeyError, TypeError):
            connection.close()
            return None
        connection.settimeout(None)
        return said


def accept_invitation(words: dict[str, Any], me: Member) -> tuple[Line, Line]:
    """The lines to process 0: of talk, and the silent one. Raises `LineError`."""
    talk, silent = (_connected(words, me, role) for role in _ROLES)
    return talk, silent


def _connected(words: dict[str, Any], me: Member, role: str) -> Line:
    failed = []
    for host in words["hosts"]:
        connection = None
        try:
            connection = socket.create_connection((host, words["port"]), timeout=5.0)
            line = Line(connection)
            line.send({"token": words["token"], "role": role, "member": list(me)})
            if line.receive() != "welcome":
                raise LineError("another service answered")
        except (OSError, ValueError, LineError) as error:
            failed.append(f"{host} ({error})")
            if connection is not None:
                connection.close()
            continue
        connection.settimeout(None)
        return line
    raise LineError(
        f"{me} cannot reach process 0 at port {words['port']} of {', '.join(failed)}: perfsuite needs a TCP connection "
        "from every process of a session to process 0"
    )


def _server_of_all_interfaces() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_addresses() -> list[str]:
    """Where others may reach this machine, the likeliest first."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, and says which interface leads outside
        found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += [address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    return list(dict.fromkeys([*found, socket.gethostname(), "127.0.0.1"]))


def _keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute that the other machine is gone without a word, where the system lets that be set."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
