"""What Callgrind writes, and what comes of it. `tests/planted/test_instructions.py` counts for real."""

import contextlib
import itertools
import re
from pathlib import Path

import jaxlib
import pytest
from support.valgrind_needed import needs_valgrind

from perfsuite import call
from perfsuite.measure import instructions
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.watch import UserLine

DUMP = """\
positions: line
events: Ir
summary: 58

ob=/usr/lib/libc.so.6
fl=malloc.c
fn=malloc@@GLIBC_2.2.5
0 7
cob=/x/jaxlib/libjax_common.so
cfn=jax::PjitFunction::Call(int, std::vector<int> const&)
calls=3 0
0 1000
0 5

ob=/x/jaxlib/libjax_common.so
fl=???
fn=jax::(anonymous namespace)::PjitFunction::Call(int, std::vector<int> const&)'2
0 20
fn=void absl::Hash<int>::operator()(int) const
0 11
fn=0x00000000004a2b0
0 8

ob=/usr/lib/libpython3.11.so.1.0
fn=_PyObject_Realloc'2
0 30

ob=/x/jaxlib/libjax_common.so
fn=nanobind::detail::nb_type_c2p(nanobind::detail::nb_internals*, std::type_info const*)
0 6

ob=???
fn=???
0 9
totals: 96
"""


def test_what_a_function_costs_itself_is_counted_under_a_short_name():
    assert instructions._total(DUMP) == 60
    assert instructions._by_function(DUMP) == {
        "libc.so.6:malloc": 12,
        "libjax_common.so:jax::PjitFunction::Call": 20,
        "libjax_common.so:absl::Hash": 11,
        "libjax_common.so:others": 8,
        "compiled code:others": 9,
    }


def test_a_part_is_a_function_and_the_users_function_that_it_runs_for(monkeypatch):
    monkeypatch.setattr(instructions, "_NAMED", 0.2)
    lines = [UserLine("/x/step.py", "step", 4), UserLine("/x/step.py", "step", 7), None]
    parts, places = instructions._parts_of(lines, [instructions._by_function(DUMP)] * 3)
    assert parts["libjax_common.so:jax::PjitFunction::Call in step.py:step"] == 40
    assert parts["libjax_common.so:others in step.py:step"] == 2 * (11 + 8), "too small to be named"
    assert parts["compiled code:others"] == 9
    assert sum(parts.values()) == 3 * 60
    assert places["compiled code:others in step.py:step"].endswith("step.py:4")
    assert "libjax_common.so:absl::Hash in step.py:step" in places, "a baseline may name it"
    assert "libjax_common.so:others in step.py:step" in places


@needs_valgrind
def test_the_functions_of_jax_that_are_left_out_are_in_this_jaxlib():
    names = {name for each in instructions._LEFT_OUT if "::" in each for name in re.findall(r"\w{6,}", each)}
    (library,) = Path(jaxlib.__file__).parent.glob("libjax_common.*")
    symbols = library.read_bytes()
    # As compilers write names of C++: each behind its length.
    assert [name for name in names if f"{len(name)}{name}".encode() not in symbols] == []
    assert {"FindInternal", "WeakValueInterner", "MaybeGetTask", "AddUsageEvent"} < names


class Callgrind:
    """Counts nothing but its dumps."""

    dumps = 0

    def dump(self):
        self.dumps += 1

    def zero(self):
        pass


STEP = """\
def inner(x):
    return x

def outer(x):
    y = inner(x)
    return sorted([y])

def loops(x):
    for _ in range(9):
        x = abs(x)
    return outer(x)
"""


def windows(function):
    """The lines that have a window while a function of `STEP` runs."""
    scope: dict = {}
    exec(compile(STEP, "/x/step.py", "exec"), scope)
    callgrind = Callgrind()
    lines = instructions._run_by_lines(callgrind, call(scope[function], 1))
    assert callgrind.dumps == len(lines)
    return [line and (line.function, line.line) for line in lines]


def test_windows_are_those_of_the_users_lines():
    assert windows("outer") == [None, ("outer", 5), ("inner", 2), ("outer", 5), ("outer", 6), None]


@pytest.mark.parametrize(("most", "counted"), [(99, 9), (8, 8)])
def test_after_many_lines_windows_are_those_of_functions_and_then_end(monkeypatch, most, counted):
    monkeypatch.setattr(instructions, "_MOST_LINES", 3)
    monkeypatch.setattr(instructions, "_MOST_WINDOWS", most)
    ways = [
        ("loops", 9),
        ("loops", 10),
        ("loops", 9),
        ("loops", 8),
        ("outer", 4),
        ("inner", 1),
        ("outer", 4),
        ("loops", 8),
        None,
    ]
    assert windows("loops")[1:] == ways[:counted]


def test_nothing_is_counted_while_the_interpreter_still_adapts_the_code(monkeypatch, tmp_path):
    runs, runs_before = [], []

    class Counting:
        def __init__(self, folder):
            self.zero = self.dump = lambda: None

        @contextlib.contextmanager
        def counting(self):
            runs_before.append(len(runs))
            yield

        def dumps(self):
            return [DUMP] * 2 * (instructions._FIRST_WINDOWS + instructions._WINDOWS)

    monkeypatch.setattr(instructions, "_Callgrind", Counting)
    with pytest.raises(MeasurementError, match="too few"):
        instructions.count_instructions(call(lambda: runs.append(1), carry=0), tmp_path)
    assert runs_before[0] >= 50


@pytest.mark.parametrize(("differ", "total"), [(0, 100_000), (300, 100_000), (400, 120_000)])
def test_where_windows_differ_many_are_counted(monkeypatch, tmp_path, differ, total):
    later, dumped = itertools.count(), []

    class Counting:
        takes = 0

        def __init__(self, folder):
            self.zero = lambda: None

        def dump(self):
            dumped.append(f"fn=work\n0 {1_000 + self.takes}\ntotals: {1_000 + self.takes}\n")
            Counting.takes = 0

        @contextlib.contextmanager
        def counting(self):
            yield

        def dumps(self):
            texts = dumped[:]
            dumped.clear()
            return texts

    def work():
        number = next(later) - warm
        Counting.takes = 120_000 if number > 30 else 100_000 + number % 3 * differ - differ

    warm = 1 + instructions._RUNS + instructions._FIRST_WINDOWS
    monkeypatch.setattr(instructions, "_Callgrind", Counting)
    assert instructions.count_instructions(call(work), tmp_path).total == total


@needs_valgrind
def test_a_process_without_valgrind_does_not_count(tmp_path):
    with pytest.raises(MeasurementError, match="does not run under Valgrind"):
        instructions._Callgrind(tmp_path)


@pytest.mark.parametrize(
    ("system", "machine", "version", "why"),
    [
        ("Linux", "x86_64", "3.19.0", ""),
        ("Linux", "x86_64", None, "perf.instructions needs Valgrind: apt-get install valgrind"),
        ("Darwin", "arm64", None, "perf.instructions counts on x86-64 Linux, this is Darwin on arm64"),
    ],
)
def test_where_nothing_can_count_the_test_is_skipped_with_what_to_do(monkeypatch, system, machine, version, why):  # fmt: skip
    monkeypatch.setattr(instructions.platform, "system", lambda: system)
    monkeypatch.setattr(instructions.platform, "machine", lambda: machine)
    monkeypatch.setattr(instructions, "valgrind_version", lambda: version)
    assert instructions.why_no_instructions() == why
