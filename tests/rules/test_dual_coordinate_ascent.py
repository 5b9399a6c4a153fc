from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.exact import _GridOutputs
from mfpda.exact import _updated as updated
from mfpda.rules import DualCoordinateAscent
from tests.rules.grid import dual_value, named, problem_with, view_of, walk


def by_hand(outputs, y, g, order, temperature, shares=None):
    """Coordinates of the squared loss in this order, in closed form, with weights on the particles.

    ``shares`` are the weights of the examples, by default 1/n.
    """
    g, shares = g.copy(), np.full(len(y), 1 / len(y)) if shares is None else shares
    weights = np.full(len(outputs), 1 / len(outputs))
    for i in order:
        z = weights @ outputs[:, i]
        s = weights @ (outputs[:, i] - z) ** 2 * shares[i] / temperature
        u = (z + s * (y[i] + g[i])) / (1 + s)
        weights = weights * np.exp(-outputs[:, i] * (u - y[i] - g[i]) * shares[i] / temperature)
        weights, g[i] = weights / weights.sum(), u - y[i]
    return g, 1 / (weights**2).sum()


def test_a_coordinate_of_the_squared_loss_is_its_closed_form():
    """u = (z + s (y + g)) / (1 + s), s = V / (n T), one coordinate at a time and a whole pass over six."""
    rng, n, temperature = np.random.default_rng(0), 6, 0.5
    outputs, y, before = rng.normal(size=(50, n)), rng.normal(size=n), rng.normal(size=n)
    with jax.enable_x64(True):
        rule = DualCoordinateAscent(share=1e-3)
        problem = problem_with(jnp.asarray(y), mfpda.losses.Squared(), temperature)
        state = rule.init(n, ())._replace(g=jnp.asarray(before))
        view = _GridOutputs(jnp.asarray(outputs), jnp.full(50, 0.02))

        def after(batch, key):
            return updated(rule, key, state, jnp.asarray(1.0), view, batch, problem)

        for i in (0, 4):
            one, _ = after(jnp.array([i]), jax.random.key(0))
            np.testing.assert_allclose(one.g, by_hand(outputs, y, before, [i], temperature)[0], rtol=1e-5)
        key = jax.random.key(3)
        whole, coefficients = after(None, key)
        order = np.asarray(jax.random.permutation(key, jnp.arange(n)))
    g, left = by_hand(outputs, y, before, order, temperature)
    np.testing.assert_allclose(whole.g, g, rtol=1e-5)
    np.testing.assert_allclose(coefficients.c, g / n, rtol=1e-5)
    assert int(whole.coordinates) == n
    assert float(whole.effective_sample_size) == pytest.approx(left, rel=1e-5)
    assert not np.allclose(by_hand(outputs, y, before, order[::-1], temperature)[0], g, rtol=1e-3)


def test_weights_of_the_examples_are_in_the_closed_form():
    """s = w V / T, a pass over six examples of other weights; c = w g."""
    rng, n, temperature = np.random.default_rng(1), 6, 0.5
    outputs, y, before = rng.normal(size=(50, n)), rng.normal(size=n), rng.normal(size=n)
    shares = np.array([4, 1, 1, 2, 1, 3]) / 12
    with jax.enable_x64(True):
        rule, key = DualCoordinateAscent(share=1e-3), jax.random.key(3)
        problem = problem_with(jnp.asarray(y), mfpda.losses.Squared(), temperature)
        state = rule.init(n, ())._replace(g=jnp.asarray(before))
        view = _GridOutputs(jnp.asarray(outputs), jnp.full(50, 0.02))
        problem = replace(problem, weights=jnp.asarray(shares))
        whole, coefficients = updated(rule, key, state, jnp.asarray(1.0), view, None, problem)
        order = np.asarray(jax.random.permutation(key, jnp.arange(n)))
    g, left = by_hand(outputs, y, before, order, temperature, shares)
    np.testing.assert_allclose(whole.g, g, rtol=1e-5)
    np.testing.assert_allclose(coefficients.c, shares * g, rtol=1e-5)
    assert float(whole.effective_sample_size) == pytest.approx(left, rel=1e-5)
    assert not np.allclose(by_hand(outputs, y, before, order, temperature)[0], g, rtol=1e-3)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("tanh_squared", "tanh_logistic")]


@pytest.mark.parametrize("name", ["sine_squared", "classes", *SLOW])
def test_the_dual_rises_at_every_step_to_its_maximum(name):
    """With exact moments, from the first step on which every example has a dual; several outputs as well."""
    grid = named(name)
    path = walk(grid, DualCoordinateAscent(), 40)
    values = np.array([dual_value(grid, step.g) for step in path if step.state.mass.all()])
    assert len(values) > 20
    assert (np.diff(values) > -1e-12).all()
    best = grid.optimum().dual_value
    assert best - values[0] > 1e-5
    assert -1e-12 < best - values[-1] < 1e-7
    assert path[-1].gap < 1e-6
    share = np.array([step.state.effective_sample_size for step in path]) / len(grid.thetas)
    taken = np.array([step.state.coordinates for step in path])
    assert (share[taken > 1] >= 0.5).all()
    assert taken[0] < len(grid.x) == taken[-1]


def test_a_batch_touches_its_own_coordinates_alone():
    grid, batch = named("sine_squared"), np.array([7, 3, 50])
    law = grid.optimum().law
    before = 0.1 * np.random.default_rng(0).normal(size=len(grid.x))
    with jax.enable_x64(True):
        rule = DualCoordinateAscent()
        state = rule.init(len(grid.x), ())._replace(g=jnp.asarray(before))
        t, key = jnp.asarray(1.0), jax.random.key(0)
        after, _ = updated(rule, key, state, t, view_of(grid, law), jnp.asarray(batch), grid.problem)
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(after.g) != before), np.sort(batch))
    np.testing.assert_array_equal(np.flatnonzero(after.mass), np.sort(batch))
    assert int(after.coordinates) == 3


@pytest.mark.slow
def test_it_fits_and_records(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick | {"rule": "dual_coordinate_ascent"})
    stats = fit.idata["outer_stats"]
    assert {"coordinates", "effective_sample_size"} <= set(stats)
    taken, left = stats["coordinates"].values[0], stats["effective_sample_size"].values[0]
    assert ((taken >= 1) & (taken <= 40)).all()
    assert (left[taken > 1] >= 15 * (1 - 1e-3)).all()


@pytest.mark.parametrize("wrong", [0, 1, 2.0])
def test_odd_shares_are_refused(wrong):
    with pytest.raises(mfpda.InputError, match="share"):
        DualCoordinateAscent(share=wrong)
