"""`needs_cuda_plugin`: skips a test, with the pip command, where programs cannot be compiled for a GPU."""

import pytest

from support.compilers import unavailable

UNAVAILABLE = unavailable("cuda")
needs_cuda_plugin = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
