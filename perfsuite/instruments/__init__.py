"""The methods of the fixture `perf`, one file an instrument.

An instrument declares itself with `base.declare`: its method, the fields of `Budget` that it checks, and what it needs.
`perfsuite.fixture.Perf` inherits them all.
"""
