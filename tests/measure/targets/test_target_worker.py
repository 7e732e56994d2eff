"""The process that compiles one program; `test_target_compiler.py` runs it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import perfsuite
from perfsuite.measure.targets.target_worker import first_devices

ROOT = Path(perfsuite.__path__[0]).parent


def test_the_devices_are_the_first_of_each_slice():
    assert first_devices(range(8), 8, 1) == [*range(8)]
    assert first_devices(range(8), 3, 1) == [0, 1, 2]
    assert first_devices(range(8), 4, 2) == [0, 1, 4, 5]
    assert first_devices(range(8), 8, 4) == [*range(8)]


def test_the_worker_does_not_need_pytest():
    code = """
    import sys
    sys.modules["pytest"] = None
    import perfsuite.measure.targets.target_worker
    import perfsuite.measure.private.compiler_internals
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
