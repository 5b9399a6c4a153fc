import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

from mfpda import Model
from mfpda.problem import losses
from mfpda.problem.problem import Problem
from tests.problem.test_neuron import MODEL, X, layered

pytestmark = pytest.mark.quick


def test_from_function_is_the_same_model_as_the_neuron():
    def neuron(x):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
        return jnp.tanh(x @ w)

    sites = {"w": dist.Normal(0, 2).expand([2]).to_event(1)}
    declared = Problem.of(Model(neuron, losses.Squared(), 0.1), X[None])
    plain = Problem.of(
        Model.from_function(lambda theta, x: jnp.tanh(x @ theta["w"]), sites, losses.Squared(), 0.1), X[None]
    )
    theta = jnp.array([0.4, -1.0])
    assert declared.output(theta, X) == plain.output(theta, X)
    assert declared.log_prior(theta) == plain.log_prior(theta)


def test_a_model_is_a_pytree_whose_only_leaf_is_the_temperature():
    assert jax.tree.leaves(MODEL) == [0.1]
    other = Model(layered, losses.Squared(), 0.7, dims={"w": ["feature"]}, coords={"feature": ["left", "right"]})
    assert jax.tree.structure(MODEL) == jax.tree.structure(other)
    assert jax.jit(lambda model: 2 * model.temperature)(other) == pytest.approx(1.4)
