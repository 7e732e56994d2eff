"""A candidate that leaves a program running whose output it does not return: each gate that does not fail is a miss.

    python tests/promise/leftovers.py
    python tests/promise/leftovers.py --sessions 3 --calls unreturned

The reference dispatches a program of five products on all cores and returns its output; the candidate dispatches one of
two products besides, and returns the first output alone. Whoever waits for the candidate's output does not wait for the
second program, which then takes its time from whatever runs next. The control returns both outputs, on both sides. Each
is compared with `Budget(ratio=1.05)`, so the candidate has to fail and the control must not. Prints a Markdown table of
the gates.

A session takes about 20 seconds. With `--folder` outcomes are kept, and only the sessions run that the folder lacks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfsuite.measure.call import Call
from promise.calls import Maker, large_product, two_programs, unreturned
from promise.sessions import Script


def reference() -> Call:
    """The first program alone."""
    return large_product(5)


def both() -> Call:
    """Both programs, and both outputs."""
    return two_programs(both=True)


COMPARED: dict[str, tuple[Maker, Maker]] = {"unreturned": (unreturned, reference), "returned by both": (both, both)}

TESTS = f"""
import pytest
from promise.leftovers import COMPARED

from perfsuite import Budget


@pytest.mark.parametrize("name", {list(COMPARED)})
def test(perf, name):
    candidate, reference = COMPARED[name]
    perf.compare(candidate(), reference(), Budget(ratio=1.05), name=name)
"""

SCRIPT = Script((__doc__ or "").partition("\n")[0], TESTS, list(COMPARED))

if __name__ == "__main__":
    SCRIPT.main()
