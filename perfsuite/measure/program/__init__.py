"""The compiled program of a call: lowered, compiled, read to facts, turned into metrics, compared with another."""
