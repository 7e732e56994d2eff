"""Times of calls on the host's clock: of one call, of two in turn, of several sizes, and the calls that stand out.

- `clock`, `readiness` and `block` read the clock around the code under test; every other module samples their blocks.
- `timing`, `comparison`, `scaling`, `asynchrony` and `stalls` are what a user asks for.
- `scheduling` and `stack_sampler` say what the machine took away, and where a thread waits.
"""
