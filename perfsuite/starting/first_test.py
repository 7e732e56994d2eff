"""The text of a first file of perf tests."""

from perfsuite.starting.target import Target

_HEAD = '''\
"""Perf tests of {module}.{name}: `pytest --perf` runs them, `pytest --perf-save` records their baselines."""

{imports}from {module} import {imported}

from perfsuite import call


def arguments():
    """The arguments of one call, made anew: a call may donate them."""
{arguments}
'''

_TESTS = """

def test_{name}_compiles_once(perf):
    perf.warm({step}, over=[arguments()])
    again = call({step}, *arguments(){carry})
    with perf.no_compiles():
        for _ in range(3):
            again.run()


def test_{name}_does_not_do_more_on_the_host(perf):
    perf.host_calls(call({step}, *arguments(){carry}))
"""

_PROGRAM = """

def test_{name}_does_not_become_a_worse_program(perf, perf_target):
    program = perf.program(call({step}, *arguments(){carry}), perf_target)
    assert not program.lost_donations
"""

_FILL_IN = """

def fill_in(parameter):
    raise NotImplementedError(f"{file}: write the argument `{{parameter}}` of {name} in the place of fill_in")
"""

_TAKEN = {"again", "arguments", "call", "fill_in", "jax", "jnp", "np", "perf", "perf_target"}
"""Names that the file has for something else."""

_CARRIED_BY_HAND = """\
    # Are the first n outputs the first n arguments of the next call, as of a train state? Then write carry=n below:
    # call({step}, *arguments(), carry=n).
"""


def first_test(target: Target, file: str) -> str:
    """The text of the file `file`: three tests of the function, or two where it is not jitted.

    An argument that cannot be seen is marked, and the tests fail with what to write until it is there.
    """
    carry = f", carry={target.carry}" if target.carry else ""
    # Pytest would take an imported test_step for a test.
    step = f"the_{target.name}" if target.name in _TAKEN or target.name.startswith("test") else target.name
    imported = target.name if step == target.name else f"{target.name} as {step}"
    names = {"module": target.module, "name": target.name, "step": step, "carry": carry, "file": file}
    values = [each.value for each in target.parameters]
    imports = [
        line
        for line, prefix in (("import jax", "jax."), ("import jax.numpy as jnp", "jnp."), ("import numpy as np", "np."))
        if any(value.startswith(prefix) for value in values)
    ]
    text = _HEAD.format(
        **names,
        imports="".join(f"{line}\n" for line in imports),
        imported=imported,
        arguments=_arguments(target, step),
    )
    text += _FILL_IN.format(**names) if target.unseen else ""
    return text + (_TESTS + _PROGRAM if target.jitted else _TESTS).format(**names)


def _arguments(target: Target, step: str) -> str:
    if not target.parameters:
        return "    return ()"
    lines = [_argument(each.name, each.value, each.annotation) for each in target.parameters]
    names = ", ".join(each.name for each in target.parameters)
    by_hand = _CARRIED_BY_HAND.format(step=step) if target.unseen else ""
    return by_hand + "\n".join([*lines, f"    return {names}{',' if len(lines) == 1 else ''}"])


def _argument(name: str, value: str, annotation: str) -> str:
    line = f"    {name} = " + (value or f'fill_in("{name}")')
    return f"{line}  # {annotation}" if annotation else line
