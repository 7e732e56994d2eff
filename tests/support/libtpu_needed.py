"""`needs_libtpu`: skips a test, with the reason, where programs cannot be compiled for a TPU."""

import pytest

from support.compilers import unavailable

UNAVAILABLE = unavailable("tpu")
needs_libtpu = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
