"""Gates on a real call whose truth is known, many times over: false alarms, and slowdowns caught in time.

    python tests/promise/real_gates.py
    python tests/promise/real_gates.py --gates 20 --rows "A/A" "+3 %"

Prints a Markdown table. Each gate compares a jitted chain of products of about 1 ms with itself, as `perf.compare` does
with `Budget(ratio=1)`: both sides are one function behind the same lines, and the candidate waits busily for a share of
what each of its own calls took. A gate stops as soon as its interval excludes 1, or when its seconds are up, and fails
where the interval lies above 1: in a row without a plant (A/A) that is a false alarm. An interval below 1 fails
nothing, but is as wrong, and has a column of its own. Rows with "busy" run beside a process on each core that only
computes.

The gates of the rows take turns, so that all rows share a machine's good and bad minutes. One gate of each row takes
about half a minute together.
"""

import argparse
import contextlib
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import tabulate
from support.busy import busy_neighbours

from perfsuite.measure.call import Call, call
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing.block import Subject, now_ns
from perfsuite.measure.timing.comparison import compare_calls

FLOOR_NS = 2_000
"""Both sides wait for at least so long: a side that read the clock once and went on made plants of 0.4 us come out as
0.1 us (2-core x86-64 machine, Python 3.11)."""


class Planted:
    """Runs `inner`, and takes `slowdown` times as long again: a busy wait of that share of what this very run took.

    So the plant has its true size at every speed of the machine. Both sides of a gate run the same lines, and wait for
    `FLOOR_NS` besides. Whichever side runs carries the state of `inner` on, so two sides need no second copy of a
    donated state.
    """

    def __init__(self, inner: Subject, slowdown: float):
        self.inner = inner
        self.slowdown = slowdown
        self.__name__ = inner.call.label

    def __call__(self):
        start = now_ns()
        outputs = self.inner.call.run()
        self.inner.wait(outputs)
        now = now_ns()
        end = now + FLOOR_NS + self.slowdown * (now - start + FLOOR_NS)
        while now_ns() < end:
            pass
        return outputs


@dataclasses.dataclass(frozen=True)
class Trial:
    """The outcome of one gate with the limit 1."""

    interval: Interval
    pairs: int
    seconds: float


def trial(inner: Subject, planted: float = 0.0, *, seconds: float) -> Trial:
    """One gate, a call against itself with `planted` (0.01 is 1 %), until the interval excludes 1 or time is up."""
    sides = (Call(Planted(inner, slowdown), (), {}, 0) for slowdown in (planted, 0.0))
    excludes_1 = lambda ratio, overhead: ratio.interval.low > 1 or ratio.interval.high < 1
    compared = compare_calls(*sides, seconds=seconds, settled=excludes_1)
    return Trial(compared.ratio.interval, compared.pairs, compared.seconds)


@dataclasses.dataclass(frozen=True)
class Row:
    """One condition: the planted slowdown (0.01 is 1 %), the seconds of a gate, and whether other processes compute."""

    planted: float
    seconds: float
    busy: bool

    @property
    def name(self) -> str:
        """As the table and `--rows` have it."""
        planted = f"+{100 * self.planted:g} %" if self.planted else "A/A"
        return f"{planted}, {'busy' if self.busy else 'quiet'}, {self.seconds:g} s"


ROWS = (
    Row(0.0, 5, False),
    Row(0.0, 5, True),
    Row(0.01, 5, False),
    Row(0.03, 5, True),
    Row(0.01, 60, True),
)


def chain(products: int = 750):
    """A call of about 1 ms on one core: `products` products of matrices of 32 x 32."""

    @jax.jit
    def step(x):
        return jax.lax.fori_loop(0, products, lambda _, x: jnp.tanh(x @ x), x)

    return call(step, jnp.full((32, 32), 0.01))


def run(rows: Sequence[Row], gates: int) -> dict[Row, list[Trial]]:
    """`gates` gates of each row, in turn."""
    done: dict[Row, list[Trial]] = {row: [] for row in rows}
    subject = Subject(chain())
    started = time.monotonic()
    for turn in range(gates):
        for row in rows:
            with busy_neighbours() if row.busy else contextlib.nullcontext():
                done[row].append(trial(subject, row.planted, seconds=row.seconds))
        print(f"{turn + 1} of {gates} gates a row, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return done


def table(done: dict[Row, list[Trial]]) -> str:
    """The Markdown table, a row a condition."""
    lines = []
    for row, trials in done.items():
        if not trials:
            continue
        slower = sum(trial.interval.low > 1 for trial in trials)
        faster = sum(trial.interval.high < 1 for trial in trials)
        middle = math.exp(statistics.median(math.log(trial.interval.low * trial.interval.high) / 2 for trial in trials))
        lines.append(
            (
                row.name,
                f"{slower} of {len(trials)}",
                faster,
                f"{statistics.median(trial.seconds for trial in trials):.1f}",
                f"{statistics.median(trial.pairs for trial in trials):,.0f}",
                f"{100 * (middle - 1):+.3f} %",
            )
        )
    columns = ("planted", "failed", "said faster", "median s", "median pairs", "middle of the interval, median")
    return tabulate.tabulate(lines, columns, tablefmt="github", disable_numparse=True)


def main(arguments: Sequence[str] | None = None) -> dict[Row, list[Trial]]:
    """Run it, print the table, and give the trials. Bad values end the program, with a message that names the option."""
    names = "; ".join(row.name for row in ROWS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gates", type=int, default=100, help="gates of each row (default: 100)")
    parser.add_argument(
        "--rows", nargs="+", default=[""], metavar="ROW", help=f"of {names} (default: all)".replace("%", "%%")
    )
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if row.name.startswith(tuple(options.rows))]
    if not rows:
        parser.error(f"argument --rows: no row begins with {' or '.join(options.rows)}: {names}")
    trials = run(rows, options.gates)
    print(table(trials))
    return trials


if __name__ == "__main__":
    main()
