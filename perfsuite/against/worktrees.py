"""A commit in a folder of its own: a git worktree that is gone at the end. The user's tree is never touched.

A worktree shares the repository's objects, and has its own HEAD and index. Each is locked while it is used, with a
reason that names the process: so `git worktree prune` leaves it alone, and a later run knows which ones a killed
process left.
"""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from perfsuite.against.sides import SideFailed
from perfsuite.git import SHALLOW, GitError, Repository

_REASON = "perfsuite compares it, process {process} on {host}"
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


def commit_of(repository: Repository, revision: str) -> str:
    """The full hash. Raises `SideFailed` where there is no such commit."""
    found = repository.commit_id(revision)
    if found is None:
        raise SideFailed(
            f"{revision!r} is no commit of this repository: give a branch, a tag or a hash (packages go after --with)"
            + (f". {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else "")
        )
    return found


@contextlib.contextmanager
def worktree(repository: Repository, revision: str, place: Path) -> Iterator[Path]:
    """A worktree of the commit at `place`, which must not exist yet; removed at the end, whatever happens.

    Raises `SideFailed` where git cannot make it.
    """
    commit = commit_of(repository, revision)
    _remove_left(repository)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(_remove, repository, place)
        _add(repository, commit, place)
        for path, inside, wanted in _submodules(repository, commit):
            cleanup.callback(_remove, inside, place / path)
            _remove_left(inside)
            _add(inside, wanted, place / path)
        yield place


def _add(repository: Repository, commit: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    reason = _REASON.format(process=os.getpid(), host=socket.gethostname())
    try:
        repository.run(*_NO_HOOKS, "worktree", "add", "--quiet", "--detach", os.fspath(place), commit)
        repository.run("worktree", "lock", "--reason", reason, os.fspath(place))
    except GitError as error:
        raise SideFailed(f"git cannot put {commit[:12]} into a worktree: {error}") from None


def _remove(repository: Repository, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(GitError):  # git was ended before it knew the worktree
        repository.run("worktree", "remove", "--force", "--force", os.fspath(place))


def _remove_left(repository: Repository) -> None:
    """Remove the worktrees of processes that were killed."""
    for entry in repository.run("worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in entry.splitlines())
        # git quotes a reason with unusual characters; a host's name may have them
        named = re.fullmatch(_REASON.format(process=r"(\d{1,9})", host="(.*)"), lines.get("locked", "").strip('"'))
        if "worktree" in lines and named and named[2] == socket.gethostname() and not _runs(int(named[1])):
            _remove(repository, Path(lines["worktree"]))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _submodules(repository: Repository, commit: str) -> Iterator[tuple[str, Repository, str]]:
    """Each submodule that the user's tree has: its path, its repository, and the commit of it that is wanted."""
    for line in repository.run("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
        about, _, path = line.partition("\t")
        if not about.startswith("160000 "):
            continue
        folder = repository.folder / path
        if not (folder / ".git").exists():  # git submodule update was never run, so the tests do without it
            continue
        inside, wanted = Repository(folder), about.split()[-1]
        if inside.dirty(""):
            raise SideFailed(f"the submodule {path} has changes that are not committed: commit or stash them there")
        if inside.commit_id(wanted) is None:
            raise SideFailed(f"the submodule {path} lacks its commit {wanted[:12]}: `git -C {path} fetch` first")
        yield path, inside, wanted
