"""Intervals and decisions that hold on shared machines: ranks instead of means, and looks at any time.

No module assumes a normal distribution. Drift, bursts and heavy tails move a mean and its standard error at will, but
hardly the ranks of blocks that ran near each other.

- `error_rates`: how often an interval may miss the truth.
- `intervals`: the median and other quantiles of one call's times, and the line through the times of several sizes.
- `rank_sum`: the shift between two sides that took turns in random order.
- `sequence`: the same, of many windows, with an interval that holds at any time and for noise of a side's own.
- `looks`: when a comparison looks at its times, and with which of the two.
"""
