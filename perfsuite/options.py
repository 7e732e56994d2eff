"""The command line and the ini options: each is a row of `OPTIONS`, and the values are one frozen `Options`.

The arguments of `@pytest.mark.perf` are here too.
"""

import argparse
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import pytest

STRICTNESS = ("new", "inconclusive")
"""The verdicts that --perf-strict can fail, by the words of `gate.verdict.Verdict`."""

SIZES = ("small", "full")
SKIP_REASON = "perf test: run it with `pytest --perf`"
HERE = "here"
"""The id of `perf_target` where no target is named."""

_AS_GIVEN = object()


class Options(NamedTuple):  # to make a frozen dataclass of it takes 0.8 ms of every idle session, and this 0.1
    """What the user asked for. `active` is true with --perf, --perf-only or --perf-save."""

    active: bool
    only: bool
    save: bool
    """Whether the metrics become baselines."""
    strict: tuple[str, ...]
    """The verdicts that fail a test beside "fail"."""
    size: str
    seconds: float
    baselines: Path
    targets: tuple[str, ...]
    """Devices to compile for, by the names of their baseline files, in the order given; checked at first use."""
    targets_from: str
    """The option that named the targets, for messages."""
    traces: Path | None = None
    """The folder for the profiler's traces of perf tests; None records none."""
    report: Path | None = None
    """The folder for the report; None writes none."""
    tolerance: float | None = None
    """How much worse than its baseline a ratio or a time may be, relative; None is the default of its kind."""
    allow_missing: bool = False
    """Whether recorded metrics may be missing because a target's compiler is not installed."""

    @property
    def gating(self) -> bool:
        """Whether it is --perf alone that runs the perf tests."""
        return self.active and not self.only and not self.save


def folder(text: str) -> str:
    """The name of a folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a folder, got an empty name")
    return text


def above_zero(what: str) -> Callable[[str], float]:
    """What reads `what`, such as "a number of seconds", above zero."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise argparse.ArgumentTypeError(f"must be {what} above zero, got {text!r}")
        return value

    return number


class _Strict(argparse.Action):
    """An option alone, which means "new", or with words behind an equals sign.

    Every spelling is an option of its own, without an argument: an optional argument would swallow the path that
    follows in `pytest --perf --perf-strict tests/perf`.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        named = (option_string or "").partition("=")[2]
        every = {*getattr(namespace, self.dest), *(named or "new").split(",")}
        setattr(namespace, self.dest, tuple(word for word in STRICTNESS if word in every))


class Option(NamedTuple):
    """An option of the command line. `declared` are the arguments of pytest's `addoption`.

    `field` is the field of `Options` with its value: such an option is the same in all processes of a
    `jax.distributed` session. `in_child` is the value in a process that the session starts to
    make a comparison again.
    """

    name: str
    help: str
    field: str = ""
    declared: Mapping[str, Any] = {"action": "store_true"}
    in_child: Any = _AS_GIVEN
    spellings: Sequence[str] = ()

    @property
    def destination(self) -> str:
        """Pytest's name for the option."""
        return self.name.removeprefix("--").replace("-", "_")

    def value(self, options: Options) -> Any:
        """What was asked for. Of a folder only whether there is one: its name may be secret, or another elsewhere."""
        value = getattr(options, self.field)
        if self.declared.get("type") is folder:
            return value is not None
        return list(value) if isinstance(value, tuple) else value


_FOLDER = {"type": folder, "metavar": "DIR"}

