"""`%load_ext perfsuite`: the instruments in IPython and notebooks, without baselines.

`%perf compare f(x) vs g(x)` runs one instrument; `%%perf` runs a cell with `perf` in it. Both print the metrics, and
raise where a gate of a test would fail.
"""

import ast
import contextlib
import dataclasses
import inspect
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.fixture import Perf
from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import METHODS, TestState, foreign_methods, instrument_class
from perfsuite.measure.call import Call, call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.metric import span
from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.measure.private.compile_events import make_context
from perfsuite.measure.words import number
from perfsuite.options import Options
from perfsuite.processes import LAUNCH, Launch
from perfsuite.report.tables import aligned
from perfsuite.session.judge import Judge
from perfsuite.session.modes import in_notebook
from perfsuite.session.recorder import Recorder
from perfsuite.session.session import PerfSession

USAGE = """%perf compare f(x) vs g(x)
%perf METHOD f(x), with a method of `perf` that takes one call, such as time or host_calls
%%perf, above a cell that uses `perf`, `call` and `Budget`
--seconds=S, right after the name, is the most time for one timing (default: 1)"""

_SECONDS = re.compile(r"\s*--seconds[ =](\S+)\s*")


class _Config:
    """What instruments ask of pytest's `Config`."""

    def __init__(self) -> None:
        self.stash = pytest.Stash()
        self.stash[LAUNCH] = Launch((), Path.cwd(), {}, (), time.monotonic())

    def get_verbosity(self) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class _Cell:
    """What instruments ask of the test that they are in."""

    config: _Config = dataclasses.field(default_factory=_Config)
    nodeid: str = "the cell"
    name: str = "the cell"
    parent: None = None


class Magic:
    """The magic `perf` of one shell."""

    def __init__(self, shell: Any):
        self.shell = shell
        options = Options(
            active=True,
            only=False,
            save=(),
            strict=(),
            size="small",
            seconds=1.0,
            baselines=Path(tempfile.gettempdir()) / f"perfsuite-{uuid.uuid4()}",  # there is no such folder
            targets=(),
            targets_from="",
        )
        self.session = PerfSession(Judge(options), in_notebook())
        make_context()
        # Remember what compiles from here on, to explain a later recompilation.
        self.observing = contextlib.ExitStack()
        self.observing.enter_context(compiles.observe())

    def perf(self, line: str, cell: str | None = None) -> Any:
        """Run one instrument on an expression, or a cell with `perf` in it, and print the metrics."""
        __tracebackhide__ = True  # an error is shown at the user's own line
        line, seconds = _seconds(line)
        with self._measuring(seconds) as perf:
            if cell is not None:
                if line.strip():
                    raise _usage(f"%%perf takes nothing but --seconds=S, got {line.strip()!r}")
                return self._run(cell, {"perf": perf, "call": call, "Budget": Budget})
            method, calls = _parsed(line)
            getattr(perf, method)(*(self._evaluated(each) for each in calls))
        return None

    @contextlib.contextmanager
    def _measuring(self, seconds: float) -> Iterator[Perf]:
        state = TestState(self.session, cast(pytest.Item, _Cell()), tolerance=None, seconds=seconds)
        try:
            yield Perf(state)
        except (pytest.skip.Exception, CapabilityLost) as reason:  # of what this machine lacks
            print(reason)
        finally:
            print(_table(state.recorder))

    def _run(self, cell: str, names: dict[str, Any]) -> Any:
        """Run the cell's code with these names in the user's namespace; its last expression is the result."""
        __tracebackhide__ = True
        source = self.shell.transform_cell(cell)
        file = self.shell.compile.cache(source)
        tree = ast.parse(source, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        namespace = self.shell.user_ns
        before = {name: namespace[name] for name in names if name in namespace}
        namespace.update(names)
        try:
            self.shell.ex(compile(tree, file, "exec"))
            return None if last is None else self._value(last.value, file)
        finally:
            for name, value in names.items():
                if namespace.get(name) is value:
                    del namespace[name]
            namespace.update(before)

    def _evaluated(self, node: ast.Call) -> Call:
        """The call of an expression such as `step(state, batch)`, with its function and arguments evaluated."""
        names: list[ast.expr | None] = [None if each.arg is None else ast.Constant(each.arg) for each in node.keywords]
        keywords = ast.Dict(names, [each.value for each in node.keywords])
        function, args, kwargs = map(self._value, (node.func, ast.Tuple(node.args, ast.Load()), keywords))
        return call(function, *args, **kwargs)

    def _value(self, node: ast.expr, file: str = "%perf") -> Any:
        __tracebackhide__ = True
        return self.shell.ev(compile(ast.fix_missing_locations(ast.Expression(node)), file, "eval"))


def load_magic(shell: Any) -> None:
    """Give the shell its magic."""
    if (old := shell.magics_manager.magics["line"].get("perf")) is None:
        magic = Magic(shell)
        shell.register_magic_function(magic.perf, "line_cell", "perf")
    elif not isinstance(getattr(old, "__self__", None), Magic):
        raise _usage("this shell has another magic named perf")


def _seconds(line: str) -> tuple[str, float]:
    """The line without --seconds, and its seconds."""
    match = _SECONDS.match(line)
    if match is None:
        return line, 1.0
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(match[1])) < float("inf"):
            return line[match.end() :], seconds
    raise _usage(f"--seconds={match[1]}: it must be a number above zero")


def _parsed(line: str) -> tuple[str, list[ast.Call]]:
    method, _, rest = line.strip().partition(" ")
    expressions = [each.strip() for each in re.split(r"\svs\s", rest)]
    if method != "compare" and not _takes_a_call(method):
        raise _usage(f"%perf has no instrument {method!r}" if method else "%perf needs the name of an instrument")
    if method == "compare" and len(expressions) != 2:
        raise _usage("%perf compare takes two calls with `vs` between them")
    if method != "compare" and len(expressions) != 1:
        raise _usage(f"%perf {method} takes one call")
    calls = []
    for expression in expressions:
        try:
            node = ast.parse(expression, mode="eval").body
        except SyntaxError as error:
            raise _usage(f"{expression!r}: {error.msg}") from None
        if not isinstance(node, ast.Call):
            raise _usage(f"{expression!r} is no call of a function, such as step(state, batch)")
        calls.append(node)
    return method, calls


def _takes_a_call(method: str) -> bool:
    """Whether a method of `perf` has a call as its first argument."""
    if method not in METHODS and method not in foreign_methods():
        return False
    parameters = inspect.signature(getattr(instrument_class(method), method)).parameters
    return list(parameters)[1:2] == ["call"]


def _usage(problem: str) -> Exception:
    from IPython.core.error import UsageError  # optional: only a shell of IPython comes here

    return UsageError(f"{problem}\n{USAGE}")


def _table(recorder: Recorder) -> str:
    """The metrics, with the limits and the verdicts of budgets."""
    judged = {result.metric.title: result for result in recorder.results}
    rows = []
    for title, metric in {**{title: result.metric for title, result in judged.items()}, **recorder.metrics}.items():
        row = [title, f"{span(metric.value, metric.interval)} {metric.unit}"]
        if (result := judged.get(title)) is not None and result.limit is not None:
            row += [f"limit {number(result.limit)}", str(result.verdict)]
        rows.append(row)
    return "\n".join(aligned(rows))
