"""Noise as machines have it, and gates over it: the rule of `compare_calls` without the sampling.

    python tests/promise/simulation.py [--gates 2000] [--seed 0]

prints how many of the gates decide falsely that one of two equal sides is slower, at the promised 1 in 1000.

A model gives the times that a block of the candidate and a block of the reference would take at every moment, in units
of a quiet block. The side of each block is drawn first, and its time is the one of that side at that moment. Both sides
are the same code, so every decision that one is slower is false; a planted slowdown multiplies the candidate's blocks.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfsuite.measure.timing.comparison import FIRST, Rule
from perfsuite.measure.timing.intervals import DECIDING_ERROR
from perfsuite.measure.timing.shift import excluded
from perfsuite.report.tables import aligned

CORE = 0.02
"""The relative standard deviation of a block that nothing disturbs."""

Sides = tuple[np.ndarray, np.ndarray]
Model = Callable[[np.random.Generator, int], Sides]
"""The times of both sides, each of shape (blocks,)."""


def _noise(rng, blocks, scale=CORE):
    return np.exp(scale * rng.normal(size=blocks))


def of_both(noise) -> Model:
    """The same noise, whichever side runs: the machine's."""

    def model(rng, blocks):
        times = noise(rng, blocks)
        return times, times

    model.__name__ = noise.__name__
    return model


def of_each(noise) -> Model:
    """Noise of a side's own: the same kind, drawn for each side by itself."""

    def model(rng, blocks):
        return noise(rng, blocks), noise(rng, blocks)

    model.__name__ = f"{noise.__name__}_of_each"
    return model


# What happens to both sides.


@of_both
def quiet(rng, blocks):
    return _noise(rng, blocks)


@of_both
def busy(rng, blocks):
    """A process on every core: two blocks in five lose the processor for a while."""
    return _noise(rng, blocks) * (1 + (rng.random(blocks) < 0.4) * rng.exponential(0.6, blocks))


@of_both
def drift_with_load(rng, blocks):
    """A machine that gets three times slower as it gets hot, and wanders."""
    return _noise(rng, blocks) * np.linspace(1, 3, blocks) * np.exp(np.cumsum(0.01 * rng.normal(size=blocks)))


@of_both
def two_clocks(rng, blocks):
    """Two frequencies, 40 % apart, that last for 40 blocks on average."""
    return _noise(rng, blocks) * (1 + 0.4 * _telegraph(rng, blocks, 40))


@of_both
def bursts(rng, blocks):
    """A neighbour that wakes up now and then, and disturbs every other block until it sleeps again."""
    awake = _telegraph(rng, blocks, 60)
    return _noise(rng, blocks) * (1 + awake * (rng.random(blocks) < 0.5) * rng.exponential(2, blocks))


@of_both
def rare_spikes(rng, blocks):
    """A few stalls of a hundred blocks' length. By chance most are of one side."""
    return _noise(rng, blocks) * (1 + 100 * (rng.random(blocks) < 4 / blocks))


# What each side has by itself.


@of_each
def pareto(rng, blocks):
    """Delays without a mean."""
    return _noise(rng, blocks) + 0.02 * rng.pareto(0.9, blocks)


def _autoregressive(rng, blocks, correlation, scale=0.01):
    shocks = scale * np.sqrt(1 - correlation**2) * rng.normal(size=blocks)
    before = scale * rng.normal()
    return np.exp(lfilter([1.0], [1.0, -correlation], shocks, zi=[correlation * before])[0])


@of_each
def autoregressive_5(rng, blocks):
    """1 %, correlated by 0.5 from block to block."""
    return _autoregressive(rng, blocks, 0.5)


@of_each
def autoregressive_9(rng, blocks):
    """1 %, correlated by 0.9 from block to block, and nothing else."""
    return _autoregressive(rng, blocks, 0.9)


def _telegraph(rng, blocks, length):
    """0 and 1, in turn, each for `length` blocks on average."""
    return (np.cumsum(rng.random(blocks) < 1 / length) + rng.integers(2)) % 2


@of_each
def telegraph(rng, blocks):
    """Two states, 5 % apart, that last for 20 blocks on average."""
    return _noise(rng, blocks, CORE / 4) * (1 + 0.05 * _telegraph(rng, blocks, 20))


def flipping(rng, blocks):
    """The candidate is 2 % slower for 20 blocks, then as much faster for as many."""
    state = (np.arange(blocks) + rng.integers(40)) // 20 % 2
    return _noise(rng, blocks, CORE / 4) * (1 + 0.02 * (state - 0.5)), _noise(rng, blocks, CORE / 4)


