"""Pytest sessions of several processes on this machine: `start(folder, 2, "--perf", test_a="...").wait()`."""

import os
import socket
import subprocess
import sys
import time

CONFTEST = """
import os
import jax
import perfsuite.session.group

perfsuite.session.group.STUCK_SECONDS = int(os.environ.get("STUCK", 60))
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(
    os.environ["COORDINATOR"],
    int(os.environ["PROCESSES"]),
    int(os.environ["PROCESS"]),
    initialization_timeout=60,
    heartbeat_timeout_seconds=60,
    shutdown_timeout_seconds=30,
)
"""

ARGUMENTS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
SECONDS = 120
"""A session that takes longer hangs."""


class ManySession:
    """Its processes, and when they have ended their exit statuses and what they wrote."""

    def __init__(self, processes):
        self._processes = processes
        self.status, self.outputs = [], []

    def wait(self):
        """Wait for the end of all. What then still runs is killed, with None as its status."""
        deadline = time.monotonic() + SECONDS
        for process, output in self._processes:
            try:
                self.status.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.status.append(None)
            with output:
                output.seek(0)
                self.outputs.append(output.read())
        return self

    @property
    def said(self):
        return "\n".join(
            f"---- process {number}: {status}\n{output[-6000:]}"
            for number, (status, output) in enumerate(zip(self.status, self.outputs, strict=True))
        )


def start(folder, processes, *arguments, of_last=(), **files):
    """Start `pytest` with these arguments in so many processes, of a project of these files in `folder`.

    Names in capitals are environment variables. The last process gets the arguments `of_last`, too.
    """
    variables = {name: files.pop(name) for name in list(files) if name.isupper()}
    folder.mkdir(exist_ok=True)
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --perf-seconds=0.5\npythonpath = .\n")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        coordinator = f"localhost:{probe.getsockname()[1]}"
    started = []
    for process in range(processes):
        output = open(folder / f"output-{process}.txt", "w+")  # noqa: SIM115 - closed by `wait`
        own = of_last if process == processes - 1 else ()
        environment = {
            **os.environ,
            **variables,
            "JAX_PLATFORMS": "cpu",
            "COORDINATOR": coordinator,
            "PYTHONUNBUFFERED": "1",
            "PROCESSES": str(processes),
            "PROCESS": str(process),
        }
        command = [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments, *own]
        started.append(
            (
                subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
                ),
                output,
            )
        )
    return ManySession(started)
