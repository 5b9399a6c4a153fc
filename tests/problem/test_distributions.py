import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats

from mfpda import PowerNormal, penalty

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("rate", "power"), [(1.0, 2.0), (3.0, 1.3), (10.0, 1.01), (0.4, 1.7)])
def test_density_integrates_to_one_and_has_its_variance(rate, power):
    with jax.enable_x64(True):
        law = PowerNormal(rate, power)
        density = lambda theta: float(jnp.exp(law.log_prob(theta)))  # noqa: E731
        mass, _ = scipy.integrate.quad(density, 0, np.inf, limit=200)
        variance, _ = scipy.integrate.quad(lambda theta: theta**2 * density(theta), 0, np.inf, limit=200)
        assert abs(2 * mass - 1) < 1e-8
        assert abs(2 * variance / float(law.variance) - 1) < 1e-8


@pytest.mark.parametrize(("rate", "power"), [(3.0, 1.3), (10.0, 1.01), (0.4, 1.7)])
def test_draws_follow_the_density(rate, power):
    """Kolmogorov-Smirnov at a false-failure rate of 1e-4 against scipy's generalised normal, which has the same law."""
    draws = np.asarray(PowerNormal(rate, power).sample(jax.random.key(0), (200_000,)))
    law = scipy.stats.gennorm(power, scale=rate ** (-1 / power))
    assert scipy.stats.kstest(draws, law.cdf).pvalue > 1e-4
    assert scipy.stats.kstest(1.03 * draws, law.cdf).pvalue < 1e-4  # the test can tell a scale that is 3 % off


def test_power_two_is_the_normal():
    theta = jnp.linspace(-3, 3, 7)
    np.testing.assert_allclose(PowerNormal(2.0, 2.0).log_prob(theta), dist.Normal(0, 0.5).log_prob(theta), rtol=1e-5)


def test_it_expands_and_moves_through_jit():
    law = PowerNormal(2.0, 1.5).expand([3]).to_event(1)
    assert jax.jit(lambda key: law.sample(key))(jax.random.key(0)).shape == (3,)
    assert law.log_prob(jnp.ones(3)).shape == ()


def test_gradient_is_zero_at_the_origin():
    assert jax.grad(PowerNormal(2.0, 1.01).log_prob)(0.0) == 0.0


def test_penalty_is_the_papers_regulariser():
    """T KL(q || p0) and lambda1 E|theta|^2 + lambda2 E log q differ by (p T / 2) log(pi lambda2 / lambda1)."""
    lambda1, lambda2 = 1e-2, 1e-3
    prior, temperature = penalty(lambda1, lambda2)
    theta = jnp.array([0.1, 0.7])
    difference = -temperature * prior.log_prob(theta) - lambda1 * theta**2
    np.testing.assert_allclose(difference, 0.5 * lambda2 * np.log(np.pi * lambda2 / lambda1), rtol=1e-3)
    slope = jax.grad(lambda theta: -lambda2 * penalty(lambda1, lambda2, power=1.5).prior.log_prob(theta))(0.49)
    assert abs(slope - lambda1 * 1.5 * 0.49**0.5) < 1e-6
