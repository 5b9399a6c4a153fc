import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from mfpda import Model
from mfpda.problem import losses
from mfpda.problem.problem import Problem

pytestmark = pytest.mark.quick


def test_value_is_the_formula_for_several_outputs():
    h = lambda theta, x: theta["a"] * jnp.tanh(x @ theta["w"])  # noqa: E731
    sites = {"a": dist.Normal(0, 1).expand([3]).to_event(1), "w": dist.Normal(0, 2).expand([2]).to_event(1)}
    model = Model.from_function(h, sites, losses.Softmax(), 0.3)
    rng = np.random.default_rng(0)
    x, c, theta = rng.normal(size=(7, 2)), rng.normal(size=(7, 3)), rng.normal(size=5)
    potential = Problem.of(model, jnp.asarray(x, float)).potential(jnp.asarray(c, float), 0.6)
    data = sum(c[i] @ (theta[:3] * np.tanh(x[i] @ theta[3:])) for i in range(7)) / 0.3
    prior = -np.sum(theta[:3] ** 2) / 2 - np.sum(theta[3:] ** 2) / 8 - 2.5 * np.log(2 * np.pi) - 2 * np.log(2)
    np.testing.assert_allclose(potential(jnp.asarray(theta, float)), 0.6 * (data - prior), rtol=1e-5)


def test_without_coefficients_it_is_the_prior(small):
    problem = Problem.of(small.model, jnp.asarray(small.x, float))
    theta = jnp.array([0.3, -1.0])
    assert problem.prior_potential()(theta) == -problem.log_prior(theta)


def test_it_is_an_argument_and_not_a_closure(small):
    traced = []

    @jax.jit
    def value(potential, theta):
        traced.append(1)
        return potential(theta)

    potential = Problem.of(small.model, jnp.asarray(small.x, float)).prior_potential()
    for gamma in (0.5, 1.0):
        value(dataclasses.replace(potential, gamma=jnp.asarray(gamma)), jnp.zeros(2))
    assert len(traced) == 1
