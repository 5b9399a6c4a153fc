import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import mfpda
from mfpda import Model, losses, sampling
from mfpda.potential import prior_potential
from mfpda.starts import STARTS, Start

KERNEL = mfpda.ULA(step_size=0.1)


@pytest.fixture(params=list(STARTS))
def start(request):
    return STARTS[request.param]()


def test_every_start_fits_the_protocol_and_keeps_the_ensembles_shape(start, small):
    assert isinstance(start, Start)
    assert eval(repr(start), vars(mfpda)) == start
    potential = prior_potential(small.model, jnp.asarray(small.x, float))
    ensemble = sampling.begin(jax.random.key(0), jnp.ones((6, 2)), potential, KERNEL)
    after, stats = start(jax.random.key(1), ensemble, potential, potential, KERNEL)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, ensemble)
    assert all(value.shape == () for value in stats.values())


def test_warm_leaves_the_particles_where_they_are(small):
    potential = prior_potential(small.model, jnp.asarray(small.x, float))
    ensemble = sampling.begin(jax.random.key(0), jnp.ones((6, 2)), potential, KERNEL)
    after, _ = mfpda.Warm()(jax.random.key(1), ensemble, potential, potential, KERNEL)
    np.testing.assert_array_equal(after.theta, ensemble.theta)


def resampled(init):
    h = lambda theta, x: theta["w"] * x  # noqa: E731
    model = Model.from_function(h, {"w": dist.Gamma(3.0, 2.0)}, losses.Squared(), 1.0, init=init)
    potential = prior_potential(model, jnp.ones(1))
    ensemble = sampling.begin(jax.random.key(0), jnp.zeros((20_000, 1)), potential, KERNEL)
    after, _ = mfpda.Resample()(jax.random.key(1), ensemble, potential, potential, KERNEL)
    return np.asarray(jnp.exp(after.theta[:, 0]))


def test_resample_draws_the_prior():
    """Kolmogorov-Smirnov at a false-failure rate of 1e-4."""
    draws = resampled(None)
    assert scipy.stats.kstest(draws, scipy.stats.gamma(3.0, scale=0.5).cdf).pvalue > 1e-4
    assert scipy.stats.kstest(1.03 * draws, scipy.stats.gamma(3.0, scale=0.5).cdf).pvalue < 1e-4


def test_resample_draws_q1_where_the_model_gives_one():
    draws = resampled({"w": dist.LogNormal(1.0, 0.2)})
    assert scipy.stats.kstest(draws, scipy.stats.lognorm(0.2, scale=np.e).cdf).pvalue > 1e-4


def test_resampled_runs_forget_the_particles(small):
    """With one tiny inner step, every row is a fresh draw of q1."""
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, start="resample", kernel=mfpda.ULA(step_size=1e-9),
        particles=40_000, outer_steps=3, inner_steps=1, progress=False,
    )  # fmt: skip
    rows = [row.particles["b"] for row in fit.rows]
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 5 / 40_000**0.5
    assert scipy.stats.kstest(rows[-1], scipy.stats.norm.cdf).pvalue > 1e-4
