"""`perfsuite`: its public names are there when they are used, and cost a session nothing before."""

import subprocess
import sys

import pytest

import perfsuite


@pytest.mark.parametrize("name", perfsuite.__all__)
def test_a_public_name_is_what_its_module_defines(name):
    value = getattr(perfsuite, name)
    assert value.__name__ == name
    assert value.__module__.startswith("perfsuite.")


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'perfsuite' has no attribute 'Budgets'"):
        _ = perfsuite.Budgets


def test_importing_the_plugin_imports_no_budget():
    code = (
        "import perfsuite.plugin, sys; assert 'perfsuite.gate.budget' not in sys.modules; from perfsuite import Budget"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
