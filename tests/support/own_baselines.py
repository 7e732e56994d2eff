"""What the baselines of this repository can judge under the Python that runs."""

from collections.abc import Iterable
from pathlib import Path

from perfsuite.gate.baseline_file import load
from perfsuite.gate.baseline_folder import folder_here
from perfsuite.gate.environment import incomparable, present_environment
from perfsuite.measure import units

FOLDER = Path(__file__).parents[2] / "baselines"


def judged_here(tests: Iterable[str]) -> list[str]:
    """Those of the tests whose counts of Python's calls, if they have any, were saved under this minor version."""
    known, now = load(folder_here(FOLDER) / "cpu.json").metrics, present_environment()
    return [
        test
        for test in tests
        if not any(
            incomparable(each.kind, each.unit, each.environment, now)
            for each in known.get(test, {}).values()
            if each.unit in units.OF_PYTHON
        )
    ]
