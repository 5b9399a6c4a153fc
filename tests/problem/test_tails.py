import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

from mfpda import InputError, Model
from mfpda.problem import losses
from mfpda.problem.neuron import trace
from mfpda.problem.tails import check_prior

pytestmark = pytest.mark.quick


def neuron_of(prior):
    h = lambda theta, x: jnp.sum(theta["w"]) * x  # noqa: E731
    return trace(Model.from_function(h, {"w": prior}, losses.Squared(), 0.1).declaration, 1.0)


@pytest.mark.parametrize(
    "prior",
    [
        dist.StudentT(4, 0, 1),
        dist.Laplace(0, 1),
        dist.HalfCauchy(1.0),
        dist.Gamma(0.5, 1.0),
        dist.Beta(2.0, 2.0),
        dist.Dirichlet(jnp.ones(10)),
        dist.Normal(0, 100),
        dist.LogNormal(0, 3),
    ],
)
def test_priors_with_integrable_cube_roots_are_taken(prior):
    check_prior(neuron_of(prior), 1 / 3)


@pytest.mark.parametrize(
    "prior", [dist.Cauchy(0, 1), dist.StudentT(2, 0, 5), dist.MultivariateStudentT(4.0, jnp.zeros(3), jnp.eye(3))]
)
def test_priors_without_are_refused_and_gamma_one_is_offered(prior):
    with pytest.raises(InputError, match=r"DualAveraging\(gamma=1.0\)"):
        check_prior(neuron_of(prior), 1 / 3)
    check_prior(neuron_of(prior), 1.0)
