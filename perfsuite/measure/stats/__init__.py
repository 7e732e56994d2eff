"""Intervals and decisions that hold on shared machines: ranks instead of means, and an error that every look pays for.

No module assumes a normal distribution. Drift, bursts and heavy tails move a mean and its standard error at will, but
hardly the ranks of blocks that ran near each other.

- `error_rates`: how often an interval may miss the truth, and how looks and gates share that error.
- `intervals`: the median and other quantiles of one call's times, and the line through the times of several sizes.
- `rank_sum`: the shift between two sides that took turns in random order.
- `drift`: whether that shift moved while it was sampled.
- `sequential`: when a comparison looks at its times, and what each look sees.
"""
