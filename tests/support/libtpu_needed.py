"""`needs_libtpu`: skips a test, with the reason, where programs cannot be compiled for a TPU."""

import pytest

from perfsuite.measure.targets.target_available import TargetUnavailable, check_available


def _unavailable() -> str:
    try:
        check_available()
    except TargetUnavailable as error:
        return str(error)
    return ""


UNAVAILABLE = _unavailable()
needs_libtpu = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)


def skip_without_libtpu() -> None:
    """The same from inside a test."""
    if UNAVAILABLE:
        pytest.skip(UNAVAILABLE)
