"""The commits between two, with their parents, and what git knows of one."""

import re

from perfsuite.bisecting.found import About, BisectFailed
from perfsuite.bisecting.graph import Graph
from perfsuite.git import SHALLOW, GitError, Repository

_FIELDS = "%h%x00%an%x00%as%x00%s%x00%B"
_LONGEST = 60


class Commits:
    """The commits after the older of two revisions, up to the newer. Raises `BisectFailed`."""

    def __init__(self, repository: Repository, good: str, bad: str):
        self._repository = repository
        self.good, self.bad = self._commit("--good", good), self._commit("--bad", bad)
        if self.good == self.bad:
            raise BisectFailed(f"--good {good} and --bad {bad} are the same commit, {self.name(self.good)}")
        base = self._merge_base()
        if base not in (self.good, self.bad):
            raise BisectFailed(self._apart(good, bad, base))
        self.older, self.newer = (self.good, self.bad) if base == self.good else (self.bad, self.good)

    @property
    def bad_is_newer(self) -> bool:
        return self.newer == self.bad

    def graph(self, *, descendants: bool = False) -> Graph:
        """All commits that the newer end has and the older one has not, as `git bisect` takes them.

        `descendants` leaves out those that do not come after the older one: of branches that began before it.
        """
        only = ["--ancestry-path"] if descendants else []
        text = self._asked(
            "rev-list", "--topo-order", "--reverse", "--parents", *only, self.newer, f"^{self.older}", "--"
        )
        parents: dict[str, tuple[str, ...]] = {}
        for line in text.splitlines():
            commit, *before = line.split() or [""]
            if not commit or commit in parents:
                raise _unreadable("rev-list")
            # Those before it are there already: of others the older end has all.
            parents[commit] = tuple(each for each in before if each in parents)
        if self.newer not in parents:
            raise _unreadable("rev-list")
        return Graph(parents)

    def parents(self, commit: str) -> list[str]:
        return self._asked("rev-list", "--parents", "--max-count=1", commit, "--").split()[1:]

    def name(self, commit: str) -> str:
        """`1a2b3c4 its subject`."""
        short, _, _, subject, _ = self._fields(commit)
        return f"{short} {subject if len(subject) <= _LONGEST else subject[: _LONGEST - 3] + '...'}"

    def about(self, commit: str) -> About:
        _, author, day, _, message = self._fields(commit)
        stat = self._asked("show", "--first-parent", "--stat=100", "--format=", "--end-of-options", commit)
        lines = tuple(line.rstrip() for line in _printable(stat).splitlines() if line.strip())
        return About(f"commit {commit}", author, day, message.strip(), lines)

    def _fields(self, commit: str) -> list[str]:
        text = self._asked("rev-list", "--max-count=1", "--encoding=UTF-8", f"--format={_FIELDS}", commit, "--")
        fields = [_printable(field) for field in text.partition("\n")[2].split("\0", 4)]
        if len(fields) != _FIELDS.count("%x00") + 1:
            raise _unreadable("rev-list")
        return [*(field.replace("\n", " ") for field in fields[:-1]), fields[-1]]  # of the message alone several lines

    def _asked(self, *arguments: str) -> str:
        try:
            return self._repository.run(*arguments)
        except GitError as error:
            raise BisectFailed(str(error)) from None

    def _commit(self, option: str, revision: str) -> str:
        found = self._repository.commit_id(revision)
        if found is None:
            more = f": {SHALLOW}" if self._repository.shallow else ": give a commit, a branch or a tag"
            raise BisectFailed(f"{option} {revision}: git knows no such commit{more}")
        return found

    def _merge_base(self) -> str:
        """The commit where the two part; empty where they have none in common."""
        try:
            return next(iter(self._repository.run("merge-base", self.good, self.bad).split()), "")
        except GitError:  # it ends with a status of 1, and says nothing
            return ""

    def _apart(self, good: str, bad: str, base: str) -> str:
        apart = f"neither of --good {good} and --bad {bad} comes after the other"
        if not base:
            return f"{apart}, and they have no commit in common" + (f": {SHALLOW}" if self._repository.shallow else "")
        return (
            f"{apart}: search from the commit where they part, --good {base[:12]}, if the metric is good there; "
            "`perfsuite against` tells"
        )


def _unreadable(command: str) -> BisectFailed:
    return BisectFailed(f"git {command}: its answer cannot be read: `git fsck` says whether the repository is whole")


def _printable(text: str) -> str:
    """Without the characters that control a terminal."""
    return re.sub(r"[^\S\n]", " ", "".join(each for each in text if each.isprintable() or each.isspace()))
