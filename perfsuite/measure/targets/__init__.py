"""Compiling for a TPU that need not be present: known devices, the compiler in a process of its own, and a cache."""
