import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.exact import _GridOutputs
from mfpda.rules import FictitiousPlay
from tests.rules.grid import named, problem_with, walk


def seen(z):
    """Two particles around these predictions."""
    return _GridOutputs(jnp.stack([z - 0.5, z + 0.5]), jnp.full(2, 0.5))


def test_two_steps_by_hand():
    """z <- z + rate (prediction - z) after a first step that takes the prediction whole; c = l'(z) / n."""
    rule, y = FictitiousPlay(rate=0.25), jnp.array([1.0, 0.0, -1.0])
    problem, key = problem_with(y, mfpda.losses.Squared(), 0.1), jax.random.key(0)
    first, second = jnp.array([2.0, 4.0, 8.0]), jnp.array([6.0, 0.0, 0.0])
    state, coefficients = rule.update(key, rule.init(3, ()), jnp.asarray(1.0), seen(first), None, problem)
    np.testing.assert_allclose(coefficients.c, np.array([1.0, 4.0, 9.0]) / 3)
    state, coefficients = rule.update(key, state, jnp.asarray(2.0), seen(second), None, problem)
    np.testing.assert_allclose(state.z, [3.0, 3.0, 6.0])
    np.testing.assert_allclose(coefficients.c, np.array([2.0, 3.0, 7.0]) / 3, rtol=1e-6)
    assert coefficients.gamma == 1
    np.testing.assert_allclose(rule.dual(state).g, [2.0, 3.0, 7.0])


def test_a_batch_moves_its_own_anchors_alone():
    """A second batch that shares anchor 1 with the first: it alone is averaged."""
    rule, y = FictitiousPlay(rate=0.25), jnp.zeros(4)
    problem, key = problem_with(y, mfpda.losses.Squared(), 0.1), jax.random.key(0)
    first, second = jnp.array([2.0, 4.0, 8.0, 16.0]), jnp.array([6.0, 0.0, 0.0, 1.0])
    state, _ = rule.update(key, rule.init(4, ()), jnp.asarray(1.0), seen(first), jnp.array([1, 0]), problem)
    state, coefficients = rule.update(key, state, jnp.asarray(2.0), seen(second), jnp.array([3, 1]), problem)
    np.testing.assert_allclose(coefficients.c, np.array([2.0, 3.0, 0.0, 1.0]) / 4)
    np.testing.assert_array_equal(rule.dual(state).mass > 0, [True, True, False, True])


def test_exact_play_reaches_the_optimum_below_the_rate_that_the_stiffness_allows():
    """kappa = 5 on this problem: it converges at a rate of 0.3 < 2 / 6 and does not at 0.45."""
    grid = named("tanh_squared")
    best = grid.optimum()
    centred = grid.outputs - best.predictions
    covariance = (best.law.probability[:, None] * centred).T @ centred
    kappa = np.linalg.eigvalsh(covariance)[-1] / (len(grid.x) * grid.temperature)
    assert 0.3 < 2 / (1 + kappa) < 0.45
    found = walk(grid, FictitiousPlay(rate=0.3), 40)[-1]
    assert found.gap < 1e-8
    np.testing.assert_allclose(found.g, best.dual, atol=1e-4)
    assert walk(grid, FictitiousPlay(rate=0.45), 40)[-1].gap > 1e-3


def test_its_dual_is_feasible_on_the_way():
    """Logistic: -y g between 0 and 1, after each of ten steps that overshoot."""
    grid = named("tanh_logistic")
    for step in walk(grid, FictitiousPlay(rate=0.3), 10):
        assert np.isfinite(grid._rows("conjugate", step.g)).all()
        assert 0 < (-grid.y * step.g).min() < (-grid.y * step.g).max() < 1


@pytest.mark.parametrize("wrong", [0, 1.5, -1])
def test_rates_outside_their_range_are_refused(wrong):
    with pytest.raises(mfpda.InputError, match="rate"):
        FictitiousPlay(rate=wrong)


@pytest.mark.slow
def test_it_fits_on_mini_batches(small):
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, batch_size=10, **small.quick | {"rule": "fictitious_play"}
    )
    np.testing.assert_allclose(fit.state.coefficients.c, fit.dual / 40, rtol=1e-6)
