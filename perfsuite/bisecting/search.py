"""Find the first new step: halve the steps that may be it, and go round those that cannot be tried."""

from collections.abc import Callable
from typing import Literal

from perfsuite.bisecting.graph import Graph

Side = Literal["old", "new", "skipped"]
"""What a step is like: the old end, the new end; or it could not be tried."""


def search(graph: Graph, newest: str, ask: Callable[[str, int], Side]) -> list[str]:
    """The steps that may be the first new one, oldest first: one of them, where no skipped step hides it.

    All before the graph is known to be old, and `newest` to be new. `ask(step, suspects)` tries a step; `suspects` is
    how many there are. Without skipped steps it is called ceil(log2(steps)) times at most where the steps are in a row.
    """
    old: set[str] = set()
    new = {newest}
    skipped: set[str] = set()
    while (step := graph.next_step(old, new, skipped)) is not None:
        answer = ask(step, len(graph.suspects(old, new)))
        {"old": old, "new": new, "skipped": skipped}[answer].add(step)
    return graph.suspects(old, new)
