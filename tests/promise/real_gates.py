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

from perfsuite.measure.call import call
from promise.trials import Trial, Workload


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
    workload = Workload(chain())
    started = time.monotonic()
    for turn in range(gates):
        for row in rows:
            with busy_neighbours() if row.busy else contextlib.nullcontext():
                done[row].append(workload.trial(row.planted, seconds=row.seconds))
        print(f"{turn + 1} of {gates} gates a row, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    workload.give_back()
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
    """Run it, print the table, and give the trials."""
    options = parse(arguments)
    rows = [row for row in ROWS if not options.rows or any(row.name.startswith(name) for name in options.rows)]
    done = run(rows, options.gates)
    print(table(done))
    return done


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Bad values end the program, with a message that names the option."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gates", type=_count, default=100, help="gates of each row (default: 100)")
    parser.add_argument("--rows", nargs="+", type=_row, default=[], metavar="ROW", help=f"of {_NAMES} (default: all)")
    return parser.parse_args(arguments)


_NAMES = "; ".join(row.name for row in ROWS).replace("%", "%%")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _row(text: str) -> str:
    if not any(row.name.startswith(text) for row in ROWS):
        raise argparse.ArgumentTypeError(f"no row begins with {text!r}: {'; '.join(row.name for row in ROWS)}")
    return text


if __name__ == "__main__":
    main()
