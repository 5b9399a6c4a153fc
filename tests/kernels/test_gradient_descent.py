import jax
import jax.numpy as jnp
import numpy as np

import mfpda
from mfpda import GradientDescent, sampling
from tests.helpers import normal_potential


def test_it_contracts_to_the_minimum_by_its_factor():
    """On V = theta^2 / (2 s^2) every step multiplies theta by 1 - eta / s^2."""
    potential, kernel, key = normal_potential(2.0), GradientDescent(step_size=0.4), jax.random.key(0)
    ensemble = sampling.begin(key, jnp.array([[1.0], [-3.0]]), potential, kernel)
    ensemble, _, _ = sampling.run(key, ensemble, potential, kernel, 5)
    np.testing.assert_allclose(ensemble.theta[:, 0], np.array([1.0, -3.0]) * 0.9**5, rtol=1e-5)


def test_a_learning_rate_on_the_penalised_risk_is_that_times_the_temperature(small):
    """SGD by hand: theta_r - r [ (1/n) sum_i (z_i - y_i) dh(theta_r, x_i) - T dlog p0(theta_r) ]."""
    (x, y), model, rate = small.data, small.model, 0.3
    kernel = GradientDescent(step_size=rate * model.temperature)
    arguments = {"rule": "latest", "kernel": kernel, "particles": 30, "inner_steps": 1, "progress": False}
    fit = mfpda.fit(jax.random.key(0), model, small.data, outer_steps=1, **arguments)
    w, b = fit.progress.initial["w"], fit.progress.initial["b"]
    h = 2 * np.tanh(w @ x.T + b[:, None])
    slope = (np.mean(h, axis=0) - y) * (2 - h**2 / 2)  # dh/du = 2 (1 - tanh^2), u = w x + b
    by_hand = b - rate * (np.mean(slope, axis=1) + model.temperature * b)
    np.testing.assert_allclose(fit.particles["b"], by_hand, rtol=1e-4)
