"""What the plugin costs a session that does not use it: pytest with it and without it, in pairs."""

import os
import subprocess
import sys

import pytest

from perfsuite import Budget, call

SESSIONS = """
import os, sys, pytest

# Imports all that a session itself needs, and leaves nothing of it behind but that.
pytest.main(["-q", "-p", "no:perfsuite", "-p", "no:cacheprovider"])
del sys.modules["test_nothing"]
print("ready", flush=True)
for plugin in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(pytest.main(["-q", "-p", plugin.strip(), "-p", "no:cacheprovider"]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has pytest, and not the plugin, and forks for every session that it is asked for: to start Python and
import pytest takes longer than all the rest, and is the same on both sides."""


@pytest.mark.perf(seconds=15)
def test_an_idle_plugin_adds_less_than_half_of_an_empty_session(perf, tmp_path):
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    # Alone, so that no other plugin has imported for it what it needs.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        [sys.executable, "-c", SESSIONS], cwd=tmp_path, env=environment, text=True, bufsize=1, **pipes
    ) as process:
        assert any(line == "ready\n" for line in process.stdout)

        def session(plugin: str) -> None:
            process.stdin.write(f"{plugin}\n")
            assert process.stdout.readline() == "0\n"

        with_plugin, without = call(session, "perfsuite.plugin"), call(session, "no:perfsuite")
        # A ratio: milliseconds are the machine's. The plugin took 8 ms on one and 23 on another, 1.29 x and 1.26 x.
        perf.compare(with_plugin, without, Budget(ratio=1.5), until="return", name="idle plugin", tolerance=0.5)
        process.stdin.close()
