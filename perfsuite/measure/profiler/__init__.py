"""Profiler traces: recorded, read, and compared, for what a call does and for what a compiler does."""
