"""Compilers for devices that are not present that stay: one process compiles all the programs of a platform.

perfsuite starts a process for every program, 1.3 s of processor time, of which a small one takes 0.05 s to compile for
a TPU. `measure/targets/test_target_compiler.py` has those processes, and that these here give the same.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from perfsuite.measure.targets import target_compiler
from perfsuite.measure.targets.target_worker import REQUEST

SERVER = """
import json, os, sys
from pathlib import Path

from perfsuite.measure.targets import target_worker

target_worker._die_with = lambda parent: None  # it ends with its standard input
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    folder, log = json.loads(line)
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    target_worker.main(Path(folder))
    print(0, file=answers, flush=True)
os._exit(0)
"""

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""A program with flags of its own has a process of its own: a compiler reads them once."""


class WarmCompilers:
    """In the place of `target_compiler._exit_code`. A process starts with the first program of its platform."""

    def __init__(self) -> None:
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self.own_process = target_compiler._exit_code

    def exit_code(self, folder: Path, environment: Mapping[str, str], log: Path) -> int:
        """Compile what is asked for in `folder`; the exit code of a process that had done that alone."""
        if any(environment.get(name) for name in FLAGS):
            return self.own_process(folder, environment, log)
        platform = json.loads((folder / REQUEST).read_text())["platform"]
        server = self._servers.get(platform) or self._start(platform, environment)
        try:
            server.stdin.write(json.dumps([str(folder), str(log)]) + "\n")
            server.stdin.flush()
            if answer := server.stdout.readline():
                return int(answer)
        except BaseException:
            server.kill()
            self._end(platform)
            raise
        return self._end(platform)

    def _start(self, platform: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-P", "-c", SERVER]
        server = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
        self._servers[platform] = server
        return server

    def _end(self, platform: str) -> int:
        server = self._servers.pop(platform)
        server.communicate()
        return server.returncode

    def close(self) -> None:
        """End the processes."""
        for platform in list(self._servers):
            self._end(platform)