OPTIONS = (
    Option("--perf", "run the perf tests, and fail each test that got worse", "gating", in_child=True),
    Option("--perf-only", "like --perf, and deselect all other tests", "only"),
    Option("--perf-save", "run the perf tests, and record their metrics as baselines", "save", in_child=False),
    Option(
        "--perf-strict",
        "fail a perf test that has a metric without a baseline (new, the default), or one that no verdict was reached "
        "about (inconclusive)",
        "strict",
        {"action": _Strict, "nargs": 0, "default": ()},
        in_child=(),
        spellings=[f"--perf-strict={words}" for words in (*STRICTNESS, "new,inconclusive", "inconclusive,new")],
    ),
    Option(
        "--perf-allow-missing",
        "skip a test whose target has no compiler here, although it has baselines for the target",
        "allow_missing",
    ),
    Option(
        "--perf-size",
        "size of the workloads: small for a CPU, full for an accelerator (default: small)",
        "size",
        {"choices": SIZES, "default": "small"},
    ),
    Option(
        "--perf-seconds",
        "longest sampling time of one timing gate, in seconds (default: 5)",
        "seconds",
        {"type": above_zero("a number of seconds"), "default": 5.0, "metavar": "S"},
    ),
    Option("--perf-again", argparse.SUPPRESS, declared={"metavar": "DIR"}),  # see perfsuite.session.fresh
    Option(
        "--perf-baselines",
        "folder of the baseline files (default: the ini option perf_baselines)",
        declared={"metavar": "DIR"},
    ),
    Option(
        "--perf-target",
        "compile for this device, present or not, instead of the devices in the ini option perf_targets: "
        "--perf-target=tpu-v5e or gpu-h100; repeat the option for several devices",
        "targets",
        {"action": "append", "default": [], "metavar": "NAME"},
    ),
    Option(
        "--perf-trace",
        "after measuring, trace the calls of each perf test with JAX's profiler, and keep the traces (Perfetto and "
        "XPlane) in this folder",
        "traces",
        _FOLDER,
        in_child=None,
    ),
    Option(
        "--perf-report",
        "write a report of the perf tests into this folder: report.html (one page that needs no other file), "
        "report.json and report.md",
        declared=_FOLDER,
        in_child=None,
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option. pytest itself rejects those that it does not know."""
    group = parser.getgroup("perfsuite", "performance gates for JAX")
    for option in OPTIONS:
        group.addoption(option.name, *option.spellings, dest=option.destination, help=option.help, **option.declared)
    parser.addini("perf_baselines", "folder of the baseline files, relative to the rootdir", default="baselines")
    parser.addini("perf_strict", "words of --perf-strict: new inconclusive; true means new", type="args", default=[])
    parser.addini("perf_tolerance", "how much worse than its baseline a ratio or a time may be: 0.25 is 25 %")
    parser.addini("perf_targets", "devices to compile for, in tests that use perf_target: tpu-v5e tpu-v6e", type="args")


def options_in_child() -> dict[str, Any]:
    """The options that are others in a process that the session starts, by pytest's names for them."""
    return {option.destination: option.in_child for option in OPTIONS if option.in_child is not _AS_GIVEN}


def options_that_must_agree(options: Options) -> dict[str, Any]:
    """The values that are the same in all processes of a session, by the names of the options."""
    return {option.name: option.value(options) for option in OPTIONS if option.field}


def asks_for_perf(options: argparse.Namespace) -> bool:
    """Whether a command line runs the perf tests."""
    return bool(options.perf or options.perf_only or options.perf_save)


def read_options(config: pytest.Config) -> Options:
    """The options of this session. Raises `pytest.UsageError` for options that contradict each other."""
    option = config.option
    save = option.perf_save
    if save and option.perf_strict:
        raise pytest.UsageError(
            "--perf-save and --perf-strict contradict each other: one records metrics without a baseline, the other "
            "fails on them"
        )
    targets = option.perf_target or config.getini("perf_targets")
    folder = config.invocation_params.dir / option.perf_baselines if option.perf_baselines else None
    return Options(
        active=asks_for_perf(option),
        only=option.perf_only,
        save=save,
        strict=() if save else option.perf_strict or _strictness(config.getini("perf_strict")),
        size=option.perf_size,
        seconds=option.perf_seconds,
        baselines=folder or config.rootpath / config.getini("perf_baselines"),
        targets=tuple(dict.fromkeys(targets)),
        targets_from="--perf-target" if option.perf_target else "the ini option perf_targets",
        traces=config.invocation_params.dir / option.perf_trace if option.perf_trace else None,
        report=config.invocation_params.dir / option.perf_report if option.perf_report else None,
        tolerance=_tolerance(config.getini("perf_tolerance")),
        allow_missing=option.perf_allow_missing,
    )


def _strictness(lines: Sequence[str]) -> tuple[str, ...]:
    """What the ini option perf_strict says: words, or whether it is on."""
    words = [word.lower() for text in lines for word in str(text).split(",") if word]
    if words in (["true"], ["1"], ["yes"], ["on"]):
        return ("new",)
    if words in ([], ["false"], ["0"], ["no"], ["off"]):
        return ()
    if wrong := [word for word in words if word not in STRICTNESS]:
        allowed = ", ".join(STRICTNESS)
        raise pytest.UsageError(f"the ini option perf_strict: must be true, false or of {allowed}, got {wrong[0]!r}")
    return tuple(word for word in STRICTNESS if word in words)


def _tolerance(text: str | None) -> float | None:
    """What the ini option perf_tolerance says; None where it says nothing."""
    try:
        return above_zero("a number")(text) if text else None
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"the ini option perf_tolerance: {error}") from None


class MarkerArguments(TypedDict, total=False):
    """What `@pytest.mark.perf` takes. Those that no marker gives are missing."""

    quiet: bool
    seconds: float
    tolerance: float


def marker_arguments(item: pytest.Item) -> MarkerArguments:
    """The keyword arguments of `@pytest.mark.perf`, the closest marker first. Raises `pytest.UsageError` if bad."""
    arguments: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("perf"))):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.perf takes keyword arguments only, got {_shown(marker.args)}"
            )
        for name, value in marker.kwargs.items():
            if name not in _KINDS:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf has no argument {name!r}; it takes {', '.join(_KINDS)}"
                )
            fits, wanted, convert = _KINDS[name]
            if not fits(value):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf({name}=...) must be {wanted}, got {_shown(value)}"
                )
            arguments[name] = convert(value)
    return cast(MarkerArguments, arguments)


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # a whole number that no float can hold
        return False


_NUMBER = _is_positive, "a number above zero", float
_KINDS: dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]] = {
    "quiet": (lambda value: isinstance(value, bool), "True or False", bool),
    "seconds": _NUMBER,
    "tolerance": _NUMBER,
}
"""By argument: whether a value is one, what it must be, and what makes it one."""


def _shown(value: Any) -> str:
    """An argument as a message shows it: not too long, and whatever its `repr` does."""
    try:
        shown = reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= 100 else f"{shown[:97]}..."  # nested ones come out long
