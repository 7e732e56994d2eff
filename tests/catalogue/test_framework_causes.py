"""What makes a step of Equinox, Flax or Optax compile again, as users write it by mistake: every cause is named.

Numbers of issues are of the project that is named with them. "measured" is what equinox 0.13.8, flax 0.12.8 and optax
0.2.8 do with jax 0.10.2.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.core import freeze
from flax.training.train_state import TrainState

from .catalogue import Case, Catalogue

causes = Catalogue()
entry = causes.entry

X = jnp.ones(3)
HALF = jnp.ones(3, jnp.bfloat16)
BATCH = jnp.ones((2, 3))
KEY = jax.random.key(0)
ZERO = jnp.zeros(())

AS_AN_ARRAY = "Pass it as an array if it changes"
FUNCTION_ONCE = "Make the function once, at module level: JAX compares it by identity"
METHOD_OF_ONE = "Take the method of one object"
OPTIMIZER_ONCE = "Make the optimizer or schedule once, outside the loop"
JIT_ONCE = "Create the jitted function once, outside the loop"
SAME_TREE = "Pass the same tree in the same way in every call"
WARM_EVERY = "Warm every value"


def double(x):
    return x * 2


def total(x):
    return (x * x).sum()


# Equinox: whatever is no array is part of the program.


class Layer(eqx.Module):
    weight: Any
    rate: float = 0.1
    step: int = 0
    activation: Callable = jax.nn.relu
    bias: Any = None

    def scaled(self, x):
        return self.weight * x

    def __call__(self, x):
        x = self.activation(self.weight * x) * self.rate
        return x if self.bias is None else x + self.bias


class Plain:
    """A class that is no pytree, with a method that a step is given."""

    def scaled(self, x):
        return x * 2


def layer_step():
    """A step of its own for each entry, warm for a layer as it is made."""
    step = eqx.filter_jit(lambda layer, x: layer(x))
    step(Layer(X), X)
    return step


@entry("equinox issue 1062", "args[0].rate: static value was 0.1, is 0.2", AS_AN_ARRAY)
def a_learning_rate_in_a_module():
    step = eqx.filter_jit(lambda layer, x: layer(x))
    step(Layer(X, jnp.float32(0.1)), X)
    step(Layer(X), X)
    other = jnp.float32(0.2)
    return Case(lambda: step(Layer(X, 0.2), X), lambda: step(Layer(X, other), X))


@entry("equinox issue 1062", "args[0].step: static value was 0, is 1", AS_AN_ARRAY)
def a_module_that_counts_its_steps_in_an_int():
    step = eqx.filter_jit(lambda layer, x: layer(x))
    step(Layer(X, step=jnp.int32(0)), X)
    step(Layer(X), X)
    return Case(lambda: step(Layer(X, step=1), X), lambda: step(Layer(X, step=jnp.int32(1)), X))


@entry("equinox issue 1062", "args[1]: static value was 0.1, is 0.2", AS_AN_ARRAY)
def a_learning_rate_passed_to_filter_jit():
    step = eqx.filter_jit(lambda x, rate: x * rate)
    step(X, jnp.float32(0.1))
    step(X, 0.1)
    return Case(lambda: step(X, 0.2), lambda: step(X, np.float32(0.2)))


@entry("equinox issue 686", "args[0].activation: static value was", "is another", FUNCTION_ONCE)
def an_activation_that_is_a_new_lambda():
    step = eqx.filter_jit(lambda layer, x: layer(x))

    def made():
        return Layer(X, activation=lambda x: x)

    step(made(), X)
    step(Layer(X), X)
    return Case(lambda: step(made(), X), lambda: step(Layer(X), X))


@entry("equinox issue 686", "args[0].activation: static value was double, is another double")
def an_activation_that_is_jitted_for_every_module():
    step = eqx.filter_jit(lambda layer, x: layer(x))

    def made():
        return Layer(X, activation=jax.jit(double))

    one = made()
    step(one, X)
    return Case(lambda: step(made(), X), lambda: step(one, X))


@entry("measured: a functools.partial is equal to itself alone", "args[0].activation: static value was", FUNCTION_ONCE)
def an_activation_that_is_a_new_partial():
    step = eqx.filter_jit(lambda layer, x: layer(x))

    def made():
        return Layer(X, activation=functools.partial(jax.nn.elu, alpha=0.1))

    one = made()
    step(one, X)
    return Case(lambda: step(made(), X), lambda: step(one, X))


@entry("equinox issue 686", "args[0].layers[0].fn: static value was", "is another", FUNCTION_ONCE)
def a_lambda_in_a_sequential():
    step = eqx.filter_jit(lambda layers, x: layers(x))

    def made(fn):
        return eqx.nn.Sequential([eqx.nn.Lambda(fn)])

    def made_anew():
        return made(lambda x: x)

    step(made_anew(), X)
    step(made(jnp.tanh), X)
    return Case(lambda: step(made_anew(), X), lambda: step(made(jnp.tanh), X))


@entry(
    "measured: a method of a module is a pytree, that of another class a new object each time it is taken",
    "args[0]: static value was Plain.scaled, is another Plain.scaled",
    METHOD_OF_ONE,
)
def a_bound_method_of_a_new_object():
    step = eqx.filter_jit(lambda fn, x: fn(x))
    step(Plain().scaled, X)
    step(Layer(X).scaled, X)
    other = Layer(X * 2)
    return Case(lambda: step(Plain().scaled, X), lambda: step(other.scaled, X))


@entry(
    "measured with diffrax and optimistix: a vector field or residual is a static value",
    "args[0]: static value was a_function_that_closes_over_a_number.<locals>.made.<locals>.<lambda>, is another",
    "args[0], closed-over rate: static value was 0.1, is 0.2",
    FUNCTION_ONCE,
    "What it has built in (rate) can be an argument.",
)
def a_function_that_closes_over_a_number():
    step = eqx.filter_jit(lambda fn, x: fn(x))

    def made(rate):
        return lambda x: x * rate

    one = made(0.1)
    step(one, X)
    return Case(lambda: step(made(0.2), X), lambda: step(one, X))


@eqx.filter_jit
def solve(term, solver, t0, t1, y0):
    return y0 + (t1 - t0)


@entry("measured with diffrax: t1 of diffeqsolve", "args[3] (t1): static value was 1.0, is 2.0", AS_AN_ARRAY)
def a_python_number_that_is_passed_by_keyword():
    solve(None, None, 0.0, t1=1.0, y0=X)
    return Case(lambda: solve(None, None, 0.0, t1=2.0, y0=X), lambda: solve(None, None, 0.0, 1.0, X))


@entry(
    "measured: a function made in the loop", "function: was an earlier object, is another of the same code", JIT_ONCE
)
def filter_jit_of_a_lambda_in_the_loop():
    def in_the_loop():
        return eqx.filter_jit(lambda x: x + 1)(X)

    in_the_loop()
    eqx.filter_jit(double)(X)  # the same function again is the same program
    return Case(lambda: in_the_loop(), lambda: eqx.filter_jit(double)(X))


@entry("equinox pull request 71", "_fun: static value was", "is another", FUNCTION_ONCE)
def filter_jit_of_the_gradient_of_a_lambda_in_the_loop():
    def in_the_loop(loss=None):
        return eqx.filter_jit(eqx.filter_grad(loss or (lambda x: x.sum())))(X)

    in_the_loop()
    in_the_loop(total)
    return Case(lambda: in_the_loop(), lambda: in_the_loop(total))


@entry("measured: shape or dtype", "args[0].weight: dtype was float32, is bfloat16", "x.astype('float32')")
def tree_at_with_an_array_of_another_dtype():
    step, layer, cast = layer_step(), Layer(X), HALF.astype(jnp.float32)
    at = functools.partial(eqx.tree_at, lambda layer: layer.weight)
    return Case(lambda: step(at(layer, HALF), X), lambda: step(at(layer, cast), X))


@entry("measured: tree structure", "args[0].bias: was None, is float32[3]", "None is part of the tree")
def tree_at_with_an_array_in_place_of_none():
    step, layer = layer_step(), Layer(X)
    at = functools.partial(eqx.tree_at, lambda layer: layer.bias, is_leaf=lambda x: x is None)
    return Case(lambda: step(at(layer, X), X), lambda: step(at(layer, None), X))


@entry("equinox issue 1062", "args[0].weight: static value was float32[3], is 0.5", AS_AN_ARRAY)
def tree_at_with_a_python_number():
    step, layer = layer_step(), Layer(X)
    at = functools.partial(eqx.tree_at, lambda layer: layer.weight)
    return Case(lambda: step(at(layer, 0.5), X), lambda: step(at(layer, X), X))


@entry("measured: weak type", "args[0].weight: weak type was False (an array), is True (an array)", "jnp.float32")
def a_leaf_that_is_made_weakly_typed():
    step = eqx.filter_jit(lambda layer, x: layer(x))
    step(Layer(jnp.float32(1)), X)
    weak = jnp.asarray(0.5)
    return Case(lambda: step(Layer(weak), X), lambda: step(Layer(np.float32(0.5)), X))


@entry("measured: filter_jit traces NumPy arrays", "args[0].weight: was float32[3], is list of 3", SAME_TREE)
def a_numpy_field_that_becomes_a_list():
    step, table = eqx.filter_jit(lambda layer, x: jnp.asarray(layer.weight) * x), np.ones(3, np.float32)
    step(Layer(X), X)
    return Case(lambda: step(Layer(table.tolist()), X), lambda: step(Layer(table * 2), X))


@entry("measured: a NumPy number is traced, a Python one is not", "args[0].rate: static value was", AS_AN_ARRAY)
def a_numpy_number_that_becomes_a_python_one():
    step = eqx.filter_jit(lambda layer, x: layer(x))
    step(Layer(X, np.float32(0.1)), X)
    return Case(lambda: step(Layer(X, np.float32(0.5).item()), X), lambda: step(Layer(X, np.float32(0.5)), X))


@entry("equinox documentation, eqx.nn.inference_mode", "args[0].inference: static value was False, is True", WARM_EVERY)
def inference_mode_that_was_not_warmed():
    step = eqx.filter_jit(lambda layer, x: layer(x, key=KEY))
    dropout = eqx.nn.Dropout(0.5)
    step(dropout, X)
    return Case(lambda: step(eqx.nn.inference_mode(dropout), X), lambda: step(eqx.nn.inference_mode(dropout, False), X))


class Config:
    """Settings that are compared by identity."""

    def __init__(self):
        self.width = 3


class Configured(eqx.Module):
    weight: jax.Array
    config: Any = eqx.field(static=True)


@entry(
    "measured: a static field is compared by its __eq__",
    "args[0].config: static value was Config(width=3)",
    "@dataclass(frozen=True)",
)
def a_static_field_without_equality():
    step = eqx.filter_jit(lambda module, x: module.weight * x)
    step(Configured(X, (3,)), X)
    step(Configured(X, Config()), X)
    return Case(lambda: step(Configured(X, Config()), X), lambda: step(Configured(X, (3,)), X))


@entry(
    "measured: a class is part of the tree",
    "args[0]: was",
    "Defined, is another",
    "Define the class once, at module level",
)
def a_module_class_that_is_defined_in_the_loop():
    step = eqx.filter_jit(lambda module, x: module.weight * x)

    def defined():
        class Defined(eqx.Module):
            weight: jax.Array

        return Defined(X)

    one = defined()
    step(one, X)
    return Case(lambda: step(defined(), X), lambda: step(one, X))


@entry(
    "measured: building new-shaped inputs compiles too",
    "eager operations ran outside any jitted function",
    "Move it into the jitted function",
)
def filter_grad_outside_jit():
    gradient = eqx.filter_grad(lambda x: jnp.sum(x * x))
    gradient(X)
    step = eqx.filter_jit(eqx.filter_grad(total))
    longer = jnp.ones(4)
    step(longer)
    return Case(lambda: gradient(longer), lambda: step(longer))


# Flax linen.


class Net(linen.Module):
    activation: Callable = jnp.tanh
    rate: float = 0.5

    @linen.compact
    def __call__(self, x, train=False):
        x = self.activation(x * self.param("scale", linen.initializers.ones, (3,)))
        return x * (1 - self.rate) if train else x


NET = Net()
VARIABLES = {"params": {"scale": X}}
SGD = optax.sgd(0.1)


def made_net():
    return Net(activation=lambda x: x)


@entry(
    "measured: linen modules are equal if their attributes are", "args[0].activation: static value was", FUNCTION_ONCE
)
def a_linen_module_with_a_new_lambda():
    step = jax.jit(lambda net, variables, x: net.apply(variables, x), static_argnums=0)
    step(Net(), VARIABLES, X)
    step(made_net(), VARIABLES, X)
    return Case(lambda: step(made_net(), VARIABLES, X), lambda: step(Net(), VARIABLES, X))


@entry(
    "measured: linen modules are equal if their attributes are",
    "args[0].rate: static value was 0.5, is 0.25",
    AS_AN_ARRAY,
)
def a_linen_module_with_another_attribute():
    step = jax.jit(lambda net, variables, x: net.apply(variables, x), static_argnums=0)
    step(Net(), VARIABLES, X)
    return Case(lambda: step(Net(rate=0.25), VARIABLES, X), lambda: step(Net(rate=0.5), VARIABLES, X))


@entry("measured: a function made in the loop", "function: was an earlier object", "every obj.method is a new object")
def jit_of_model_apply_in_the_loop():
    net, kept = Net(), Net()
    jax.jit(net.apply)(VARIABLES, X)
    apply = jax.jit(kept.apply)
    apply(VARIABLES, X)
    return Case(lambda: jax.jit(net.apply)(VARIABLES, X), lambda: apply(VARIABLES, X))


@entry(
    "measured: outside jit a module looks at the shape of every parameter with a new function",
    "function: was an earlier object",
    "flax/core/scope.py",
    "Outside jit, flax has JAX trace every function that is made anew",
    "jax.jit the function that calls it",
)
def model_apply_outside_jit():
    NET.apply(VARIABLES, X)
    apply = jax.jit(NET.apply)
    apply(VARIABLES, X)
    return Case(lambda: NET.apply(VARIABLES, X), lambda: apply(VARIABLES, X))


def train_argument_step():
    step = jax.jit(lambda variables, x, train: NET.apply(variables, x, train=train), static_argnums=2)
    step(VARIABLES, X, True)
    return step


@entry("measured: train=False is a program of its own", "args[2]: static value was True, is False", WARM_EVERY)
def an_evaluation_that_was_not_warmed():
    step = train_argument_step()
    return Case(lambda: step(VARIABLES, X, False), lambda: step(VARIABLES, X, True))


def mutable_step():
    step = jax.jit(lambda variables, x, mutable: NET.apply(variables, x, mutable=mutable), static_argnames="mutable")
    step(VARIABLES, X, mutable=("batch_stats",))
    return step


@entry("measured: a list has no hash", "unhashable type: 'list'", raises=ValueError)
def mutable_collections_in_a_list():
    step = mutable_step()
    return Case(
        lambda: step(VARIABLES, X, mutable=["batch_stats"]), lambda: step(VARIABLES, X, mutable=("batch_stats",))
    )


@entry(
    "measured: 'a' and ('a',) are two static values",
    "kwargs['mutable']: was tuple of 1, is 'batch_stats'",
    SAME_TREE,
)
def a_mutable_collection_by_its_name():
    step = mutable_step()
    return Case(lambda: step(VARIABLES, X, mutable="batch_stats"), lambda: step(VARIABLES, X, mutable=("batch_stats",)))


@entry("measured: tree structure", "args[0]: was dict, is FrozenDict", SAME_TREE)
def frozen_variables_in_place_of_a_dict():
    step = jax.jit(lambda variables, x: NET.apply(variables, x))
    step(VARIABLES, X)
    return Case(lambda: step(freeze(VARIABLES), X), lambda: step(dict(VARIABLES), X))


@entry("measured: tree structure", "args[2]['params']: was absent, is key<fry>[]", SAME_TREE)
def another_random_stream():
    step = jax.jit(lambda variables, x, rngs: NET.apply(variables, x, rngs=rngs))
    step(VARIABLES, X, {"dropout": KEY})
    return Case(
        lambda: step(VARIABLES, X, {"dropout": KEY, "params": KEY}), lambda: step(VARIABLES, X, {"dropout": KEY})
    )


def train_state(tx=SGD, apply_fn=NET.apply):
    return TrainState.create(apply_fn=apply_fn, params=VARIABLES["params"], tx=tx)


def train_state_step():
    step = jax.jit(lambda state: state.apply_gradients(grads=state.params))
    step(train_state())
    return step


APPLY = train_state().apply_fn


@entry(
    "optax issue 353",
    "args[0].tx.init: static value was",
    "args[0].tx.update: static value was",
    OPTIMIZER_ONCE,
)
def a_train_state_with_a_new_optimizer():
    step = train_state_step()
    return Case(lambda: step(train_state(optax.sgd(0.1))), lambda: step(train_state(SGD)))


@entry(
    "measured: apply_fn is a static field",
    "args[0].apply_fn: static value was Module.apply, is another Module.apply",
    METHOD_OF_ONE,
)
def a_train_state_of_a_new_module():
    step = jax.jit(lambda state: state.apply_gradients(grads=state.params))
    state = train_state(apply_fn=made_net().apply)
    step(state)
    return Case(lambda: step(train_state(apply_fn=made_net().apply)), lambda: step(state.replace(step=0)))


@entry("measured: new static value", "args[1]: static value was 1, is 2", AS_AN_ARRAY)
def a_step_counter_that_is_static():
    step = jax.jit(lambda state, count: state.params["scale"] * count, static_argnums=1)
    step(train_state(), 1)
    traced = jax.jit(lambda state, count: state.params["scale"] * count)
    traced(train_state(), 1)
    return Case(lambda: step(train_state(), 2), lambda: traced(train_state(), 2))


# Flax NNX.


class Model(nnx.Module):
    def __init__(self, activation=jnp.tanh, rate=0.1):
        self.scale = nnx.Param(X)
        self.activation = activation
        self.rate = rate

    def __call__(self, x):
        return self.activation(self.scale[...] * x) * self.rate


def forward(model, x):
    return model(x)


def model_step():
    step = nnx.jit(lambda model, x: model(x))
    step(Model(), X)
    return step


@entry(
    "measured: a new module of the same graph is silent, a new function in it is not",
    "args[0].activation: static value was",
    FUNCTION_ONCE,
)
def a_model_made_in_every_step_with_a_new_lambda():
    step = nnx.jit(lambda model, x: model(x))

    def made():
        return Model(activation=lambda x: x)

    step(Model(), X)
    step(made(), X)
    return Case(lambda: step(made(), X), lambda: step(Model(), X))


@entry("measured: new static value", "args[0].rate: static value was 0.1, is 0.2", AS_AN_ARRAY)
def a_learning_rate_in_an_nnx_module():
    step = model_step()
    step(Model(rate=nnx.Variable(jnp.float32(0.1))), X)
    return Case(lambda: step(Model(rate=0.2), X), lambda: step(Model(rate=nnx.Variable(jnp.float32(0.2))), X))


@entry("measured: nnx.jit keeps nothing from one call of it to another", "function: was an earlier object", JIT_ONCE)
def nnx_jit_in_the_loop():
    nnx.jit(forward)(Model(), X)
    step = nnx.jit(forward)
    step(Model(), X)
    return Case(lambda: nnx.jit(forward)(Model(), X), lambda: step(Model(), X))


@entry("measured: the graph is part of the tree", "args[0].seen: was absent, is Variable", SAME_TREE)
def a_variable_added_to_the_model():
    step, model = model_step(), Model()
    step(model, X)

    def with_a_variable():
        changed = nnx.clone(model)
        changed.seen = nnx.Variable(ZERO)
        return step(changed, X)

    return Case(lambda: with_a_variable(), lambda: step(nnx.clone(model), X))


@entry("measured: a variable's class is part of the tree", "args[0].seen: was Variable, is Param", SAME_TREE)
def a_variable_of_another_class():
    step = nnx.jit(lambda model, x: model(x))

    def with_a_variable(kind):
        model = Model()
        model.seen = kind(ZERO)
        return model

    step(with_a_variable(nnx.Variable), X)
    return Case(lambda: step(with_a_variable(nnx.Param), X), lambda: step(with_a_variable(nnx.Variable), X))


@entry("measured: every sow adds to a tuple", "args[0].hidden.value[1]: was absent, is float32[]", SAME_TREE)
def intermediates_that_are_never_popped():
    step = nnx.jit(lambda model, x: model(x))

    def sown(times):
        model = Model()
        for _ in range(times):
            model.sow(nnx.Intermediate, "hidden", ZERO)
        return model

    step(sown(1), X)
    popped = sown(2)
    nnx.pop(popped, nnx.Intermediate)
    popped.sow(nnx.Intermediate, "hidden", ZERO)
    return Case(lambda: step(sown(2), X), lambda: step(popped, X))


class Tied(nnx.Module):
    """Two weights, or one that is met twice."""

    def __init__(self, tied):
        self.decoder = nnx.Param(X)
        self.encoder = self.decoder if tied else nnx.Param(X)

    def __call__(self, x):
        return self.encoder[...] * self.decoder[...] * x


@entry(
    "measured: nnx.jit makes a program of its own where two places hold one variable",
    "such as which places of an NNX model hold one object",
)
def weights_that_are_tied_later():
    step = nnx.jit(forward)
    model = Tied(False)
    step(model, X)

    def tied():
        changed = nnx.clone(model)
        changed.encoder = changed.decoder
        return step(changed, X)

    return Case(lambda: tied(), lambda: step(Tied(False), X))


@entry("measured: tree structure", "args[0].accuracy: was absent, is Average", SAME_TREE)
def another_metric():
    step = nnx.jit(lambda metrics: metrics)

    def metrics(*names):
        return nnx.MultiMetric(**{name: nnx.metrics.Average(name) for name in names})

    step(metrics("loss"))
    return Case(lambda: step(metrics("loss", "accuracy")), lambda: step(metrics("loss")))


@entry(
    "measured: eval() sets attributes that are static",
    "args[0].deterministic: static value was False, is True",
    WARM_EVERY,
)
def an_nnx_model_in_evaluation_mode():
    step = nnx.jit(lambda model, x: model(x) if model.deterministic else x)
    model = nnx.Dropout(0.5)
    step(model, X)

    def evaluated():
        model.eval()
        try:
            return step(model, X)
        finally:
            model.train()

    return Case(lambda: evaluated(), lambda: step(model, X))


@entry("measured: a graph is static", "args[0].rate: static value was 0.1, is 0.2", AS_AN_ARRAY)
def a_graph_with_another_attribute():
    step = jax.jit(lambda graph, state, x: nnx.merge(graph, state)(x))
    step(*nnx.split(Model()), X)
    other, same = nnx.split(Model(rate=0.2)), nnx.split(Model())
    return Case(lambda: step(*other, X), lambda: step(*same, X))


@entry("optax issue 353", "args[0].tx.update: static value was", OPTIMIZER_ONCE)
def an_nnx_optimizer_with_a_new_transformation():
    step = nnx.jit(lambda optimizer: optimizer.step[...] + 1)

    def made(tx):
        return nnx.Optimizer(Model(), tx, wrt=nnx.Param)

    step(made(SGD))
    return Case(lambda: step(made(optax.sgd(0.1))), lambda: step(made(SGD)))


# Optax.


PARAMS = {"w": X}
ADAM = optax.adam(0.1)


def passed_step():
    """A step that takes the optimizer as a static argument."""
    return jax.jit(lambda tx, grads, state: tx.update(grads, state), static_argnums=0)


@entry("optax issue 197", "args[0].init: static value was", "args[0].update: static value was", OPTIMIZER_ONCE)
def an_optimizer_made_in_every_step():
    step, state = passed_step(), SGD.init(PARAMS)
    step(SGD, PARAMS, state)
    return Case(lambda: step(optax.sgd(0.1), PARAMS, state), lambda: step(SGD, PARAMS, state))


@entry(
    "optax issue 577",
    "function: was an earlier object",
    "closed-over rate: static value was 0.1, is 0.2",
    "with rate as an argument",
)
def a_learning_rate_baked_into_the_optimizer():
    def made(rate):
        return jax.jit(lambda grads, state: optax.sgd(rate).update(grads, state))

    made(0.1)(PARAMS, SGD.init(PARAMS))
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    step = jax.jit(lambda grads, state: injected.update(grads, state))
    state = injected.init(PARAMS)
    step(PARAMS, state)

    def at(rate):
        changed = {**state.hyperparams, "learning_rate": np.float32(rate)}
        return step(PARAMS, state._replace(hyperparams=changed))

    return Case(lambda: made(0.2)(PARAMS, SGD.init(PARAMS)), lambda: at(0.2))


@entry(
    "optax issue 1405",
    "args[1].hyperparams['learning_rate']: weak type was False (an array), is True (a Python float)",
    "Pass jnp.float32(x) in every call",
)
def an_injected_learning_rate_set_to_a_python_number():
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    step = jax.jit(lambda grads, state: injected.update(grads, state))
    state = injected.init(PARAMS)
    step(PARAMS, state)

    def at(rate):
        changed = {**state.hyperparams, "learning_rate": rate}
        return step(PARAMS, state._replace(hyperparams=changed))

    return Case(lambda: at(0.2), lambda: at(jnp.float32(0.2)))


@entry("optax issue 197", "args[0]: static value was", "schedule, is another", OPTIMIZER_ONCE)
def a_schedule_made_in_every_step():
    step = jax.jit(lambda schedule, count: schedule(count), static_argnums=0)
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    step(schedule, 1)
    return Case(lambda: step(optax.linear_schedule(0.1, 0.0, 10), 1), lambda: step(schedule, 2))


@entry(
    "optax pull request 1108",
    "args[1].trace['w']: dtype was bfloat16, is float32",
    "in the step that returns it",
    "x.astype('bfloat16')",
)
def an_optimizer_state_that_drifts_to_float32():
    momentum = optax.trace(0.9)
    step = jax.jit(lambda grads, state: momentum.update(grads, state)[1])
    half = {"w": HALF}
    state = momentum.init(half)
    drifted = step(PARAMS, state)
    step(half, state)
    return Case(lambda: step(PARAMS, drifted), lambda: step(half, step(half, state)))


@entry(
    "measured: mu_dtype is the dtype of the first moment",
    "args[0][0].mu['w']: dtype was float32, is bfloat16",
    "x.astype('float32')",
)
def a_checkpoint_with_another_mu_dtype():
    step = jax.jit(lambda state: state[0].mu)
    step(ADAM.init(PARAMS))
    half = optax.adam(0.1, mu_dtype=jnp.bfloat16)
    return Case(lambda: step(half.init(PARAMS)), lambda: step(ADAM.init(PARAMS)))


@entry(
    "measured: a bfloat16 weight less a float32 update is float32",
    "args[0]['w']: dtype was bfloat16, is float32",
    "x.astype('bfloat16')",
)
def half_precision_parameters_less_float32_updates():
    step = jax.jit(lambda params, updates: jax.tree.map(jnp.subtract, params, updates))
    right = jax.jit(lambda params, updates: optax.apply_updates(params, updates))
    half = {"w": HALF}
    drifted = step(half, PARAMS)
    right(half, PARAMS)
    return Case(lambda: step(drifted, PARAMS), lambda: right(right(half, PARAMS), PARAMS))


@entry(
    "optax pull request 1175",
    "args[0].count: weak type was False (an array), is True (a Python int)",
    "Pass jnp.int32(x)",
)
def an_optimizer_count_reset_to_a_python_int():
    step = jax.jit(lambda state: state.count + 1)
    state = optax.scale_by_schedule(lambda count: 0.1).init(PARAMS)
    step(state)
    return Case(lambda: step(state._replace(count=0)), lambda: step(state._replace(count=np.int32(0))))


@entry("optax issue 197", "args[0].init: static value was partition", OPTIMIZER_ONCE)
def multi_transform_with_new_labels():
    step = passed_step()

    def made():
        return optax.multi_transform({"all": SGD}, lambda params: {"w": "all"})

    one = made()
    state = one.init(PARAMS)
    step(one, PARAMS, state)
    return Case(lambda: step(made(), PARAMS, state), lambda: step(one, PARAMS, state))


@entry(
    "measured: tree structure",
    "args[0].inner_states['slow'].inner_state.trace['w']: was float32[3], is MaskedNode",
    SAME_TREE,
)
def multi_transform_with_other_labels():
    step = jax.jit(lambda state: jax.tree.leaves(state))

    def state(label):
        groups = {"slow": optax.trace(0.9), "fast": optax.identity()}
        return optax.multi_transform(groups, {"w": label}).init(PARAMS)

    step(state("slow"))
    return Case(lambda: step(state("fast")), lambda: step(state("slow")))


@entry(
    "measured: MultiSteps is compared by identity",
    "args[0]: static value was MultiSteps(",
    "is another MultiSteps(",
    "It is compared by identity: make it once",
)
def multi_steps_with_another_k():
    step = jax.jit(lambda steps, state: steps.has_updated(state), static_argnums=0)
    two = optax.MultiSteps(SGD, 2)
    state = two.init(PARAMS)
    step(two, state)
    return Case(lambda: step(optax.MultiSteps(SGD, 4), state), lambda: step(two, state))


@entry(
    "measured: weight decay needs parameters that other optimizers do not", "args[2]: was dict, is NoneType", SAME_TREE
)
def parameters_left_out_of_the_update():
    step = jax.jit(lambda grads, state, params: SGD.update(grads, state, params))
    step(PARAMS, SGD.init(PARAMS), PARAMS)
    return Case(lambda: step(PARAMS, SGD.init(PARAMS), None), lambda: step(PARAMS, SGD.init(PARAMS), PARAMS))


@entry(
    "measured: building new-shaped inputs compiles too",
    "an eager operation",
    "(in `apply_updates`)",
    "Move it into the jitted function",
)
def apply_updates_outside_jit():
    longer = {"w": jnp.ones(5)}
    step = jax.jit(lambda params, updates: optax.apply_updates(params, updates))
    step(longer, longer)
    return Case(lambda: optax.apply_updates(longer, longer), lambda: step(longer, longer))


@causes.each()
@pytest.mark.filterwarnings("ignore:Using 'Module.sow\\(\\)' outside:DeprecationWarning")
def test_the_cause_is_named_with_what_to_do_and_its_control_is_silent(entry, compile_counter):
    entry.check(compile_counter)


def test_every_entry_has_a_source_and_words_of_its_own():
    assert len({entry.name for entry in causes.entries}) == len(causes.entries) >= 50
    known = ("issue", "pull request", "documentation", "measured")
    assert all(any(word in entry.source for word in known) and entry.says for entry in causes.entries)
