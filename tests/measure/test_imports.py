"""What an import imports, in fresh processes, exactly: of packages that a test makes up, and of jax once."""

import os
import sys

import pytest

from perfsuite.measure import imports
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.imports import imports_of

FILES = {
    "app/__init__.py": "import json\n\nimport app.steps\n",
    "app/steps.py": "def later():\n    import heavy.slow\n\nimport heavy\n",
    "heavy/__init__.py": "from heavy import data\n",
    "heavy/data.py": "import light\n",
    "heavy/slow.py": "",
    "light.py": "",
    "starts.py": "import lazily\n\ndevices = lazily.devices()\n",
    "lazily.py": "import jax\n\ndef devices():\n    return jax.devices()\n",
    "broken.py": "import light\n1 / 0\n",
    "exits.py": "raise SystemExit(3)\n",
    "dies.py": "import os\nprint('out of paper', flush=True)\nos.abort()\n",
    "sets.py": "import importlib\nfor name in {'light', 'heavy', 'app'}:\n    importlib.import_module(name)\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modules_are_counted_outside_the_standard_library(folder):
    seen = imports_of("app")
    assert [module.name for module in seen.modules] == ["app", "app.steps", "heavy", "heavy.data", "light"]
    modules, _ = seen.metrics("app")
    assert modules.detail == {"app": 2, "heavy": 2, "light": 1}
    assert modules.places["heavy"] == "app/steps.py:4"
    assert seen.backends == ()
    assert not {"app", "heavy", "light"} & {*sys.modules}, "nothing is imported here"


def test_each_module_has_the_line_that_imports_it(folder):
    seen = imports_of("app")
    assert seen.chain("light") == [
        "app/__init__.py:3 imports app.steps",
        "app/steps.py:4 imports heavy",
        "heavy/__init__.py:1 imports heavy.data",
        "heavy/data.py:1 imports light",
    ]
    assert seen.chain("app") == []
    assert [module.name for module in seen.of("heavy")] == ["heavy", "heavy.data"]
    assert [module.name for module in seen.of("heavy.data")] == ["heavy.data"]
    assert seen.of("hea") == ()


def test_what_was_imported_before_does_not_count():
    assert [module.name for module in imports_of("app", after=("heavy",)).modules] == ["app", "app.steps"]


def test_metrics_are_the_same_in_every_process(monkeypatch):
    seen = []
    for seed in ("0", "1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        seen.append({each.name: (each.value, each.detail) for each in imports_of("sets").metrics("sets")})
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["sets modules imported"] == (6, {"sets": 1, "app": 2, "heavy": 2, "light": 1})


def test_a_backend_that_is_started_has_its_line():
    seen = imports_of("starts")
    assert [(each.platform, each.place) for each in seen.backends] == [("cpu", "lazily.py:4")]
    assert seen.of("jax")[0].place == "lazily.py:1"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("absent", "importing absent ended with status 1: ModuleNotFoundError: No module named 'absent'"),
        ("broken", "importing broken ended with status 1: File .*broken.* ZeroDivisionError: division by zero"),
        ("exits", "importing exits ended with status 3: "),
        ("dies", "importing dies ended with status -6: out of paper.*"),
    ],
)
def test_a_module_that_cannot_be_imported_is_said(module, said, monkeypatch, folder):
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(imports.tempfile, "tempdir", None)
    before = set(os.listdir(folder)) | {"__pycache__"}
    with pytest.raises(MeasurementError, match=f"^{said}$"):
        imports_of(module)
    assert set(os.listdir(folder)) <= before, "nothing is left behind"
