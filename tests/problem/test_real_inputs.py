"""Outside of jit a neuron sees inputs of the data and no others: it may be defined at those alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import sampling
from mfpda.problem.problem import Problem

pytestmark = pytest.mark.quick


def neuron(x):
    """NumPyro refuses a scale of 0 wherever it can see the number."""
    theta = numpyro.sample("theta", dist.Normal(0, 0.3))
    return jnp.exp(dist.Normal(theta, x[1], validate_args=True).log_prob(x[0]))


@pytest.fixture(scope="module")
def problem():
    x = jnp.stack([jnp.linspace(-1, 1, 5), jnp.linspace(0.5, 1, 5)], axis=1)
    return Problem.of(mfpda.Model(neuron, mfpda.losses.Squared(), 0.1), x, jnp.zeros(5))


THETA = jnp.array([0.2])
CALLS = {
    "draws of the prior": lambda problem: sampling.draw_prior(jax.random.key(0), 3, problem),
    "draws of q1": lambda problem: sampling.draw_initial(jax.random.key(0), 3, problem),
    "one draw": lambda problem: problem.draw_prior(jax.random.key(0)),
    "log p0": lambda problem: problem.log_prior(THETA),
    "V": lambda problem: problem.potential(jnp.ones(5))(THETA),
    "the gradient of V": lambda problem: jax.grad(problem.potential(jnp.ones(5)))(THETA),
    "values on supports": lambda problem: problem.constrain(THETA[None])["theta"],
    "predictions": lambda problem: problem.predict(THETA[None]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_neuron_that_is_not_defined_at_zero(problem, call):
    assert np.isfinite(call(problem)).all()
