"""`needs_valgrind`: skips a test, with the command, where instructions cannot be counted."""

import pytest

from perfsuite.measure.instructions import why_no_instructions

UNAVAILABLE = why_no_instructions()
needs_valgrind = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
