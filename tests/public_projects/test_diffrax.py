"""diffrax: which values are part of the program, what a call costs the host, what a solve is compiled to."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, RecompilationError, call

diffrax = pytest.importorskip("diffrax", reason="the project that is tried: pip install diffrax")


def decay(t, y, rate):
    return -rate * y


TERM, SOLVER = diffrax.ODETerm(decay), diffrax.Tsit5()
RATE, Y0 = jnp.asarray(0.5), jnp.ones(3)


def solved(t1, dt0, y0, rate, ts):
    return diffrax.diffeqsolve(TERM, SOLVER, 0.0, t1, dt0, y0, rate, saveat=diffrax.SaveAt(ts=ts)).ys


solve = eqx.filter_jit(solved)


def arguments(t1=1.0, dt0=0.1, y0=1.0, rate=0.5, length=5):
    """Everything as an array."""
    return jnp.asarray(t1), jnp.asarray(dt0), jnp.full(3, y0), jnp.asarray(rate), jnp.linspace(0.0, t1, length)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"t1": 2.0}, r"args\[3\] \(t1\): static value was 1.0, is 2.0"),
        ({"args": {"rate": 2.0}}, r"args\[6\]\['rate'\] \(of args\): static value was 1.0, is 2.0"),
        ({"terms": diffrax.ODETerm(lambda t, y, args: -y)}, r"args\[0\].vector_field \(of terms\): static"),
    ],
    ids=["t1", "args", "vector-field"],
)
def test_other_python_values_are_other_programs(perf, changed, named):
    given = {"terms": diffrax.ODETerm(lambda t, y, args: decay(t, y, args["rate"])), "args": {"rate": 1.0}, "t1": 1.0}
    given |= {"solver": diffrax.Euler(), "t0": 0.0, "dt0": 0.5, "y0": Y0}
    diffrax.diffeqsolve(**given)
    with pytest.raises(RecompilationError, match=named), perf.no_compiles():
        diffrax.diffeqsolve(**given | changed)


def test_what_a_call_costs_the_host(perf):
    jitted = jax.jit(solved)
    perf.host_calls(call(solve, *arguments()))
    perf.host_calls(call(jitted, *arguments()), name="under jax.jit")
    perf.compare(call(solve, *arguments()), call(jitted, *arguments()), Budget(ratio=6.0), until="return")


def test_the_memory_of_a_gradient(perf):
    def gradient(checkpoints):
        def loss(y0, rate):
            adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints=checkpoints)
            return diffrax.diffeqsolve(TERM, diffrax.Euler(), 0.0, 1.0, 0.01, y0, rate, adjoint=adjoint).ys.sum()

        return call(jax.jit(jax.grad(loss)), jax.ShapeDtypeStruct((100_000,), jnp.float32), RATE)

    few, many = (perf.program(gradient(n), name=f"{n} checkpoints") for n in (4, 16))
    assert few.temp_bytes < many.temp_bytes
