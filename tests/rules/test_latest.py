import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.exact import _GridOutputs
from mfpda.progress.state import current_potential
from tests.rules.grid import problem_with


def test_one_inner_step_is_noisy_gradient_descent(small):
    """Against noisy gradient descent of the paper's Section 3.1 written out by hand, with the run's own random numbers.

    theta_r <- theta_r - eta [ (1/(nT)) sum_i l'(z_i) dh(theta_r, x_i) + theta_r ] + sqrt(2 eta) xi, priors N(0, 1).
    """
    key, eta, particles, steps, temperature = jax.random.key(0), 0.01, 30, 6, 0.02
    arguments = {"rule": "latest", "kernel": mfpda.ULA(step_size=eta), "particles": particles}
    fit = mfpda.fit(key, small.model, small.data, **arguments, outer_steps=steps, inner_steps=1, progress=False)
    x, y = (np.asarray(a, np.float32) for a in small.data)
    w, b = fit.progress.initial["w"][:, 0], fit.progress.initial["b"]
    for t in range(1, steps + 1):
        inner_key = jax.random.split(jax.random.fold_in(key, t), 4)[3]
        keys = [jax.random.fold_in(jax.random.fold_in(inner_key, r), 0) for r in range(particles)]
        noise = np.sqrt(2 * eta) * np.stack([jax.random.normal(k, (2,)) for k in keys])
        h = 2 * np.tanh(np.outer(w, x[:, 0]) + b[:, None])
        slope = (h.mean(0) - y) * 2 * (1 - (h / 2) ** 2) / (40 * temperature)
        w, b = (
            w - eta * (slope @ x[:, 0] + w) + noise[:, 0],
            b - eta * (slope.sum(1) + b) + noise[:, 1],
        )
    np.testing.assert_allclose(fit.particles["w"][:, 0], w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fit.particles["b"], b, rtol=1e-4, atol=1e-5)


def test_on_mini_batches_an_inner_step_costs_the_batch(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, batch_size=10, **small.quick | {"rule": "latest"})
    potential = current_potential(fit.problem, fit.rule, fit.state)
    assert len(potential.anchors) == 10
    assert len(fit.potential.anchors) == 40


def test_its_dual_follows_the_recent_linearisations():
    """l' = 1 for 90 steps and 0 for the next 10: weights s^3 leave (90 91)^2 / (100 101)^2 = 0.657 of it."""
    rule, key = mfpda.Latest(), jax.random.key(0)
    state, problem = rule.init(1, ()), problem_with(jnp.zeros(1), mfpda.losses.Squared(), 0.1)
    for t in range(1, 101):
        outputs = _GridOutputs(jnp.full((1, 1), 1.0 if t <= 90 else 0.0), jnp.ones(1))
        state, _ = rule.update(key, state, jnp.asarray(float(t)), outputs, None, problem)
    np.testing.assert_allclose(rule.dual(state).g, (90 * 91 / (100 * 101)) ** 2, rtol=1e-4)


def test_without_noise_it_is_gradient_descent_on_the_penalised_risk(small):
    """Risk + T E|theta|^2 / 2 (priors N(0, 1)) falls at every one of 60 small steps, and its rate is the gradient's."""
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, rule="latest", kernel=mfpda.GradientDescent(step_size=1e-3),
        particles=100, outer_steps=60, inner_steps=1, progress=False,
    )  # fmt: skip
    objective = np.array([row.stats["risk"] + 0.01 * row.stats["second_moment"] for row in fit.rows])
    assert (np.diff(objective) < 0).all()
    before, after = (fit.rows[k].particles for k in (30, 31))
    squared = sum(np.sum((after[name] - before[name]) ** 2) for name in ("w", "b"))
    # theta moves by -eta M / T times the objective's gradient, so the objective falls by T |move|^2 / (eta M)
    assert objective[30] - objective[31] == pytest.approx(0.02 * squared / (1e-3 * 100), rel=0.1)


def test_mini_batches_without_noise_are_sgd(small):
    """One step on a batch moves theta_r by -eta [ (1/(bT)) sum_{i in batch} l'(z_i) dh(theta_r, x_i) + theta_r ]."""
    key, eta = jax.random.key(0), 1e-3
    fit = mfpda.fit(
        key, small.model, small.data, rule="latest", kernel=mfpda.GradientDescent(step_size=eta), batch_size=10,
        particles=30, outer_steps=1, inner_steps=1, progress=False,
    )  # fmt: skip
    batch = np.asarray(fit.state.batch)
    x, y = small.x[batch, 0], small.data[1][batch]
    w, b = fit.progress.initial["w"][:, 0], fit.progress.initial["b"]
    h = 2 * np.tanh(np.outer(w, x) + b[:, None])
    slope = (h.mean(0) - y) * 2 * (1 - (h / 2) ** 2) / (10 * 0.02)
    np.testing.assert_allclose(fit.particles["w"][:, 0], w - eta * (slope @ x + w), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fit.particles["b"], b - eta * (slope.sum(1) + b), rtol=1e-4, atol=1e-5)
