"""A candidate that leaves a program running whose output it does not return: each gate that does not fail is a miss.

    python tests/promise/leftovers.py
    python tests/promise/leftovers.py --sessions 3 --calls unreturned

The reference dispatches a program of five products on all cores and returns its output; the candidate dispatches one of
two products besides, and returns the first output alone. Whoever waits for the candidate's output does not wait for the
second program, which then takes its time from whatever runs next. The control returns both outputs, on both sides. Each
is compared with `Budget(ratio=1.05)`, so the candidate has to fail and the control must not. Prints a Markdown table of
the gates, and what each call takes in a loop of its own (the median of five loops of a second, in turns).

A session takes about 20 seconds. With `--folder` outcomes are kept, and only the sessions run that the folder lacks.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfsuite.measure.call import Call
from promise.calls import Maker, large_product, two_programs, unreturned
from promise.sessions import Outcome, Script


def reference() -> Call:
    """The first program alone."""
    return large_product(5)


def both() -> Call:
    """Both programs, and both outputs."""
    return two_programs(both=True)


COMPARED: dict[str, tuple[Maker, Maker]] = {"unreturned": (unreturned, reference), "returned by both": (both, both)}

TESTS = f"""
import pytest
from promise.leftovers import COMPARED

from perfsuite import Budget


@pytest.mark.parametrize("name", {list(COMPARED)})
def test(perf, name):
    candidate, reference = COMPARED[name]
    perf.compare(candidate(), reference(), Budget(ratio=1.05), name=name)
"""

SCRIPT = Script((__doc__ or "").partition("\n")[0], TESTS, list(COMPARED))


def in_a_loop(makers: Sequence[Maker], seconds: float, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Microseconds that each call takes where it alone runs again and again, its outputs waited for."""
    calls = [make() for make in makers]
    for call in calls:
        jax.block_until_ready(call.run())
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(5):
        for call, of_one in zip(calls, took, strict=True):
            started, runs = clock(), 0
            while not runs or clock() - started < seconds:
                jax.block_until_ready(call.run())
                runs += 1
            of_one.append((clock() - started) / runs * 1e6)
    return [statistics.median(of_one) for of_one in took]


def main(arguments: Sequence[str] | None = None, seconds: float = 1.0) -> list[Outcome]:
    """Measure the loops, run the sessions, and print both."""
    outcomes = SCRIPT.main(arguments)
    alone, left, returned = in_a_loop((reference, unreturned, both), seconds)
    print(f"\nin a loop: {alone:,.0f} us alone, with the second program {left / alone:.2f} x where its output is not")
    print(f"returned, {returned / alone:.2f} x where it is")
    return outcomes


if __name__ == "__main__":
    main()
