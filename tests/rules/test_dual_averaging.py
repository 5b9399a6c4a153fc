"""The coefficients against a transcription of the paper's sum (Algorithm 1 and Appendix E)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.problem.binding import bind
from mfpda.problem.data import DataSet
from mfpda.progress.state import current_potential
from tests.helpers import slow_but

OUTER_STEPS, BATCH = 7, 8


def problem(classes):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 2)).astype(np.float32)
    prior = dist.Normal(0, 1)
    if classes:
        sites = {"a": prior.expand([3]).to_event(1), "w": prior.expand([2]).to_event(1)}
        h = lambda theta, x: theta["a"] * jnp.tanh(x @ theta["w"])  # noqa: E731
        return mfpda.Model.from_function(h, sites, mfpda.losses.Softmax(), 0.05), x, rng.integers(0, 3, 20)
    sites = {"w": prior.expand([2]).to_event(1), "b": prior}
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    return mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 0.05), x, rng.normal(size=20).astype(np.float32)


@functools.cache
def run(classes):
    model, x, y = problem(classes)
    key = jax.random.key(5)
    fit = mfpda.fit(
        key, model, (x, y), rule="dual_averaging", batch_size=BATCH, particles=40, outer_steps=OUTER_STEPS,
        inner_steps=3, progress=False,
    )  # fmt: skip
    batches = DataSet(jax.random.split(jax.random.fold_in(key, 0))[1], bind(model, x, y), BATCH)
    indices = [np.asarray(batches.at(t)[1]) for t in range(1, OUTER_STEPS + 1)]
    ensembles = [fit.progress.initial, *(row.particles for row in fit.rows)]  # Theta~^(1), Theta~^(2), ...
    return fit, x, y, indices, ensembles


def by_hand_scalar(theta, x, y):
    return np.mean(np.tanh(x @ theta["w"].T + theta["b"]), axis=1) - y


def by_hand_classes(theta, x, y):
    z = np.mean(np.tanh(x @ theta["w"].T)[:, :, None] * theta["a"][None], axis=1)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return p - np.eye(3)[y]


@pytest.mark.parametrize("classes", slow_but([True], [False, True]))
def test_coefficients_after_seven_mini_batch_steps_are_algorithm_ones_sum(classes):
    """2 / ((t+2)(t+1)) sum_s s l'(h_s(x_s)) over the batches, which is gamma c, in plain NumPy."""
    fit, x, y, indices, ensembles = run(classes)
    derivative = by_hand_classes if classes else by_hand_scalar
    t = OUTER_STEPS
    coefficients = np.zeros((20, 3) if classes else 20)
    for s in range(1, t + 1):
        theta = {name: np.asarray(value, np.float64) for name, value in ensembles[s - 1].items()}
        for i in indices[s - 1]:
            coefficients[i] += 2 * s * derivative(theta, x[[i]], y[[i]])[0] / BATCH / ((t + 2) * (t + 1))
    found = fit.state.coefficients
    np.testing.assert_allclose(found.gamma * found.c, coefficients, atol=1e-6)
    assert found.gamma == pytest.approx(t / (t + 2))
    assert np.abs(coefficients).max() > 1e-3


@pytest.mark.parametrize("classes", slow_but([True], [False, True]))
def test_fast_form_and_sum_form_of_the_gradient_agree(classes):
    """grad g-bar of Algorithm 1, summed over steps and examples, against the gradient of the run's last potential."""
    fit, x, y, indices, ensembles = run(classes)
    model, t = fit.model, OUTER_STEPS
    derivative = by_hand_classes if classes else by_hand_scalar
    theta = fit.thetas[0]
    total = np.zeros(theta.size)
    for s in range(1, t + 1):
        values = {name: np.asarray(value, np.float64) for name, value in ensembles[s - 1].items()}
        for i in indices[s - 1]:
            slope = np.asarray(jax.jacobian(lambda theta, i=i: fit.problem.output(theta, x[i]))(theta))
            total += s * derivative(values, x[[i]], y[[i]])[0] @ slope / BATCH if classes else (
                s * derivative(values, x[[i]], y[[i]])[0] * slope / BATCH
            )  # fmt: skip
    temperature = model.temperature
    by_sum = 2 / (temperature * (t + 2) * (t + 1)) * total + t / (t + 2) * np.asarray(theta)  # priors are N(0, 1)
    potential = current_potential(fit.problem, fit.rule, fit.state)
    np.testing.assert_allclose(jax.grad(potential)(theta), by_sum, rtol=1e-4, atol=1e-4)


def test_full_batch_dual_is_n_times_the_coefficients(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick | {"rule": "dual_averaging"})
    np.testing.assert_allclose(fit.dual, 40 * fit.state.coefficients.c, rtol=1e-5)
    np.testing.assert_allclose(fit.potential.coefficients, fit.state.coefficients.c, rtol=1e-5)


def test_gamma_can_be_fixed(small):
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, **small.quick | {"rule": mfpda.DualAveraging(gamma=1.0)}
    )
    assert fit.state.coefficients.gamma == 1


@pytest.mark.parametrize("wrong", [0.5, 1.5, "one"])
def test_another_fixed_gamma_is_refused(wrong):
    with pytest.raises(mfpda.InputError, match="gamma"):
        mfpda.DualAveraging(gamma=wrong)
