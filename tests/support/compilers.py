"""Which compilers for devices that are not present this machine has."""

import functools

import pytest

from perfsuite.measure.targets.target_available import TargetUnavailable, check_available
from perfsuite.measure.targets.targets import target as target_of


@functools.cache
def unavailable(platform: str) -> str:
    """What is missing to compile for "tpu" or "cuda", and empty where nothing is."""
    try:
        check_available(platform)
    except TargetUnavailable as error:
        return str(error)
    return ""


def skip_without_compiler(target: str) -> None:
    """Skip the test where programs cannot be compiled for the target."""
    if reason := unavailable(target_of(target).platform):
        pytest.skip(reason)
