"""JAX's coordination service in this process, with clients and groups as of several processes."""

import contextlib
import itertools
import socket
from concurrent.futures import ThreadPoolExecutor

from jax._src.lib import _jax

from perfsuite.measure.private.coordination import Store
from perfsuite.session.group import Group

_folders = itertools.count()


@contextlib.contextmanager
def clients(count):
    """Clients of one service, as many as asked for, each as `jax.distributed.initialize` makes one in its process."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, count, heartbeat_timeout=100, shutdown_timeout=10)
    made = [
        _jax.get_distributed_runtime_client(
            address, number, init_timeout=60, heartbeat_timeout=100, shutdown_timeout=10, use_compression=True
        )
        for number in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda client: client.connect(), made))
        try:
            yield made
        finally:
            list(pool.map(lambda client: client.shutdown(), made))
    service.shutdown()


@contextlib.contextmanager
def groups(clients, count):
    """The groups of a session of `count` processes, which are threads of this one."""
    folder = f"session {next(_folders)}"
    members = [f"process {process}" for process in range(count)]
    pairs = {process: socket.socketpair() for process in range(1, count)}
    lines = [{process: pair[0] for process, pair in pairs.items()}, *({0: pair[1]} for pair in pairs.values())]
    made = [Group(members, process, Store(clients[process], folder), lines[process]) for process in range(count)]
    try:
        yield made
    finally:
        for group in made:
            group._over, group._left = True, False
        for group in made:
            group.close(0)


def all_at_once(groups, function):
    """What `function(group)` gives or raises in each."""
    with ThreadPoolExecutor(len(groups)) as pool:
        started = [pool.submit(function, group) for group in groups]
    return [each.exception() or each.result() for each in started]
