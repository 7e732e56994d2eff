"""What tests of compiles share: functions to compile, calls that must or must not, and threads."""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError

SHORT, LONG = jnp.ones(3), jnp.ones(4)


def doubling(jit=jax.jit, **options):
    return jit(lambda x: x * 2, **options)


def python_calls(fn, *args) -> int:
    calls = 0

    def profile(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(profile)
    try:
        fn(*args)
    finally:
        sys.setprofile(None)
    return calls


def run_in_thread(target, *args, name=None):
    thread = threading.Thread(target=target, args=args, name=name)
    thread.start()
    thread.join()


def refusal(fn, *args, **kwargs) -> RecompilationError:
    """The error of a call that must compile; and afterwards the control: the same call again is silent."""
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        fn(*args, **kwargs)
    fn(*args, **kwargs)
    silent(fn, *args, **kwargs)
    return raised.value


def silent(fn, *args, **kwargs) -> None:
    with compiles.forbid():
        fn(*args, **kwargs)


def total(tree: Any):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf))


def compiling(step: Callable, inputs: Iterable[tuple]) -> list[int]:
    """The places of the inputs with which JAX compiles something."""
    places = []
    for place, arguments in enumerate(inputs):
        with compiles.count() as counted:
            step(*arguments)
        places += [place] if counted.events else []
    return places
