import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from mfpda import ULA, Model, sampling
from mfpda.problem import losses
from mfpda.problem.potential import prior_potential


def normal_potential(scale, dimensions=1):
    sites = {"w": dist.Normal(0, scale).expand([dimensions]).to_event(1)}
    model = Model.from_function(lambda theta, x: jnp.sum(theta["w"]) * x, sites, losses.Squared(), 1.0)
    return prior_potential(model, jnp.ones(1))


def test_a_particle_does_not_depend_on_how_many_there_are():
    potential, kernel, key = normal_potential(1.0, 3), ULA(step_size=0.1), jax.random.key(0)
    ends = []
    for particles in (4, 9):
        ensemble = sampling.begin(key, sampling.draw_initial(key, particles, potential), potential, kernel)
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
