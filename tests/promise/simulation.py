"""The noise of shared machines, and gates over it: the rule of `compare_calls` without the sampling.

A noise model gives the times of `blocks` blocks of the same code, one after the other, in units of a quiet block. The
side of each block is drawn afterwards, as `compare_calls` does it, and a planted slowdown multiplies the candidate's
blocks.
"""

import dataclasses

import numpy as np

from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.stats.sequential import WINDOW, Look, Sequential

CORE = 0.02
"""The relative standard deviation of a block that nothing disturbs."""


def quiet(rng, blocks):
    return np.exp(CORE * rng.normal(size=blocks))


def busy(rng, blocks):
    """A process on every core: two blocks in five lose the processor for a while.

    The sign test's interval of 2000 pairs at the last of 14 looks is then 0.9 to 1.6 % wide to each side, as was
    measured on a 2-core machine with a busy process on each core, for a 1.2 ms call and 5 seconds.
    """
    return quiet(rng, blocks) * (1 + (rng.random(blocks) < 0.4) * rng.exponential(0.6, blocks))


def linear_drift(rng, blocks):
    """A machine that gets three times slower as it gets hot."""
    return quiet(rng, blocks) * np.linspace(1, 3, blocks)


def random_walk(rng, blocks):
    return quiet(rng, blocks) * np.exp(np.cumsum(0.01 * rng.normal(size=blocks)))


def bimodal_clock(rng, blocks):
    """Two frequencies, 40 % apart, that last for 40 blocks on average."""
    slow = np.cumsum(rng.random(blocks) < 1 / 40) % 2
    return quiet(rng, blocks) * (1 + 0.4 * slow)


def bursts(rng, blocks):
    """A neighbour that wakes up now and then, and disturbs every other block until it sleeps again."""
    awake = np.cumsum(rng.random(blocks) < 1 / 60) % 2
    return quiet(rng, blocks) * (1 + awake * (rng.random(blocks) < 0.5) * rng.exponential(2, blocks))


def heavy_tails(rng, blocks):
    """Pareto delays without a mean."""
    return quiet(rng, blocks) + 0.02 * rng.pareto(0.9, blocks)


def rare_spikes(rng, blocks):
    """A few stalls of a hundred blocks' length. By chance most are of one side."""
    return quiet(rng, blocks) * (1 + 100 * (rng.random(blocks) < 4 / blocks))


MODELS = (quiet, busy, linear_drift, random_walk, bimodal_clock, bursts, heavy_tails, rare_spikes)


@dataclasses.dataclass(frozen=True)
class Gate:
    """What a gate saw last, and after how many of its pairs."""

    look: Look | None
    pairs: int

    @property
    def slower(self) -> bool:
        return self.look is not None and self.look.ratio.interval.low > 1

    @property
    def alarm(self) -> bool:
        """On two sides of the same code: an interval that excludes 1, to either side."""
        return self.slower or (self.look is not None and self.look.ratio.interval.high < 1)


def sides(rng, times, slowdown=1.0, window=WINDOW):
    """Draw the side of each block: the times of the candidate and of the reference, each of shape (pairs,)."""
    windows = times.reshape(-1, 2 * window)
    turns = rng.permuted(np.tile(np.repeat([True, False], window), (len(windows), 1)), axis=1)
    return windows[turns] * slowdown, windows[~turns]


def gate(rng, times, slowdown=1.0, *, window=WINDOW, error=DECIDING_ERROR, rule=Sequential) -> Gate:
    """A gate with the limit 1, that stops at the first interval without it: the worst that a gate can do."""
    candidate, reference = sides(rng, times, slowdown, window)
    passed = np.cumsum((candidate + reference).reshape(-1, window).sum(1))
    sequential, last = rule(error), Gate(None, 0)
    for number, time in enumerate(passed / passed[-1], 1):
        pairs = number * window
        time_passed = time if number < len(passed) else 1.01
        if sequential.due(pairs, time_passed):
            look = sequential.look(candidate[:pairs], reference[:pairs], window, time_passed)
            last = Gate(look or last.look, pairs)
            if last.alarm:
                break
    return last
