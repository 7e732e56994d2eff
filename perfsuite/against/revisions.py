"""The sides of a comparison: a commit in a git worktree, or the working tree as it is, perhaps with other packages."""

import ast
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from perfsuite.against import environments, notes
from perfsuite.against.declared import Declared, unmet
from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.sides import Side, SideFailed, Stand
from perfsuite.against.tree import Tree, tree_here
from perfsuite.against.worktrees import commit_of, worktree
from perfsuite.git import SHALLOW, GitError

_OWN_NOTES = "perfsuite/against/notes.py"
_PROJECT = "pyproject.toml"


BRANCHES = ("main", "master", "origin/HEAD", "origin/main", "origin/master")
"""The first of these that is there is what a branch is compared with by default: its merge base with it."""


@contextlib.contextmanager
def both_sides(
    revision: str | None, specs: tuple[Sequence[str], Sequence[str]], arguments: Sequence[str], folders: "Folders"
) -> Iterator[tuple[Side, Side]]:
    """The base and the head: a commit and the working tree, or for the revision None the working tree twice.

    `specs` are the packages of the base and of the head, in the place of the present ones, `arguments` are pytest's.
    Raises `SideFailed`, `GitError` and `EnvironmentFailed`.
    """
    of_base, of_head = specs
    with environments.locked(folders.keep):
        if revision is None:
            # The head's packages first: where pip cannot install them, the user learns it at once.
            head = side_of_tree(None, of_head, "head", folder=folders.environments)
            yield side_of_tree(None, of_base, "base", folder=folders.environments), head
            return
        tree = tree_here(arguments)
        chosen = revision or _default(tree)
        head = side_of_tree(tree, of_head, "head", folder=folders.environments)
        with side_of_commit(tree, chosen, "base", scratch=folders.scratch, keep=folders.keep, specs=of_base) as base:
            yield base, head


@dataclasses.dataclass(frozen=True)
class Folders:
    """`scratch`, which nobody else uses and which is removed, and `keep`, where environments stay, or None."""

    scratch: Path
    keep: Path | None

    @property
    def environments(self) -> Path:
        return self.keep or self.scratch


def _default(tree: Tree) -> str:
    """The merge base with the main branch."""
    repository = tree.repository
    main = next((name for name in BRANCHES if repository.commit_id(name)), None)
    if main is None:
        raise SideFailed(f"there is no branch {', '.join(BRANCHES)} to compare with: name a commit or a branch")
    try:
        return repository.run("merge-base", main, "HEAD").strip()
    except GitError:
        why = f" {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else ""
        raise SideFailed(f"HEAD and {main} have no commit in common: name a commit or a branch.{why}") from None


def side_of_tree(tree: Tree | None, specs: Sequence[str], name: str, *, folder: Path) -> Side:
    """The working tree as it is, with the packages `specs` in the place of the present ones.

    Without `specs` it runs in the present environment. Raises `EnvironmentFailed`.
    """
    environment = environments.make(specs, folder) if specs else environments.present()
    packages = " ".join(specs) or "the present packages"
    return Side(name, environment, tree.directory if tree else Path.cwd(), title=f"the working tree, {packages}")


@contextlib.contextmanager
def side_of_commit(
    tree: Tree, revision: str, name: str, *, scratch: Path, keep: Path | None, specs: Sequence[str] = ()
) -> Iterator[Side]:
    """A commit in a worktree below `scratch`, which is removed at the end, with the working tree's perf tests.

    It runs in the present environment where that meets what the commit's pyproject.toml asks for; else in one with
    what it asks for, and with `specs`, below `keep` or `scratch`. Raises `SideFailed`, `GitError` and
    `EnvironmentFailed`.
    """
    commit = commit_of(tree.repository, revision)
    if built := tree.built():
        raise SideFailed(
            f"the project has compiled modules that git does not have ({built[0]}), and perfsuite cannot build those "
            f"of {revision}: install each version in an environment of its own and compare `pytest --perf-save` there"
        )
    _check_own_notes(tree, commit, revision)
    environment, remarks = _environment(tree, commit, revision, keep or scratch, specs)
    with worktree(tree.repository, commit, scratch / f"code-{name}") as place:
        stand = Stand(tree.root, place.resolve())
        tree.lay_over(stand)
        paths = tuple(stand.moved(path) for path in tree.imports)
        title = tree.repository.commit(commit).title
        packages = " ".join(environment.specs) or "the present packages"
        title = f"{title}, {packages}"
        yield Side(name, environment, stand.moved(tree.directory), paths, stand, remarks, title=title)


def _environment(
    tree: Tree, commit: str, revision: str, folder: Path, specs: Sequence[str]
) -> tuple[VirtualEnvironment, tuple[str, ...]]:
    present = environments.present()
    asked: list[str] = []
    remarks: list[str] = []
    for project in _projects(tree):
        here, there = _declared(tree, project, None, revision), _declared(tree, project, commit, revision)
        if there.dynamic and not (here == there and not here.dynamic):
            remarks.append(
                f"{project} of {revision} leaves its {' and '.join(there.dynamic)} to the build: not compared"
            )
        asked += unmet(there, here, present.packages, f"{project} of {revision}")
    named = {_name(spec) for spec in specs}
    wanted = [*(line for line in asked if _name(line) not in named), *specs]
    return (environments.make(wanted, folder) if wanted else present), tuple(remarks)


def _projects(tree: Tree) -> list[str]:
    """The pyproject.toml files nearest above the folders with code; that of the root always."""
    found = {_PROJECT}
    for place in (*tree.imports, tree.directory):
        for folder in (place, *place.parents):
            if folder.is_relative_to(tree.root) and (folder / _PROJECT).is_file():
                found.add((folder / _PROJECT).relative_to(tree.root).as_posix())
                break
    return sorted(found)


def _declared(tree: Tree, path: str, commit: str | None, revision: str) -> Declared:
    if commit is None:
        file = tree.root / path
        return Declared.of(file.read_text(encoding="utf-8"), "the working tree") if file.is_file() else Declared()
    text = _text_at(tree, commit, path)
    return Declared() if text is None else Declared.of(text, revision)


def _text_at(tree: Tree, commit: str, path: str) -> str | None:
    (found,) = tree.repository.contents([f"{commit}:{path}"])
    return None if found is None else found.decode(errors="replace")


def _check_own_notes(tree: Tree, commit: str, revision: str) -> None:
    """Where perfsuite itself is compared, each side runs its own, and both must understand each other."""
    for place in tree.imports:
        file = place / _OWN_NOTES
        if not file.is_file():
            continue
        text = _text_at(tree, commit, file.relative_to(tree.root).as_posix())
        if text is None or _protocol(text) != notes.PROTOCOL:
            raise SideFailed(
                f"the perfsuite of {revision} cannot be compared by this one: "
                + ("it has no `perfsuite against`" if text is None else "the two exchange other notes")
                + ". Choose a later commit"
            )


def _protocol(text: str) -> object:
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["PROTOCOL"]:
                return ast.literal_eval(node.value)
    return None


def _name(spec: str) -> str:
    return canonicalize_name(environments.name_of(spec) or spec)
