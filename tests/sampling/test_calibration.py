"""Calibrated particles predict as they should, and have hardly moved."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpda.exact import Quadrature
from mfpda.problem import Problem
from mfpda.sampling import calibrated
from tests.helpers import reference
from tests.rules.conformance import problem_of

PARTICLES = 1000


@functools.cache
def drawn(name):
    """A problem, exact draws of its optimum, their predictions, those of the optimum, and the error of the former.

    Draws are from the nodes of a fine grid, moved inside their cells.
    """
    ours, random = reference(name), np.random.default_rng(0)
    x, y = (jnp.asarray(each, float) for each in ours.data)
    problem = Problem.of(ours.model, x, y)
    grid = Quadrature.of(ours.model, ours.data, ours.bounds, 201)
    law, _ = grid.gibbs(np.asarray(ours.optimum.dual_g).ravel() / len(x))
    chosen = grid.thetas[random.choice(len(grid.thetas), PARTICLES, p=law.probability)]
    cell = (ours.bounds[1] - ours.bounds[0]) / 200
    thetas = jnp.asarray(chosen + cell * random.uniform(-0.5, 0.5, chosen.shape), float)
    error = np.sqrt(np.mean(np.var(problem.outputs_at(thetas, x), axis=0)) / PARTICLES)
    return problem, thetas, grid.predictions(law), error


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


NAMES = ["tanh_squared", "tanh_logistic", "sine_squared"]


@pytest.mark.parametrize("name", NAMES)
def test_predictions_come_within_a_tenth_of_their_error_and_particles_hardly_move(name):
    """By about 1/sqrt(M) = 0.03 of their spread, coordinate by coordinate: here by less than three times that."""
    problem, thetas, target, error = drawn(name)
    before = rms(problem.predict(thetas) - target)
    assert 0.3 * error < before < 3 * error  # they are independent draws
    moved = calibrated(problem, thetas, jnp.asarray(target, float))
    after = rms(problem.predict(moved) - target)
    part = np.sqrt(np.mean(np.square(moved - thetas), axis=0)) / np.std(thetas, axis=0)
    print(f"{name}: off by {before / error:.2f}, then {after / error:.4f} errors; moved by {part} of the spread")
    assert after < 0.1 * error
    assert np.all(part < 3 / np.sqrt(PARTICLES))
    assert np.all(part > 0)


def test_particles_that_predict_the_target_stay():
    problem, thetas, _, error = drawn("tanh_squared")
    moved = calibrated(problem, thetas, problem.predict(thetas))
    assert rms(problem.predict(moved) - problem.predict(thetas)) < 1e-3 * error
    assert np.max(np.abs(moved - thetas)) < 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [3.0, -30.0])
def test_a_target_out_of_reach_does_no_harm(name, size):
    """Outputs are below 1, 5 and 2. Particles stay finite, and predictions come no further away."""
    problem, thetas, target, _ = drawn(name)
    away = size * jnp.sign(jnp.asarray(target, float))
    moved = calibrated(problem, thetas, away)
    assert np.all(np.isfinite(moved))
    assert rms(problem.predict(moved) - away) <= rms(problem.predict(thetas) - away)


def test_vector_outputs_are_brought_to_their_target():
    """What particles that lie elsewhere by a thirtieth predict."""
    problem = problem_of((3,))
    thetas = jax.random.normal(jax.random.key(0), (PARTICLES, problem.neuron.size))
    target = problem.predict(thetas + 0.03 * jnp.linspace(-1, 1, problem.neuron.size))
    before, after = (rms(problem.predict(each) - target) for each in (thetas, calibrated(problem, thetas, target)))
    assert after < 0.1 * before
