"""`perfsuite.hooks.side_child`: what a process of a side notes."""

import importlib.metadata
import sys
import types

from perfsuite.hooks import side_child


def test_folders_of_editable_installs_that_are_not_on_the_path_are_noted(tmp_path, monkeypatch):
    """As a finder of setuptools maps them: a package, and a module."""
    for name, file in (("pack", "src/pack/__init__.py"), ("alone", "other/alone.py")):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        importlib.metadata, "packages_distributions", lambda: {"pack": ["p"], "alone": ["a"], "no": ["n"]}
    )
    assert side_child._import_folders()[-2:] == [str(tmp_path / "src"), str(tmp_path / "other")]
