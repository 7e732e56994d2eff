"""Simulated gates over every noise there is: `python tests/promise/simulated.py [--gates 2000] [--seed 0]`.

Prints how many of the gates decide falsely that one of two equal sides is slower, at the promised 1 in 1000.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfsuite.report.terminal.output import aligned
from promise.simulation import MODELS, busy, caught, false_decisions, long_states, quiet

PAIRS = (2000, 200, 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gates", type=int, default=2000, metavar="N", help="gates of each noise (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    given = parser.parse_args()
    rows = [["noise", *(f"{pairs} pairs" for pairs in PAIRS)]]
    for model in (*MODELS, long_states):
        wrong = [false_decisions(model, given.gates, pairs, seed=given.seed) for pairs in PAIRS]
        rows.append([model.__name__, *(f"{each} ({each / given.gates:.2%})" for each in wrong)])
    print(f"False decisions of {given.gates} gates:\n")
    print("\n".join(aligned(rows)))
    plants = (quiet, 1.01, 1300), (busy, 1.03, 1300), (busy, 1.01, 15_000)
    print("\nPlanted slowdowns caught, of 100 gates:\n")
    rows = [["noise", "planted", "pairs", "caught"]]
    for model, slowdown, pairs in plants:
        rows.append([model.__name__, f"{slowdown - 1:+.0%}", str(pairs), str(caught(model, slowdown, 100, pairs))])
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
