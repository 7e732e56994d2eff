"""Gates of the same code built twice, in fresh processes: every one that fails is a false alarm.

    python tests/promise/two_builds.py
    python tests/promise/two_builds.py --sessions 5 --calls product memory --folder /tmp/two_builds

Each session is a pytest process with one test for each call: it makes the call twice, each time with closures,
dictionaries, compiled programs and arrays of its own, and compares the two with `Budget(ratio=1.02)`. Prints a Markdown
table: how many gates failed, and how the ratio scatters between the processes, which no number of pairs in one process
shows.

A session takes about 40 seconds. With `--folder` outcomes are kept, and only the sessions run that the folder lacks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from promise.calls import BUILDS
from promise.sessions import Script

TESTS = f"""
import pytest
from promise.calls import BUILDS

from perfsuite import Budget


@pytest.mark.parametrize("name", {[*BUILDS]})
def test(perf, name):
    make = BUILDS[name]
    perf.compare(make(), make(), Budget(ratio=1.02), name=name)
"""

SCRIPT = Script((__doc__ or "").partition("\n")[0], TESTS, list(BUILDS))

if __name__ == "__main__":
    SCRIPT.main()
