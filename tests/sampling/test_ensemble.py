from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from mfpda import ULA, Kernel, sampling
from mfpda.kernels import KernelInfo
from tests.helpers import normal_potential

pytestmark = pytest.mark.quick


def test_a_particle_does_not_depend_on_how_many_there_are():
    potential, kernel, key = normal_potential(1.0, 3), ULA(step_size=0.1), jax.random.key(0)
    ends = []
    for particles in (4, 9):
        ensemble = sampling.begin(key, sampling.draw_initial(key, particles, potential.problem), potential, kernel)
        ends.append(sampling.run(key, ensemble, potential, kernel, 7)[0].theta)
    np.testing.assert_allclose(ends[0], ends[1][:4], rtol=1e-5)


def test_the_number_of_steps_is_traced():
    potential, kernel, key = normal_potential(1.0), ULA(step_size=0.1), jax.random.key(0)
    run = jax.jit(lambda *arguments: sampling.run(*arguments))
    ensemble = sampling.begin(key, jnp.zeros((5, 1)), potential, kernel)
    for steps in (1, 10, 100):
        run(key, ensemble, potential, kernel, jnp.asarray(steps))
    assert run._cache_size() == 1


def test_a_particle_that_leaves_the_numbers_is_counted():
    potential, kernel, key = normal_potential(1e-3), ULA(step_size=10.0), jax.random.key(0)
    ensemble = sampling.begin(key, jnp.ones((5, 1)), potential, kernel)
    _, stats, _ = sampling.run(key, ensemble, potential, kernel, 20)
    assert bool(jnp.all(stats.diverging))


class Counted(NamedTuple):
    theta: Array
    step: Array


class Counting(Kernel):
    """Step k = 0, 1, ... of a particle at theta has acceptance k theta and k gradients, and only step 2 may diverge."""

    def init(self, key, theta, potential):
        return Counted(theta, jnp.zeros(()))

    def step(self, key, state, potential):
        k, place = state.step, state.theta[0]
        return Counted(state.theta, k + 1), KernelInfo(potential(state.theta), k * place, (k == 2) & (place > 0.1), k)


def test_acceptance_is_a_mean_over_steps():
    """Of 0, theta, ..., 4 theta: 2 theta. Gradients add up to 10, and one divergence is not forgotten."""
    potential, kernel, key = normal_potential(1.0), Counting(), jax.random.key(0)
    thetas = jnp.array([[0.1], [0.2], [0.25]])
    ensemble = sampling.begin(key, thetas, potential, kernel)
    _, stats, _ = sampling.run(key, ensemble, potential, kernel, 5)
    np.testing.assert_allclose(stats.acceptance, [0.2, 0.4, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(stats.gradients, [10, 10, 10])
    np.testing.assert_array_equal(stats.diverging, [False, True, True])
    _, of_steps = sampling.trace(key, ensemble, potential, kernel, 5)
    np.testing.assert_allclose(of_steps.acceptance, np.outer(np.arange(5), [0.1, 0.2, 0.25]), rtol=1e-6)
    np.testing.assert_array_equal(of_steps.gradients, np.repeat(np.arange(5)[:, None], 3, axis=1))
    np.testing.assert_array_equal(np.argwhere(np.asarray(of_steps.diverging)), [[2, 1], [2, 2]])


def test_a_refreshed_ensemble_is_where_it_was_told_to_be():
    """With a key for each particle, and each at its own place."""
    potential, key = normal_potential(2.0, 2), jax.random.key(0)

    class Keyed(Counting):
        def init(self, key, theta, potential):
            return Counted(theta, jax.random.uniform(key))

    ensemble = sampling.begin(key, jnp.zeros((4, 2)), potential, Keyed())
    thetas = jnp.arange(8.0).reshape(4, 2)
    after = sampling.refresh(jax.random.key(1), ensemble, thetas, potential, Keyed())
    np.testing.assert_array_equal(after.theta, thetas)
    expected = [jax.random.uniform(jax.random.fold_in(jax.random.key(1), r)) for r in range(4)]
    np.testing.assert_allclose(after.step, expected, rtol=1e-6)
