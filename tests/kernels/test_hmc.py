"""Hamiltonian Monte Carlo: exact on its Gaussian reference, and its settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import mfpda
from mfpda import HMC, InputError, sampling
from mfpda.sampling import tuning
from tests.helpers import normal_potential

SCALE, DIMENSIONS, DRAWS = 2.0, 200, 2000


def after(steps, kernel, thetas, potential):
    key = jax.random.key(0)
    ensemble = sampling.begin(key, thetas, potential, kernel)
    return jax.jit(sampling.run)(key, ensemble, potential, kernel, steps)[:2]


def test_on_its_reference_it_is_exact_at_any_step_in_any_dimension():
    """Every step is accepted, and turns forget the place: new draws of N(0, s^2), whatever the old.

    A turn by an angle a leaves a correlation cos a, which is 0 on average. Kolmogorov-Smirnov at a false-failure rate
    of 1e-4, and a correlation below 5 standard errors.
    """
    potential, thetas = normal_potential(SCALE, DIMENSIONS), jnp.linspace(-9, 9, DRAWS)[:, None] + jnp.zeros(DIMENSIONS)
    for leapfrogs in (1, 4):
        kernel = HMC(step_size=jnp.pi / 2 / leapfrogs, scale=SCALE)
        moved, stats = after(20, kernel, thetas, potential)
        np.testing.assert_allclose(stats.acceptance, 1, atol=2e-3)  # energies of 4,000 in single precision
        np.testing.assert_array_equal(stats.gradients, 20 * leapfrogs)
        drawn = np.asarray(moved.theta, float)
        assert scipy.stats.kstest(drawn.ravel(), scipy.stats.norm(0, SCALE).cdf).pvalue > 1e-4
        correlation = np.corrcoef(np.asarray(thetas).ravel(), drawn.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(drawn.size)


def test_with_another_reference_steps_are_refused():
    """So the test above says something: the law is as before, the reference half as wide."""
    potential, thetas = normal_potential(SCALE, DIMENSIONS), SCALE * jax.random.normal(jax.random.key(1), (500, 200))
    _, stats = after(1, HMC(step_size=jnp.pi / 4, scale=SCALE / 2), thetas, potential)
    assert np.mean(stats.acceptance) < 0.9


@pytest.mark.parametrize(("step_size", "leapfrogs", "expected"), [(3.0, 8, 1), (0.4, 8, 4), (0.01, 8, 8), (0.01, 3, 3)])
def test_a_trajectory_is_a_quarter_of_a_circle_or_as_long_as_it_may_be(step_size, leapfrogs, expected):
    kernel = HMC(step_size=step_size, scale=1.0, leapfrogs=leapfrogs)
    _, stats = after(1, kernel, jnp.ones((3, 2)), normal_potential(1.0, 2))
    np.testing.assert_array_equal(stats.gradients, expected)


def test_the_reference_is_that_of_the_particles_unless_it_is_named():
    """A coordinate in which particles agree keeps a scale of 1."""
    thetas = jnp.asarray([[1.0, 5.0, 2.0], [3.0, 5.0, -2.0]])
    potential = normal_potential(1.0, 3)
    kernel, retune = tuning.tuned(jax.random.key(0), HMC(), potential, thetas)
    np.testing.assert_allclose(kernel.centre, [2, 5, 0])
    np.testing.assert_allclose(kernel.scale, [1, 1, 2])
    assert float(kernel.step_size) == pytest.approx(np.pi / 8)
    assert retune is not None
    named, _ = tuning.tuned(jax.random.key(0), HMC(scale=0.5), potential, thetas)
    assert (named.centre, named.scale) == (0.0, 0.5)


def test_a_tuned_step_is_no_longer_than_a_quarter_of_a_circle():
    kernel = HMC(step_size=1.5, scale=1.0)
    for _ in range(5):
        kernel = tuning.towards_target(kernel, jnp.ones(100), jnp.zeros((100, 2)))
    assert float(kernel.step_size) == pytest.approx(np.pi / 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": mfpda.schedules.Constant(1.0)}, "Only the step size can depend on t"),
        ({"scale": -1.0}, "scale"),
        ({"leapfrogs": 0}, "leapfrogs"),
        ({"leapfrogs": 2.5}, "leapfrogs"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(InputError, match=message):
        HMC(**settings)


@pytest.mark.parametrize("dimensions", [2, 50])
def test_a_direction_of_half_the_width_mixes(dimensions):
    """Pairs with a correlation of 3/4: the difference has half the reference's width, and would turn by half a circle.

    It begins with four times its variance. Over 8,000 pairs the tolerances are 5 and 4 standard errors.
    """
    between = jnp.linalg.inv(jnp.array([[1.0, 0.75], [0.75, 1.0]]))

    class Pairs:
        def __call__(self, theta):
            pairs = theta.reshape(-1, 2)
            return 0.5 * jnp.sum(pairs * (pairs @ between))

    thetas = jax.random.normal(jax.random.key(1), (16_000 // dimensions, dimensions))
    kernel = HMC(step_size=jnp.pi / 8, scale=1.0)
    moved, stats = after(30, kernel, thetas, jax.tree_util.Partial(Pairs()))
    pairs = np.asarray(moved.theta).reshape(-1, 2)
    assert np.mean(stats.acceptance) > 0.6
    assert np.var((pairs[:, 0] - pairs[:, 1]) / np.sqrt(2)) == pytest.approx(0.25, abs=0.02)
    assert np.var((pairs[:, 0] + pairs[:, 1]) / np.sqrt(2)) == pytest.approx(1.75, abs=0.12)
