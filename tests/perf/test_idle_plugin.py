"""What the plugin costs a session that does not use it: pytest with it and without it, in pairs."""

import os
import subprocess
import sys

import pytest

from perfsuite import Budget, call


@pytest.mark.perf(seconds=25)
def test_an_idle_plugin_adds_at_most_20_ms_to_a_session(perf, tmp_path):
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass")
    # Alone, so that no other plugin has imported for it what it needs.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def session(plugin: str) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    with_plugin, without = call(session, "perfsuite.plugin"), call(session, "no:perfsuite")
    perf.compare(with_plugin, without, Budget(overhead_us=20_000), until="return", name="idle plugin", tolerance=0.5)
