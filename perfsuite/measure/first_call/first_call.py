"""`first_call`: what a function costs before it first runs, in counts.

The function is traced and lowered twice, each time as if JAX had never seen it: inside a context of its own
(`jax.make_user_context`), which is part of the key of JAX's caches. So nothing has to be cleared, and what the test has
compiled stays compiled. The first time gives the seconds, imports what is imported late, and fills the caches that do
not have the context in their key, such as those of a user's own functions. The second time is counted.
"""

import contextlib
import dataclasses
import itertools
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from perfsuite.measure import progress
from perfsuite.measure.call import Call, text_of_array
from perfsuite.measure.compiles.compiles import telling_nobody
from perfsuite.measure.compiles.settle import borrowed, collector_off, refuse_deleted
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.watch import CallWatch, UserLine, is_users
from perfsuite.measure.metric import CALLS_TO_LOWER, CALLS_TO_TRACE, EQUATIONS, Kind, Metric
from perfsuite.measure.private import compile_events
from perfsuite.measure.private.compile_events import stage_of
from perfsuite.measure.private.jax_stack import behind_bound
from perfsuite.measure.program.lowering import inner_jaxprs
from perfsuite.measure.words import plural

PRIMITIVES_NAMED = 3

NOT_USERS = "libraries"
"""What is traced for no line of the user's, such as the wrapper of a jitted function of jax.numpy."""

_numbers = itertools.count(1)


class Counted(NamedTuple):
    """A metric that is counted: what it is called after the name of the function, its unit and its kind."""

    suffix: str
    unit: str
    kind: Kind = "count"


COUNTED: dict[str, Counted] = {
    "constants": Counted(" constants", "constants"),
    "constant_bytes": Counted(" constant bytes", "bytes", "size"),
    "folded_flops": Counted(" folded FLOP", "FLOP", "size"),
    "folded_bytes": Counted(" folded bytes", "bytes", "size"),
    "equations": Counted(" equations", EQUATIONS),
    "traces": Counted(" traces", "traces"),
    "trace_calls": Counted(" trace calls", CALLS_TO_TRACE, "size"),
    "lowering_calls": Counted(" lowering calls", CALLS_TO_LOWER, "size"),
    "stablehlo_bytes": Counted(" StableHLO bytes", "bytes", "size"),
}
"""By the field of `Budget` that limits it. The causes come first, because a message explains the first that fails.

Calls are sizes, with 1 % of room, for two reasons that were seen (jax 0.10.2). A library that leaves a loop over a set
early makes more or fewer of them by the hash seed: `can_blas` of opt_einsum, which `jax.numpy.einsum` runs, makes 8 to
24 of the 762,674 of a step of BERT. And JAX makes a `ShapedArray` anew only where no equal one is alive, which an
earlier test may hold: 4 calls of 178,976 in a generation.
"""

_SECONDS = (" trace seconds", " lowering seconds", " compile seconds")
SUFFIXES = (*(each.suffix for each in COUNTED.values()), *_SECONDS)


class Parts(NamedTuple):
    """What a metric is made of: amounts by name, the largest first, and where in the source each is now."""

    amounts: dict[str, int]
    places: dict[str, str]


Equations = Counter[tuple[UserLine | None, str]]
"""Equations by the user's line that makes them and by primitive. The line is None where no code of the user does."""

