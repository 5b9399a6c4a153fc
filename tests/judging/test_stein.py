"""The Stein test: its level on exact draws, its power on laws that are off, and what it cannot see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import mfpda
from mfpda import InputError
from mfpda.judging.stein import stein_test
from mfpda.problem import losses
from mfpda.problem.problem import Problem

pytestmark = pytest.mark.optimised


@functools.cache
def law_of(prior, p=1):
    """A potential that is -log p0, of which exact draws are to be had."""
    sites = {"w": prior.expand([p]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: jnp.sum(theta["w"]) * x, sites, losses.Squared(), 1.0)
    return Problem.of(model, jnp.ones(1)).prior_potential()


GUMBEL = dist.Gumbel(0.0, 1.0)


def exact_draws(seed, count, p=1):
    return jax.random.gumbel(jax.random.key(seed), (count, p))


def test_it_has_the_level_it_states():
    """200 samples of a skewed law at level 0.05: rejections are binomial; its 1e-4 quantiles bound them."""
    rejections = sum(
        stein_test(jax.random.key(1000 + seed), exact_draws(seed, 200, 2), law_of(GUMBEL, 2), 0.05).rejected
        for seed in range(200)
    )
    assert scipy.stats.binom.ppf(1e-4, 200, 0.05) <= rejections <= scipy.stats.binom.ppf(1 - 1e-4, 200, 0.05)


BROKEN = {"wide": lambda x: 1.2 * x, "shifted": lambda x: x + 0.15, "mirrored": lambda x: -x}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_laws_that_are_off_are_rejected(broken):
    found = stein_test(jax.random.key(0), broken(exact_draws(0, 1000)), law_of(GUMBEL))
    assert found.rejected


def test_the_excess_is_the_variance_that_a_gaussian_has_too_much():
    for factor in (1.0, 1.3):
        draws = np.sqrt(factor) * jax.random.normal(jax.random.key(0), (4000, 20))
        found = stein_test(jax.random.key(1), draws, law_of(dist.Normal(0, 1), 20))
        assert abs(found.excess - (factor - 1)) < 4 * found.excess_stderr
        assert found.excess_stderr < 0.02


def test_kinks_are_no_excess():
    """Laplace: the second derivative is 0 but at one point, and the identity that is used has none."""
    found = stein_test(
        jax.random.key(1), jax.random.laplace(jax.random.key(0), (4000, 3)), law_of(dist.Laplace(0, 1), 3)
    )
    assert abs(found.excess) < 4 * found.excess_stderr < 0.1
    assert not found.rejected


def test_weights_between_far_modes_are_not_seen():
    """All draws in one of two equal modes, 20 apart: right nearby, and the test passes. The certificate sees it."""
    mixture = dist.MixtureGeneral(
        dist.Categorical(probs=jnp.array([0.5, 0.5])), [dist.Normal(-10.0, 1.0), dist.Normal(10.0, 1.0)]
    )
    draws = 10 + jax.random.normal(jax.random.key(0), (1000, 1))
    assert not stein_test(jax.random.key(1), draws, law_of(mixture)).rejected


@pytest.mark.parametrize(
    ("thetas", "level", "message"),
    [
        (exact_draws(0, 10), 2.0, "level between 0 and 1"),
        (exact_draws(0, 2), 0.01, "at least 3 particles"),
        ({"w": exact_draws(0, 9)}, 0.01, r"shape \(M, p\), found dict"),
    ],
    ids=["level", "few", "dict"],
)
def test_refusals(thetas, level, message):
    with pytest.raises(InputError, match=message):
        stein_test(jax.random.key(0), thetas, law_of(GUMBEL), level)
