"""Traces, lowerings and backend compiles: which ones happen, and why."""
