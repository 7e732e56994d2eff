"""The command line and ini options: each is a row of `OPTIONS`, and what was given is one frozen value."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfsuite.options.values import (
    SAVE_KINDS,
    Save,
    SaveSome,
    Strict,
    above_zero,
    folder,
    strictness_of_ini,
    tolerance_of_ini,
)

SIZES = ("small", "full")
SKIP_REASON = "perf test: run it with `pytest --perf`"
HERE = "here"
"""The id of `perf_target` where no target is named."""

_AS_GIVEN = object()


class Options(NamedTuple):  # to make a frozen dataclass of it takes 0.8 ms of every idle session, and this 0.1
    """What the user asked for. `active` is true with --perf, --perf-only or --perf-save."""

    active: bool
    only: bool
    save: tuple[str, ...]
    """The kinds of changes that become baselines, of `values.SAVE_KINDS`; empty without --perf-save."""
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

    @property
    def gating(self) -> bool:
        """Whether it is --perf alone that runs the perf tests."""
        return self.active and not self.only and not self.save

    @property
    def save_only(self) -> tuple[str, ...] | None:
        """The kinds of changes that a save is limited to; None where it records everything."""
        return None if self.save == SAVE_KINDS else self.save


class Option(NamedTuple):
    """An option of the command line: a flag, unless `type`, `choices`, `several` or `action` says that it takes more.

    `in_child` is the value in a process that the session starts to make a comparison again. Options that `must_agree`
    are the same in all processes of a `jax.distributed` session, and a report lists those that are `in_report`;
    `field` is the field of `Options` that both look at.
    """

    name: str
    help: str
    field: str = ""
    type: Callable[[str], Any] | None = None
    default: Any = None
    metavar: str | None = None
    choices: Sequence[str] | None = None
    several: bool = False
    action: Callable[..., argparse.Action] | None = None
    in_child: Any = _AS_GIVEN
    must_agree: bool = False
    in_report: bool = False

    @property
    def destination(self) -> str:
        """Pytest's name for the option."""
        return self.name.removeprefix("--").replace("-", "_")

    def declare(self, group: pytest.OptionGroup) -> None:
        """Add the option to pytest's."""
        if self.action is not None:
            group.addoption(self.name, action=self.action, dest=self.destination, default=self.default, help=self.help)
        elif self.several:
            group.addoption(self.name, action="append", default=[], metavar=self.metavar, help=self.help)
        elif self.choices is not None:
            group.addoption(self.name, choices=self.choices, default=self.default, help=self.help)
        elif self.metavar is None:
            group.addoption(self.name, action="store_true", help=self.help)
        else:
            group.addoption(self.name, type=self.type, default=self.default, metavar=self.metavar, help=self.help)

    def value(self, options: Options) -> Any:
        """What was asked for. Of a folder only whether there is one: its name may be secret, or another elsewhere."""
        value = getattr(options, self.field)
        return value is not None if self.type is folder else list(value) if isinstance(value, tuple) else value

    def given(self, options: Options) -> list[str]:
        """The option as a command line has it; nothing where it was not given."""
        value = self.value(options)
        if isinstance(value, bool):
            return [self.name] if value else []
        if self.several:
            return [f"{self.name}={each}" for each in value]
        if isinstance(value, list):
            if self.action is Save and value == list(SAVE_KINDS):
                return [self.name]
            return [f"{self.name}={','.join(value)}"] if value else []
        return [] if value == self.default else [f"{self.name}={value:g}" if self.type else f"{self.name}={value}"]


