"""Regressions that JAX users really meet, each planted and each named by its message, with a control that is silent."""
