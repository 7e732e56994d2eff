"""The baselines of a session of several processes: process 0 reads them for all."""

from pathlib import Path

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, check_writable, load
from perfsuite.gate.baseline_format import LocatedError, parse, render
from perfsuite.processes.group import Group


def shared_baselines(group: Group, paths: list[Path], processor: str, *, save: bool) -> dict[str, Baselines]:
    """The baseline files of process 0, by device, in all processes: the others need not have them.

    They are as they are on the `processor` that process 0 gives, so that all processes have the same limits.

    Raises `BaselineError` in process 0 where one cannot be read, or cannot be written although it is to be saved. That
    ends the session in the others.
    """

    def texts() -> dict[str, str]:
        if save:
            for path in paths:
                check_writable(path)
        return {path.stem: render(load(path).on(processor)) for path in paths}

    return {device: _read(text, device) for device, text in group.only_writer(texts, dict[str, str]).items()}


def _read(text: str, device: str) -> Baselines:
    try:
        return parse(text, device)
    except LocatedError as error:  # of another version of perfsuite
        raise BaselineError(f"{device}.json of process 0", error.problem, error.line) from None
