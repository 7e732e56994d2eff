"""Baselines that are saved once, and gates of the same code in later sessions: every one that fails is a false alarm.

    python tests/promise/another_day.py --folder /tmp/another_day
    python tests/promise/another_day.py --folder /tmp/another_day --sessions 40 --machines busy

A session on the quiet machine saves the ratios of ten comparisons of unlike calls (memory against arithmetic, Python
against compiled code, a call that leaves a program running). Then sessions gate them, in turns on the machine as it is
and beside a process on each core that computes. Nothing changes in between. Prints a Markdown table of the gates, and how many sessions failed.

`--pytest=-o --pytest=perf_tolerance=0.5` tries another tolerance. Saving takes a minute, a session a quarter of one, and half
of one beside busy processes. With `--folder` the baselines and the outcomes are kept, and only the sessions run that the
folder lacks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from promise.calls import UNLIKE
from promise.sessions import Script

TESTS = f"""
import pytest
from promise.calls import UNLIKE


@pytest.mark.parametrize("name", {list(UNLIKE)})
def test(perf, name):
    candidate, reference = UNLIKE[name]
    perf.compare(candidate(), reference(), name=name)
"""

SCRIPT = Script((__doc__ or "").partition("\n")[0], TESTS, list(UNLIKE), machines=("quiet", "busy"), save=True)

if __name__ == "__main__":
    SCRIPT.main()