OPTIONS = (
    Option("--perf", "run the perf tests, and fail each test that got worse", "gating", in_child=True, in_report=True),
    Option("--perf-only", "like --perf, and deselect all other tests", "only", must_agree=True, in_report=True),
    Option(
        "--perf-save",
        "run the perf tests and record their metrics as baselines; of the kinds new, better, worse and missing only "
        "those that are named",
        "save",
        default=(),
        action=Save,
        in_child=(),
        must_agree=True,
        in_report=True,
    ),
    Option(
        "--perf-strict",
        "fail a perf test that has a metric without a baseline (new, the default), or one that no verdict was reached "
        "about (inconclusive)",
        "strict",
        default=(),
        action=Strict,
        in_child=(),
        must_agree=True,
        in_report=True,
    ),
    Option(
        "--perf-size",
        "size of the workloads: small for a CPU, full for an accelerator (default: small)",
        "size",
        choices=SIZES,
        default="small",
        must_agree=True,
        in_report=True,
    ),
    Option(
        "--perf-seconds",
        "longest sampling time of one timing gate, in seconds (default: 5)",
        "seconds",
        type=above_zero("seconds"),
        default=5.0,
        metavar="S",
        must_agree=True,
        in_report=True,
    ),
    Option("--perf-again", argparse.SUPPRESS, type=str, metavar="DIR"),  # see perfsuite.processes.rerun
    Option(
        "--perf-baselines",
        "folder of the baseline files (default: the ini option perf_baselines)",
        type=str,
        metavar="DIR",
    ),
    Option(
        "--perf-target",
        "compile for this device, present or not, instead of the devices in the ini option perf_targets: "
        "--perf-target=tpu-v5e or gpu-h100; repeat the option for several devices",
        "targets",
        metavar="NAME",
        several=True,
        must_agree=True,
        in_report=True,
    ),
    Option(
        "--perf-trace",
        "after measuring, trace the calls of each perf test with JAX's profiler, and keep the traces (Perfetto and "
        "XPlane) in this folder",
        "traces",
        type=folder,
        metavar="DIR",
        in_child=None,
        must_agree=True,
        in_report=True,
    ),
    Option(
        "--perf-report",
        "write a report of the perf tests into this folder: report.html (one page that needs no other file), "
        "report.json, report.md and report.sarif",
        type=folder,
        metavar="DIR",
        in_child=None,
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option. pytest itself rejects those that it does not know."""
    group = parser.getgroup("perfsuite", "performance gates for JAX")
    for option in OPTIONS:
        option.declare(group)
    group.addoption(SaveSome.first, action=SaveSome, dest="perf_save", default=(), help=argparse.SUPPRESS)
    parser.addini("perf_baselines", "folder of the baseline files, relative to the rootdir", default="baselines")
    parser.addini("perf_strict", "words of --perf-strict: new inconclusive; true means new", type="args", default=[])
    parser.addini("perf_tolerance", "how much worse than its baseline a ratio or a time may be: 0.25 is 25 %")
    parser.addini("perf_targets", "devices to compile for, in tests that use perf_target: tpu-v5e tpu-v6e", type="args")


def options_in_child() -> dict[str, Any]:
    """The options that are others in a process that the session starts, by pytest's names for them."""
    return {option.destination: option.in_child for option in OPTIONS if option.in_child is not _AS_GIVEN}


def options_that_must_agree(options: Options) -> dict[str, Any]:
    """The values that are the same in all processes of a session, by the names of the options."""
    return {option.name: option.value(options) for option in OPTIONS if option.must_agree}


def options_in_report(options: Options) -> tuple[str, ...]:
    """The options that decide what is measured and how it is judged, as a command line has them."""
    return tuple(given for option in OPTIONS if option.in_report for given in option.given(options))


def asks_for_perf(given: argparse.Namespace) -> bool:
    """Whether a command line runs the perf tests."""
    return bool(given.perf or given.perf_only or given.perf_save)


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
        strict=() if save else option.perf_strict or strictness_of_ini(config.getini("perf_strict")),
        size=option.perf_size,
        seconds=option.perf_seconds,
        baselines=folder or config.rootpath / config.getini("perf_baselines"),
        targets=tuple(dict.fromkeys(targets)),
        targets_from="--perf-target" if option.perf_target else "the ini option perf_targets",
        traces=config.invocation_params.dir / option.perf_trace if option.perf_trace else None,
        report=config.invocation_params.dir / option.perf_report if option.perf_report else None,
        tolerance=tolerance_of_ini(config.getini("perf_tolerance")),
    )
