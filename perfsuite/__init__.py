"""perfsuite: fail a build when JAX code recompiles, gains host overhead, or compiles to a worse program."""

from perfsuite.gate.budget import Budget, BudgetExceeded
from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError, RecompilationError, TransferError

__all__ = ["Budget", "BudgetExceeded", "MeasurementError", "RecompilationError", "TransferError", "call"]
