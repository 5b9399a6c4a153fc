import jax
import jax.numpy as jnp
import numpy as np

from mfpda import GradientDescent, sampling
from tests.test_sampling import normal_potential


def test_it_contracts_to_the_minimum_by_its_factor():
    """On V = theta^2 / (2 s^2) every step multiplies theta by 1 - eta / s^2."""
    potential, kernel, key = normal_potential(2.0), GradientDescent(step_size=0.4), jax.random.key(0)
    ensemble = sampling.begin(key, jnp.array([[1.0], [-3.0]]), potential, kernel)
    ensemble, _, _ = sampling.run(key, ensemble, potential, kernel, 5)
    np.testing.assert_allclose(ensemble.theta[:, 0], np.array([1.0, -3.0]) * 0.9**5, rtol=1e-5)
