"""The process that compiles one program; `test_target_compiler.py` runs it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import perfsuite

ROOT = Path(perfsuite.__path__[0]).parent


def test_the_worker_does_not_need_pytest():
    code = """
    import sys
    sys.modules["pytest"] = None
    import perfsuite.measure.targets.target_worker
    import perfsuite.measure.targets.compiler_internals
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
