"""Times of calls on the host's clock: of one call, of two in turn, of several sizes, and the calls that stand out.

- `block` reads the clock around the code under test; every other module samples its blocks.
- `timing`, `comparison`, `scaling` and `waits` are what a user asks for.
- `intervals` and `shift` say how certain a time is. They assume no normal distribution: drift, bursts and heavy tails
  move a mean and its standard error at will, but hardly the ranks of blocks that ran near each other.
"""