_FREE = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
"""What the compiler does not compute, or as often as it is read."""
_MOVING = ("transpose", "slice", "dynamic_slice", "concatenate", "pad", "gather", "rev", "copy", "convert_element_type")
"""Primitives without FLOP."""
_WHOLE = ("reduce", "select_and", "scatter", "sort", "pallas")
"""The primitives that begin so have jaxprs of single numbers, or of kernels."""
_WINDOWS = ("reduce_window", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
"""The primitives that the compiler computes of numbered elements too (jax 0.10.2): it leaves others of these, such as a
causal mask, to the program."""
_ARGUMENTS, _NUMBERED, _FIXED = range(3)
"""What a value depends on: arguments; nothing but the numbers of its elements (`iota`); nothing."""


class Folding(NamedTuple):
    """What a jaxpr computes that depends on no argument: what outputs depend on, the FLOP and the bytes of results."""

    outputs: tuple[int, ...]
    flops: Equations
    bytes: Equations


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that a program contains: `array` is "float32[1000,10000]", `line` the user's line that uses it first."""

    array: str
    bytes: int
    line: UserLine | None

    def __str__(self) -> str:
        return f"{self.array} of {self.bytes:,} bytes{f' at {self.line.place}' if self.line else ''}"


@dataclasses.dataclass(frozen=True)
class FirstCall:
    """What it takes to trace and lower the programs of one call.

    `trace_calls` and `lowering_calls` are the Python and C calls that JAX and the user's code make while JAX traces and
    while it lowers, the same to 1 % (see `COUNTED`). `traces` are the functions that JAX traces, those inside
    others among them, `equations` those of the jaxprs of all programs, those inside others among them.
    `stablehlo_bytes` is the size of what the compiler gets, without the constants, which are in `constants`, the
    largest first. `folded_flops` and `folded_bytes` are the work that depends on no argument, and its results: the
    compiler may do it, slower than the program would. Single numbers do not count, nor what only broadcasts.

    `calls_by_line` has the calls while tracing by the user's line that makes them, `equations_by_line` the equations by
    the user's line and by primitive, as `folded_flops_by_line` has FLOP and `folded_bytes_by_line` bytes,
    `traces_by_function` the traces by name, file and line of the function. `trace_seconds` and `lowering_seconds` are
    those of the run that was not counted; `compile_seconds` is None where nothing was compiled.
    `instructions` are those of each stage ("trace", "lower", "compile"), where they are counted.
    """

    label: str
    trace_calls: int
    lowering_calls: int
    traces: int
    equations: int
    stablehlo_bytes: int
    constants: tuple[Constant, ...]
    folded_flops: int
    folded_bytes: int
    calls_by_line: Counter[UserLine | None]
    equations_by_line: Equations
    folded_flops_by_line: Equations
    folded_bytes_by_line: Equations
    traces_by_function: Counter[tuple[str, str, int]]
    programs: int
    trace_seconds: float
    lowering_seconds: float
    compile_seconds: float | None
    instructions: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def constant_bytes(self) -> int:
        """The size of all `constants`."""
        return sum(each.bytes for each in self.constants)

    def value(self, field: str) -> int:
        """The value of a metric of `COUNTED`."""
        return len(self.constants) if field == "constants" else getattr(self, field)

    def parts(self, field: str) -> Parts:
        """What a metric of `COUNTED` is made of; nothing is known of what lowering calls, and of a program's bytes."""
        if field == "trace_calls":
            return _by_function({line: {"": calls} for line, calls in self.calls_by_line.items()})
        if field in ("equations", "folded_flops", "folded_bytes"):
            primitives: dict[UserLine | None, dict[str, int]] = {}
            for (line, primitive), count in getattr(self, f"{field}_by_line").items():
                primitives.setdefault(line, {})[primitive] = count
            return _by_function(primitives)
        amounts: Counter[str] = Counter()
        places: dict[str, list[str]] = {}
        if field == "traces":
            for (function, file, line_number), traces in sorted(self.traces_by_function.items()):
                amounts[function] += traces
                if file and is_users(file) and function not in places:
                    places[function] = [UserLine(file, function, line_number).place]
        if field in ("constants", "constant_bytes"):
            for constant in self.constants:
                amounts[constant.array] += 1 if field == "constants" else constant.bytes
                if constant.line is not None:
                    places.setdefault(constant.array, []).append(constant.line.place)
        return Parts(_largest(amounts), {part: ", ".join(dict.fromkeys(each)) for part, each in places.items()})

    def metrics(self, name: str) -> dict[str, Metric]:
        """The counts and sizes, by the field of `Budget` that limits each."""
        metrics = {}
        for field, (suffix, unit, kind) in COUNTED.items():
            detail, places = self.parts(field)
            value = self.value(field)
            metrics[field] = Metric(name + suffix, value, unit, kind, detail=detail or None, places=places or None)
        return metrics

    def seconds(self, name: str) -> list[Metric]:
        """The seconds of each stage, which nothing gates."""
        seconds = zip(_SECONDS, (self.trace_seconds, self.lowering_seconds, self.compile_seconds), strict=True)
        return [Metric(name + suffix, s, "s", "info", samples=1) for suffix, s in seconds if s is not None]


def first_call(call: Call, *, compiles: bool = True) -> FirstCall:
    """Count what the first call of `call` takes.

    A function with `.lower`, of `jax.jit`, `filter_jit` or `nnx.jit`, is lowered and compiled, and does not run: its
    arguments may be `jax.ShapeDtypeStruct`s. `compiles=False` leaves out the compiler, which gives seconds only. Any
    other function runs twice, with all that it jits.

    Counts with `sys.setprofile`, in this thread only, and restores a profiler that was set. Raises `MeasurementError`
    for a call that traces nothing, and for one whose arguments are deleted after it ran.
    """
    __tracebackhide__ = True
    refuse_deleted(call, f"perf.first_call({call.label}): ")
    with borrowed(call) as subject, telling_nobody(), progress.waiting(f"the first call of {call.label}"):
        once = first_run(subject)
        with apart(), stage_seconds() as seconds:
            lowered = once()
            if isinstance(lowered, jax.stages.Lowered) and compiles:
                lowered.compile()
        refuse_deleted(subject, f"perf.first_call({call.label}): ")
        watch = _watched(once)
    if not watch.programs:
        raise MeasurementError(f"perf.first_call({call.label}): the call traces and lowers nothing; jit the function")
    jaxprs = Jaxprs()
    equations: Equations = Counter()
    flops: Equations = Counter()
    sizes: Equations = Counter()
    for program in watch.programs:
        equations.update(jaxprs.equations(program.jaxpr))
        folding = jaxprs.folding(program.jaxpr)
        flops.update(folding.flops)
        sizes.update(folding.bytes)
    return FirstCall(
        call.label,
        watch.calls["trace"],
        watch.calls["lower"],
        watch.traces.total(),
        equations.total(),
        sum(program.stablehlo_bytes for program in watch.programs),
        tuple(constant for program in watch.programs for constant in jaxprs.constants(program.jaxpr)),
        flops.total(),
        sizes.total(),
        watch.by_line,
        equations,
        +flops,
        +sizes,
        watch.traces,
        len(watch.programs),
        seconds.get("trace", 0.0),
        seconds.get("lower", 0.0),
        seconds.get("compile"),
    )


def first_run(call: Call) -> Callable[[], Any]:
    """Lowers a call of a function that can be, and gives JAX's `Lowered`; runs any other, and waits."""
    fn, args, kwargs = behind_bound(call.fn, call.args, call.kwargs)
    lower = getattr(fn, "lower", None)
    if not callable(lower):
        return lambda: jax.block_until_ready(call.run())

    def once() -> Any:
        lowered = lower(*args, **kwargs)
        while not isinstance(lowered, jax.stages.Lowered):  # those of Equinox and NNX hold JAX's
            lowered = lowered.lowered
        return lowered

    return once


def _watched(once: Callable[[], Any]) -> CallWatch:
    """Run `once` apart, and watch it."""
    watch = CallWatch()
    before = sys.getprofile()
    # A finalizer that happens to run would count. A warning is shown by Python code, which is not there with other
    # options of pytest. The first run has shown it.
    with collector_off(), apart(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sys.setprofile(watch.profile)
            once()
        finally:
            sys.setprofile(before)
    return watch


def apart() -> contextlib.AbstractContextManager[Any]:
    """Inside, JAX has traced nothing yet."""
    return compile_events.make_context()(next(_numbers))


@contextlib.contextmanager
def stage_seconds() -> Iterator[dict[str, float]]:
    """The seconds of each stage that this thread passes through inside; of one inside another only the outer counts."""
    seconds: dict[str, float] = {}
    started = 0.0

    def began() -> None:
        nonlocal started
        started = time.perf_counter()

    def ended(stage: str) -> None:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started

    with at_stages(began, ended):
        yield seconds


@contextlib.contextmanager
def at_stages(began: Callable[[], object], ended: Callable[[str], object]) -> Iterator[None]:
    """Call `began()` and `ended(stage)` where this thread passes through a stage; not for one inside another."""
    depth = 0

    def on_start(event: str, value: float, **_: str | int) -> None:
        nonlocal depth
        if stage_of(event):
            depth += 1
            if depth == 1:
                began()

    def on_end(event: str, duration_secs: float, **_: str | int) -> None:
        nonlocal depth
        if (stage := stage_of(event)) is not None and depth:
            depth -= 1
            if not depth:
                ended(stage)

    jax.monitoring.register_scalar_listener(on_start)
    jax.monitoring.register_event_duration_secs_listener(on_end)
    try:
        yield
    finally:
        jax.monitoring.unregister_scalar_listener(on_start)
        jax.monitoring.unregister_event_duration_listener(on_end)


class Jaxprs:
    """Counts equations and finds constants, and looks at what is in several jaxprs once."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[Any, Equations]] = {}  # with the jaxpr, so that its identity stays its own
        self._folded: dict[Any, tuple[Any, Folding]] = {}
        self._lines: dict[Any, UserLine | None] = {}

    def equations(self, jaxpr: Any) -> Equations:
        """Every equation, also of those inside loops, branches and jitted functions, as often as it is there."""
        plain = _plain(jaxpr)
        if id(plain) in self._counted:
            return self._counted[id(plain)][1]
        equations: Equations = Counter()
        for equation in plain.eqns:
            line = self._line_of(equation)
            equations[line, equation.primitive.name] += 1
            for inner in inner_jaxprs(equation):
                for (inner_line, primitive), count in self.equations(inner).items():
                    # Of what a library traced by itself no line is the user's, but the line that called it is.
                    equations[inner_line or line, primitive] += count
        self._counted[id(plain)] = plain, equations
        return equations

    def folding(self, jaxpr: Any, known: tuple[int, ...] = ()) -> Folding:
        """What depends on no argument; `known` says what the inputs depend on."""
        plain = _plain(jaxpr)
        if (plain_key := (id(plain), known)) in self._folded:
            return self._folded[plain_key][1]
        depends = dict.fromkeys(plain.constvars, _FIXED) | dict(zip(plain.invars, known, strict=False))
        flops: Equations = Counter()
        sizes: Equations = Counter()
        for equation in plain.eqns:
            line, name = self._line_of(equation), equation.primitive.name
            operands = tuple(self._dependence(operand, depends) for operand in equation.invars)
            least = _ARGUMENTS if equation.effects else min(operands, default=_FIXED)
            least = _NUMBERED if name == "iota" else _FIXED if least and name.startswith(_WINDOWS) else least
            outputs = (least,) * len(equation.outvars)
            inner = [] if name.startswith(_WHOLE) else list(inner_jaxprs(equation))
            for each in inner:
                inputs = len(_plain(each).invars)
                is_call = len(inner) == 1 and name != "scan" and inputs == len(operands)
                part = self.folding(each, operands if is_call else (least,) * inputs)
                outputs = part.outputs if is_call else outputs
                times = equation.params["length"] if least and name == "scan" else 1
                for total, amounts in ((flops, part.flops), (sizes, part.bytes)):
                    for (inner_line, primitive), amount in amounts.items():
                        total[inner_line or line, primitive] += times * amount
            arrays = [each.aval for each in (*equation.invars, *equation.outvars) if _is_array(each.aval)]
            if least == _FIXED and not inner and name not in _FREE and arrays:
                flops[line, name] += _flops(equation)
                sizes[line, name] += sum(each.aval.size * each.aval.dtype.itemsize for each in equation.outvars)
            depends.update(zip(equation.outvars, outputs, strict=False))
        outputs = tuple(self._dependence(output, depends) for output in plain.outvars)
        self._folded[plain_key] = plain, Folding(outputs, flops, sizes)
        return self._folded[plain_key][1]

    @staticmethod
    def _dependence(operand: Any, depends: dict[Any, int]) -> int:
        return _FIXED if hasattr(operand, "val") else depends.get(operand, _ARGUMENTS)

    def constants(self, jaxpr: Any) -> list[Constant]:
        """Every array in a closed jaxpr, once, the largest first. Single numbers are not counted."""
        constants: dict[int, Constant] = {}
        for array, line in self._arrays(jaxpr, None, set()):
            constant = constants.get(id(array))
            if constant is None or constant.line is None:
                constants[id(array)] = Constant(
                    text_of_array(array), math.prod(array.shape) * array.dtype.itemsize, line
                )
        return sorted(constants.values(), key=lambda each: (-each.bytes, each.array, each.line or ()))

    def _arrays(self, jaxpr: Any, outer: UserLine | None, visited: set[int]) -> Iterator[tuple[Any, UserLine | None]]:
        """Each array of a jaxpr and those inside it, with the line; one may come several times."""
        plain = _plain(jaxpr)
        if id(plain) in visited:
            return
        visited.add(id(plain))
        for variable, array in zip(plain.constvars, getattr(jaxpr, "consts", ()), strict=False):
            if _is_array(array):
                yield array, self._line_that_uses(plain, variable) or outer
        for equation in plain.eqns:
            line = self._line_of(equation) or outer
            for operand in equation.invars:
                if _is_array(array := getattr(operand, "val", None)):
                    yield array, line
            for inner in inner_jaxprs(equation):
                yield from self._arrays(inner, line, visited)

    def _line_that_uses(self, jaxpr: Any, variable: Any) -> UserLine | None:
        """The user's line of the first equation that has a variable; inside of it where that runs a jaxpr."""
        for equation in jaxpr.eqns:
            for place, operand in enumerate(equation.invars):
                if operand is variable:
                    return self._line_inside(equation, place) or self._line_of(equation)
        return None

    def _line_inside(self, equation: Any, place: int) -> UserLine | None:
        inner = [_plain(each) for each in inner_jaxprs(equation)]
        if len(inner) != 1 or len(inner[0].invars) != len(equation.invars):
            return None
        return self._line_that_uses(inner[0], inner[0].invars[place])

    def _line_of(self, equation: Any) -> UserLine | None:
        key = compile_events.traceback_of(equation)
        if key not in self._lines:
            users = (UserLine(*each) for each in compile_events.frames_of(equation) if is_users(each[0]))
            self._lines[key] = next(users, None)
        return self._lines[key]


def _flops(equation: Any) -> int:
    """The FLOP of an equation: two for each product, one for each element that a reduction or a window reads, one for
    each element of the result of anything else that computes.
    """
    name, params = equation.primitive.name, equation.params
    shapes = [operand.aval.shape for operand in equation.invars]
    size = sum(math.prod(result.aval.shape) for result in equation.outvars)
    if name in _MOVING:
        return 0
    if name == "dot_general":
        ((contracted, _), _) = params["dimension_numbers"]
        return 2 * size * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        return 2 * size * math.prod(shapes[1]) // shapes[1][params["dimension_numbers"].rhs_spec[0]]
    if "window_dimensions" in params:
        return size * math.prod(params["window_dimensions"])
    return max(size, math.prod(shapes[0])) if name.startswith(("reduce", "arg", "cum", "sort")) else size


def _plain(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _is_array(value: Any) -> bool:
    return len(getattr(value, "shape", None) or ()) > 0


def _by_function(lines: Mapping[UserLine | None, Mapping[str, int]]) -> Parts:
    """Lines move with every edit, so the amounts are those of functions; their places are the lines."""
    amounts: Counter[str] = Counter()
    of_lines: dict[str, Counter[UserLine]] = {}
    for line, kinds in lines.items():
        name = NOT_USERS if line is None else line.name
        amounts[name] += sum(kinds.values())
        if line is not None:
            of_lines.setdefault(name, Counter())[line] += sum(kinds.values())
    return Parts(_largest(amounts), {name: _place_of(counts, lines) for name, counts in of_lines.items()})


def _place_of(lines: Counter[UserLine], kinds: Mapping[UserLine | None, Mapping[str, int]]) -> str:
    """`model.py:12 (dot_general, add) and 2 more lines`: the line with most."""
    line = min(lines, key=lambda each: (-lines[each], each))
    named = list(_largest(Counter(kinds[line])))[:PRIMITIVES_NAMED]
    text = f"{line.place} ({', '.join(named)})" if any(named) else line.place
    return text if len(lines) == 1 else f"{text} and {plural(len(lines) - 1, 'more line')}"


def _largest(amounts: Counter[str]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))
