import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

from mfpda import InputError, Model
from mfpda.problem import losses
from mfpda.problem.neuron import trace
from mfpda.problem.tails import centred, check_prior, heaviest

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


@pytest.mark.parametrize("size", [3, 1000])
def test_every_coordinate_is_seen(size):
    """Also in a site of more coordinates than are followed one by one."""
    degrees = jnp.full(size, 30.0)
    light = dist.StudentT(degrees, 0, 1).to_event(1)
    heavy = dist.StudentT(degrees.at[size // 2].set(0.3), 0, 1).to_event(1)
    check_prior(neuron_of(light), 1 / 3)
    with pytest.raises(InputError, match=r"site 'w', whose density falls only like \|theta\|\^-1\.3"):
        check_prior(neuron_of(heavy), 1 / 3)


def test_the_heaviest_tails_come_first():
    neuron = neuron_of(dist.StudentT(jnp.array([30.0, 2.0, 9.0, 1.0]), 0, 1).to_event(1))
    assert heaviest(neuron, 3).tolist() == [3, 1, 2]


def hierarchy(scale):
    def neuron(x):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        return x * scale(tau) * numpyro.sample("w", dist.Normal(0, tau if scale(2.0) == 1 else 1.0))

    return trace(Model(neuron, losses.Squared(), 0.1).declaration, 1.0)


def test_a_centred_hierarchy_is_seen():
    assert centred(hierarchy(lambda tau: 1)) == ("w", "tau")
    assert centred(hierarchy(lambda tau: tau)) is None
