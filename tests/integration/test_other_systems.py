"""Where the machine is no x86-64 Linux: without /proc, `prctl`, the cores' list and libtpu, a gate works as ever.

Those are taken away in a session of its own, which says that it runs on macOS.
"""

TAKEN_AWAY = """
import builtins, errno, os, platform, sys

platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
for name in ("sched_getaffinity", "sched_setaffinity"):
    vars(os).pop(name, None)

refused = set()

def refuse(event, given):
    if event in ("open", "os.listdir", "os.scandir") and str(given[0]).startswith("/proc"):
        refused.add(given[0])
        raise FileNotFoundError(errno.ENOENT, "taken away", given[0])
    if event == "ctypes.dlsym" and given[1] == "prctl":
        raise AttributeError("taken away: prctl")
    if event == "import" and given[0].partition(".")[0] in ("libtpu", "jax_plugins"):
        raise ModuleNotFoundError(f"taken away: {given[0]}")

exists = os.path.exists
os.path.exists = lambda path: not str(path).startswith("/proc") and exists(path)
sys.addaudithook(refuse)
"""

GATES = """
import ctypes, os, platform
import jax, jax.numpy as jnp, pytest
import taken_away
from perfsuite import Budget, call

step = jax.jit(lambda x: jnp.tanh(x).sum())
x = jnp.ones(8)

def test_they_are_gone():
    assert platform.system() == "Darwin"
    assert not hasattr(os, "sched_getaffinity")
    with pytest.raises(FileNotFoundError):
        open("/proc/self/statm")
    with pytest.raises(AttributeError):
        ctypes.CDLL(None).prctl

def test_gates(perf):
    warm = perf.warm(step, over=[(x,)])
    with perf.no_compiles():
        warm(x)
    perf.host_calls(call(step, x), budget=Budget(host_calls=50))
    perf.time(call(step, x))
    perf.compare(call(step, x), call(step, x), Budget(ratio=1000))
    perf.memory(call(step, x))
    assert perf.program(call(step, x)).flops > 0

def test_a_recompilation(perf):
    warm = perf.warm(step, over=[(x,)])
    with perf.no_compiles():
        warm(jnp.ones(9))

def test_an_absent_target(perf):
    perf.program(call(step, x), "tpu-v5e")

def test_something_was_refused(perf):
    assert taken_away.refused
"""


def test_gates_work_and_catch_what_they_should_without_what_linux_has(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(taken_away=TAKEN_AWAY, test_gates=GATES)
    pytester.makeini("[pytest]\npythonpath = .\n")
    options = "--perf-seconds=0.2 -rs -p taken_away -p perfsuite.plugin -p no:cacheprovider"
    result = pytester.runpytest_subprocess("--perf", *options.split())
    result.assert_outcomes(passed=3, skipped=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_gates.py:*: RecompilationError",
            "*libtpu, the compiler for TPUs, exists for x86-64 Linux only, and this is arm64 Darwin*",
        ]
    )
