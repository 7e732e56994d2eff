"""perfsuite: fail a build when JAX code recompiles, gains host overhead, or compiles to a worse program."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # see `__getattr__`
    from perfsuite.fixture import Perf
    from perfsuite.gate.budget import Budget, BudgetExceeded
    from perfsuite.measure.call import call
    from perfsuite.measure.errors import MeasurementError, RecompilationError, SignatureWarning, TransferError

__all__ = [
    "Budget",
    "BudgetExceeded",
    "MeasurementError",
    "Perf",
    "RecompilationError",
    "SignatureWarning",
    "TransferError",
    "call",
]

tested = "0.10.0", "0.12.0"
"""The oldest and the newest jax that perfsuite is tested with. With a newer one, some instruments may be skipped."""

_MODULES = {
    "Budget": "perfsuite.gate.budget",
    "BudgetExceeded": "perfsuite.gate.budget",
    "MeasurementError": "perfsuite.measure.errors",
    "Perf": "perfsuite.fixture",
    "RecompilationError": "perfsuite.measure.errors",
    "SignatureWarning": "perfsuite.measure.errors",
    "TransferError": "perfsuite.measure.errors",
    "call": "perfsuite.measure.call",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Every pytest session imports this package with the plugin. The modules behind these names took 9 of the plugin's 21
    ms (AMD EPYC, Python 3.11).
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'perfsuite' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value