def noisier(rng, blocks):
    """The candidate scatters ten times as much."""
    return _noise(rng, blocks, 10 * CORE / 4), _noise(rng, blocks, CORE / 4)


def ticks(rng, blocks):
    """A clock whose tick is 1 % of a block."""
    candidate, reference = of_each(lambda rng, blocks: _noise(rng, blocks, CORE / 10))(rng, blocks)
    return np.floor((candidate + rng.random(blocks) / 100) * 100), np.floor(
        (reference + rng.random(blocks) / 100) * 100
    )


def long_states(rng, blocks):
    """As `telegraph`, but for 200 blocks on average: outside what a single run can promise."""
    one, other = (_noise(rng, blocks, CORE / 4) * (1 + 0.05 * _telegraph(rng, blocks, 200)) for _ in range(2))
    return one, other


OF_BOTH = (quiet, busy, drift_with_load, two_clocks, bursts, rare_spikes)
MODELS = (*OF_BOTH, pareto, autoregressive_5, autoregressive_9, telegraph, flipping, noisier, ticks)


@dataclasses.dataclass(frozen=True)
class Gate:
    """Whether a gate with the limit 1 decided, which way, and after how many pairs."""

    slower: bool
    faster: bool
    pairs: int

    @property
    def decided(self) -> bool:
        return self.slower or self.faster


def sides(rng, model, pairs, window, slowdown=1.0) -> Sides:
    """Draw the side of each block, and its time: candidate and reference, each of shape (pairs,)."""
    turns = rng.permuted(np.tile(np.repeat([True, False], window), (pairs // window, 1)), axis=1).ravel()
    candidate, reference = model(rng, len(turns))
    return candidate[turns] * slowdown, reference[~turns]


def _scores(candidate, reference):
    """The score of each window where the ratio that is tested is 1."""
    return np.sign(candidate[:, :, None] - reference[:, None, :]).mean((1, 2)) / 2


def _excludes_1(scores, window, error):
    return excluded(scores * np.sign(scores.sum()), window, error)


def gate(rng, model, pairs, slowdown=1.0, *, error=DECIDING_ERROR) -> Gate:
    """A gate with the limit 1 that stops at the first interval without it: the worst that a gate can do."""
    rule = Rule(pairs, error)
    candidate, reference = sides(rng, model, pairs, rule.window, slowdown)
    scores = _scores(candidate.reshape(-1, rule.window), reference.reshape(-1, rule.window))
    passed = np.cumsum((candidate + reference).reshape(-1, rule.window).sum(1))
    number = 0
    for number, time in enumerate(passed / passed[-1], 1):
        taken = number * rule.window
        if not rule.is_due(taken, time if number < len(passed) else 1.01):
            continue
        if rule.sequential and taken >= FIRST and not _excludes_1(scores[:number], rule.window, error):
            rule.postpone(taken)  # the interval would hold 1: no need to work it out
            continue
        interval = rule.estimates(candidate[:taken], reference[:taken])[0].interval
        if not interval.low <= 1 <= interval.high:
            return Gate(interval.low > 1, interval.high < 1, taken)
    return Gate(False, False, number * rule.window)


def false_decisions(model, gates, pairs, *, seed=0, error=DECIDING_ERROR) -> int:
    """How many of `gates` gates over two sides of the same code decide that one is slower."""
    return sum(
        gate(np.random.default_rng([seed, number]), model, pairs, error=error).decided for number in range(gates)
    )


def caught(model, slowdown, gates, pairs, *, seed=0) -> int:
    """How many of `gates` gates find a planted slowdown."""
    return sum(gate(np.random.default_rng([seed, number]), model, pairs, slowdown).slower for number in range(gates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gates", type=int, default=2000, metavar="N", help="gates of each noise (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    lengths = (2000, 200, 40)
    rows = [["noise", *(f"{pairs} pairs" for pairs in lengths)]]
    for model in (*MODELS, long_states):
        wrong = [false_decisions(model, options.gates, pairs, seed=options.seed) for pairs in lengths]
        rows.append([model.__name__, *(f"{each} ({each / options.gates:.2%})" for each in wrong)])
    print(f"False decisions of {options.gates} gates:\n")
    print("\n".join(aligned(rows)))
    plants = (quiet, 1.01, 1300), (busy, 1.03, 1300), (busy, 1.01, 15_000)
    print("\nPlanted slowdowns caught, of 100 gates:\n")
    rows = [["noise", "planted", "pairs", "caught"]]
    for model, slowdown, pairs in plants:
        rows.append([model.__name__, f"{slowdown - 1:+.0%}", str(pairs), str(caught(model, slowdown, 100, pairs))])
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
