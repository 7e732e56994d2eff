"""`perfsuite.hooks.side_child`: nothing of the user's working tree in a process that runs a commit's code."""

import importlib
import os
import sys

import pytest

from perfsuite.against.notes import NOT_FROM
from perfsuite.hooks.side_child import foreign, keep_out


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A working tree with modules of its own, and one that is installed in a virtual environment in it."""
    tree, own = tmp_path / "tree", tree_own(tmp_path)
    installed = tree / ".venv" / "site-packages"
    for folder, name in ((tree, "of_the_tree"), (own, "of_the_commit"), (installed, "of_the_environment")):
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text("")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tree), str(own), str(installed), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(NOT_FROM, os.pathsep.join([str(tree), str(own)]))
    importlib.invalidate_caches()
    return tree


def tree_own(tmp_path):
    """The worktree of the commit, here inside of the tree."""
    return tmp_path / "tree" / "scratch" / "worktree"


def test_only_modules_of_the_tree_are_kept_out(tree):
    keep_out()
    assert str(tree) not in sys.path
    sys.path.insert(0, str(tree))  # as a conftest does
    for name in ("of_the_commit", "of_the_environment"):
        importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match="this commit has no module 'of_the_tree'"):
        importlib.import_module("of_the_tree")
    assert foreign() == {}


def test_what_was_imported_before_is_named(tree):
    importlib.import_module("of_the_tree")
    keep_out()
    assert foreign() == {"of_the_tree": str(tree / "of_the_tree.py")}


def test_another_process_imports_what_it_likes(tree, monkeypatch):
    monkeypatch.delenv(NOT_FROM)
    before = list(sys.path), list(sys.meta_path)
    keep_out()
    assert (sys.path, sys.meta_path) == before
    importlib.import_module("of_the_tree")
    assert foreign() == {}
