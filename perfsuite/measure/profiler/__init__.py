"""Profiler traces: recorded and read, for what a call does and for what a compiler does."""
