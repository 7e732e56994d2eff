"""The command line and ini options, as one frozen value."""

import argparse
import dataclasses
import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES = ("small", "full")
DEFAULT_SECONDS = 5.0
DEFAULT_MINUTES = 10.0
SKIP_REASON = "perf test: run it with `pytest --perf`"
HERE = "here"
"""The id of `perf_target` where no target is named."""
MARKER_ARGUMENTS = ("seconds", "tolerance")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for. `active` is true with --perf, --perf-only, --perf-save or --perf-calibrate."""

    active: bool
    only: bool
    save: bool
    strict: bool
    size: str
    seconds: float
    baselines: Path
    targets: tuple[str, ...]
    """Devices to compile for, by the names of their baseline files, in the order given. Checked when they are used."""
    targets_from: str
    """What named them, for messages: the option or the ini option."""
    traces: Path | None = None
    """Where the profiler's traces of perf tests go; None records none."""
    processes: int = 1
    """Most processes that one comparison may take its samples from, this one included."""
    again: Path | None = None
    """The folder with a request, in a process that was started to make one comparison again; None in any other."""
    calibrate: float | None = None
    """Minutes, with --perf-calibrate: then nothing is gated. None without."""
    report: Path | None = None
    """Where the report goes, with --perf-report; None writes none."""


def add_options(parser: pytest.Parser) -> None:
    """Declare every option. pytest itself rejects those that it does not know."""
    group = parser.getgroup("perfsuite", "performance gates for JAX")
    group.addoption("--perf", action="store_true", help="run the perf tests, and fail those that got worse")
    group.addoption("--perf-only", action="store_true", help="as --perf, and deselect every other test")
    group.addoption("--perf-save", action="store_true", help="run the perf tests and record their metrics as baselines")
    group.addoption("--perf-strict", action="store_true", help="fail a perf test that has a metric without a baseline")
    group.addoption(
        "--perf-size",
        choices=SIZES,
        default="small",
        help="size of the workloads: small for a CPU, full for an accelerator (default: small)",
    )
    group.addoption(
        "--perf-seconds",
        type=_above_zero("seconds"),
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"most time that one timing gate may sample for (default: {DEFAULT_SECONDS:g})",
    )
    group.addoption(
        "--perf-processes",
        type=_processes,
        default=1,
        metavar="N",
        help="most processes for one comparison: where this one's time leaves it undecided, its test runs again in "
        "fresh ones, one after another, until all of their samples together decide it (default: 1)",
    )
    group.addoption(
        "--perf-calibrate",
        action="store_true",
        help="gate nothing, and find out on the tests' own calls how often a gate of this machine raises a false alarm "
        "and which slowdown it catches 99 times in 100; written beside the baselines",
    )
    group.addoption(
        "--perf-calibrate-minutes",
        type=_above_zero("minutes"),
        default=DEFAULT_MINUTES,
        metavar="M",
        help="about how long --perf-calibrate measures in all; a gate takes --perf-seconds at most "
        f"(default: {DEFAULT_MINUTES:g})",
    )
    group.addoption("--perf-again", metavar="DIR", help=argparse.SUPPRESS)  # see perfsuite.processes.rerun
    group.addoption(
        "--perf-baselines", metavar="DIR", help="folder of the baseline files (default: the ini option perf_baselines)"
    )
    group.addoption(
        "--perf-target",
        action="append",
        default=[],
        metavar="NAME",
        help="compile for this device, which need not be here, instead of those of the ini option perf_targets; "
        "may be given several times: --perf-target=tpu-v5e",
    )
    group.addoption(
        "--perf-trace",
        type=_folder,
        metavar="DIR",
        help="trace the calls of each perf test with JAX's profiler, after they were measured, and keep the traces "
        "(Perfetto and XPlane) below this folder",
    )
    group.addoption(
        "--perf-report",
        type=_folder,
        metavar="DIR",
        help="write a report of the perf tests into this folder: report.html (one page, complete in itself), "
        "report.json and report.md",
    )
    parser.addini("perf_baselines", "folder of the baseline files, relative to the rootdir", default="baselines")
    parser.addini("perf_strict", "fail perf tests that have a metric without a baseline", type="bool", default=False)
    parser.addini("perf_targets", "devices that the tests using perf_target compile for: tpu-v5e tpu-v6e", type="args")


