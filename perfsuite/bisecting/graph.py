"""The steps of a search, from old to new, which of them may be the first new one, and which to try next."""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Graph:
    """Commits with their parents, or the releases of a package: each step with the steps just before it.

    `parents` has the steps oldest first: no step stands before a parent of its own. It is assumed, as `git bisect`
    does, that all that comes before an old step is old, and all that comes after a new one is new.
    """

    parents: Mapping[str, tuple[str, ...]]

    @classmethod
    def chain(cls, steps: Sequence[str]) -> "Graph":
        """Steps in a row."""
        return cls({step: tuple(steps[max(at - 1, 0) : at]) for at, step in enumerate(steps)})

    @functools.cached_property
    def _before(self) -> dict[str, int]:
        """For each step a set of bits: itself and all that comes before it."""
        places = {step: place for place, step in enumerate(self.parents)}
        found: dict[str, int] = {}
        for step, parents in self.parents.items():
            found[step] = functools.reduce(int.__or__, (found[each] for each in parents), 1 << places[step])
        return found

    def suspects(self, old: Collection[str], new: Collection[str]) -> list[str]:
        """The steps that may be the first new one, oldest first: before every new step or it, and before no old one."""
        suspected = self._suspected(old, new)
        return [step for place, step in enumerate(self.parents) if suspected >> place & 1]

    def next_step(self, old: Collection[str], new: Collection[str], skipped: Collection[str]) -> str | None:
        """The step to try: as many suspects before it as after it, so that either answer leaves half of them.

        `skipped` could not be tried. What cannot be tried often stands together, so the choice keeps away from them: a
        step is worth the fewest of the suspects that it divides off, and of those between it and a skipped one; a step
        between two skipped ones comes last. None where only skipped steps are left.
        """
        suspected = self._suspected(old, new)
        before = {step: self._before[step] & suspected for step in self.suspects(old, new)}
        bad = [before[step] for step in skipped if step in before]

        def worth(step: str) -> tuple[bool, int]:
            here = before[step]
            sizes = [here.bit_count(), suspected.bit_count() - here.bit_count()]
            between = any(here & each == each for each in bad) and any(here & each == here for each in bad)
            return not between, min([*sizes, *((here ^ each).bit_count() for each in bad)])

        untried = [step for step, here in before.items() if step not in skipped and here != suspected]
        return max(untried, key=worth, default=None)

    def _suspected(self, old: Collection[str], new: Collection[str]) -> int:
        everything = (1 << len(self.parents)) - 1
        suspected = functools.reduce(int.__and__, (self._before[step] for step in new), everything)
        return suspected & ~functools.reduce(int.__or__, (self._before[step] for step in old), 0)
