import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpda import ULA, sampling
from tests.helpers import normal_potential

pytestmark = pytest.mark.quick

PARTICLES = 40_000


def stationary_variance(kernel, scale, steps):
    potential, key = normal_potential(scale), jax.random.key(0)
    thetas = scale * jax.random.normal(jax.random.key(1), (PARTICLES, 1))
    ensemble = sampling.begin(key, thetas, potential, kernel)
    return float(jnp.var(jax.jit(sampling.run)(key, ensemble, potential, kernel, steps)[0].theta))


@pytest.mark.parametrize(("scale", "share"), [(1.0, 0.1), (0.3, 0.5), (2.0, 1.0)])
def test_stationary_variance_on_a_normal_is_predicted(scale, share):
    """s^2 / (1 - eta / (2 s^2)), within 4 standard errors s^2 sqrt(2/M): a false-failure rate of 6e-5 a case.

    eta = share s^2; contraction (1 - share) a step, so 200 steps forget the start at every share here.
    """
    eta = share * scale**2
    predicted = scale**2 / (1 - eta / (2 * scale**2))
    assert abs(stationary_variance(ULA(step_size=eta), scale, 200) / predicted - 1) < 4 * np.sqrt(2 / PARTICLES)


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_the_prediction_fails_on_a_kernel_with_the_wrong_noise(noise, monkeypatch):
    """sqrt(eta) or sqrt(3 eta) in place of sqrt(2 eta) is seen by the test above."""
    monkeypatch.setattr("mfpda.kernels.ula.jnp.sqrt", lambda value: (value * noise / 2) ** 0.5)
    with pytest.raises(AssertionError):
        test_stationary_variance_on_a_normal_is_predicted(1.0, 0.1)