def read_options(config: pytest.Config) -> Options:
    """The options of this session. Raises `pytest.UsageError` for options that contradict each other."""
    option = config.option
    save = option.perf_save
    if save and option.perf_strict:
        raise pytest.UsageError(
            "--perf-save and --perf-strict contradict each other: one records metrics without a baseline, the other "
            "fails on them"
        )
    calibrate = option.perf_calibrate_minutes if option.perf_calibrate else None
    if calibrate is not None:
        _check_calibrating(config)
    targets = option.perf_target or config.getini("perf_targets")
    folder = config.invocation_params.dir / option.perf_baselines if option.perf_baselines else None
    return Options(
        active=option.perf or option.perf_only or save or option.perf_calibrate,
        only=option.perf_only or option.perf_calibrate,
        save=save,
        strict=not save and (option.perf_strict or config.getini("perf_strict")),
        size=option.perf_size,
        seconds=option.perf_seconds,
        baselines=folder or config.rootpath / config.getini("perf_baselines"),
        targets=tuple(dict.fromkeys(targets)),
        targets_from="--perf-target" if option.perf_target else "the ini option perf_targets",
        traces=config.invocation_params.dir / option.perf_trace if option.perf_trace else None,
        processes=option.perf_processes,
        again=Path(option.perf_again) if option.perf_again else None,
        calibrate=calibrate,
        report=config.invocation_params.dir / option.perf_report if option.perf_report else None,
    )


def marker_arguments(item: pytest.Item) -> dict[str, float]:
    """The keyword arguments of `@pytest.mark.perf`, the closest marker first. Raises `pytest.UsageError` if bad."""
    arguments: dict[str, float] = {}
    for marker in reversed(list(item.iter_markers("perf"))):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.perf takes keyword arguments only, got {_shown(marker.args)}"
            )
        for name, value in marker.kwargs.items():
            if name not in MARKER_ARGUMENTS:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf has no argument {name!r}; it takes {', '.join(MARKER_ARGUMENTS)}"
                )
            if not _is_positive(value):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf({name}=...) must be a number above zero, got {_shown(value)}"
                )
            arguments[name] = float(value)
    return arguments


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # a whole number that no float can hold
        return False


def _shown(value: Any) -> str:
    """An argument as a message shows it: not too long, and whatever its `repr` does."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _folder(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a folder, got an empty name")
    return text


def _processes(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of processes, 1 or more, got {text!r}")
    return value


def _check_calibrating(config: pytest.Config) -> None:
    option = config.option
    if option.perf_save or option.perf_strict:
        other = "--perf-save" if option.perf_save else "--perf-strict"
        raise pytest.UsageError(
            f"--perf-calibrate and {other} contradict each other: while calibrating no metric is recorded or gated; "
            "run them one after the other"
        )
    if option.perf_report:
        raise pytest.UsageError(
            "--perf-calibrate and --perf-report contradict each other: while calibrating nothing is gated, so there is "
            "nothing to report; the next report shows what was calibrated"
        )
    # pytest-xdist sets it, from -n too; its workers get the main process's options, but never this far.
    if getattr(option, "dist", "no") != "no":
        raise pytest.UsageError(
            "--perf-calibrate measures this machine, and pytest-xdist's workers would measure each other: add `-n 0`"
        )


def _above_zero(unit: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise argparse.ArgumentTypeError(f"must be a number of {unit} above zero, got {text!r}")
        return value

    return number
