"""Calls to trace, and events for traces made by hand, in microseconds."""

import jax
import jax.numpy as jnp


@jax.jit
def product(x):
    return jnp.tanh(x @ x)


@jax.jit
def ordered(x):
    return jnp.sort(x)


SQUARE = jnp.ones((500, 500))
LONG = jnp.arange(200_000.0)


def on_cpu(name, start, us, flow=None, module="jit_step", device=0, run=1):
    stats = {"hlo_op": name, "hlo_module": module, "run_id": run, "device_ordinal": device}
    return name, start, us, stats if flow is None else {**stats, "_p": flow}


def over(name, moment, flow):
    return f"end: {name}", moment, 0.1, {"_c": flow}


def of_step(name, hlo_op="dot.1", **stats):
    return {"hlo_op": hlo_op, "hlo_module": "jit_step", **stats} if hlo_op else stats
