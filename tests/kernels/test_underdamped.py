import dataclasses
import decimal
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import InputError, Underdamped, sampling
from mfpda.kernels.underdamped import frozen_force_coefficients
from tests.helpers import normal_potential


def exact_coefficients(h, g):
    """The formulas of Cheng et al. as they stand, with 60 digits."""
    with decimal.localcontext(prec=60):
        h, g = decimal.Decimal(float(h)), decimal.Decimal(float(g))
        f2 = (-g * h).exp()
        f0 = (1 - f2) / g
        f1 = (h - f0) / g
        variance = 2 / g * (h - 2 * f0 + (1 - f2**2) / (2 * g))
        return [float(value) for value in (f2, f0, f1, variance, (1 - f2) ** 2 / g, 1 - f2**2)]


@pytest.mark.parametrize("step_size", [1e-4, 3e-3, 0.01, 0.1, 0.49, 0.51, 2.0, 30.0])
@pytest.mark.parametrize("friction", [0.5, 2.0])
def test_the_frozen_force_coefficients_do_not_cancel(step_size, friction):
    """As written, in float32, the variance is 20 % off at g h = 0.01 and negative at 0.003."""
    h, g = np.float32(step_size / friction), np.float32(friction)
    np.testing.assert_allclose(frozen_force_coefficients(h, g), exact_coefficients(h, g), rtol=2e-5)
    with jax.enable_x64(True):
        got = frozen_force_coefficients(jnp.asarray(step_size / friction), jnp.asarray(friction))
        np.testing.assert_allclose(got, exact_coefficients(step_size / friction, friction), rtol=1e-12)


def discrete_variance(h, g, curvature, integrator):
    """The stationary variance of theta on V = curvature theta^2 / 2, from the linear recursion's Lyapunov equation."""
    if integrator == "baoab":
        f2 = np.exp(-g * h)
        kick, drift = np.array([[1, 0], [-h * curvature, 1]]), np.array([[1, h / 2], [0, 1]])
        matrix, noise = drift @ np.diag([1, f2]) @ drift @ kick, drift @ np.diag([0, 1 - f2**2]) @ drift.T
    else:
        f2, f0, f1, x_variance, covariance, v_variance = exact_coefficients(h, g)
        matrix = np.array([[1 - f1 * curvature, f0], [-f0 * curvature, f2]])
        noise = np.array([[x_variance, covariance], [covariance, v_variance]])
    size = len(matrix)
    return np.linalg.solve(np.eye(size**2) - np.kron(matrix, matrix), noise.ravel())[0]


@pytest.mark.parametrize("integrator", ["baoab", "frozen_force"])
def test_its_variance_on_a_normal_is_predicted(integrator):
    """Within 4 standard errors s^2 sqrt(2/M): a false-failure rate of 6e-5 a case."""
    particles, scale, h, g = 40_000, 1.5, 0.7, 1.2
    kernel = Underdamped(step_size=h, friction=g, integrator=integrator)
    potential, key = normal_potential(scale), jax.random.key(0)
    ensemble = sampling.begin(key, scale * jax.random.normal(jax.random.key(1), (particles, 1)), potential, kernel)
    ensemble, _, _ = jax.jit(sampling.run)(key, ensemble, potential, kernel, 150)
    predicted = discrete_variance(h, g, 1 / scale**2, integrator)
    assert abs(float(jnp.var(ensemble.theta)) / predicted - 1) < 4 * np.sqrt(2 / particles)
    if integrator == "baoab":
        np.testing.assert_allclose(predicted, scale**2, rtol=1e-10)


@jax.tree_util.register_static
class Quartic:
    """V = theta^2 / 2 + theta^4 / 4, in one dimension."""

    grid = np.linspace(-6, 6, 100_001)
    mass = np.exp(-(grid**2) / 2 - grid**4 / 4) / np.sum(np.exp(-(grid**2) / 2 - grid**4 / 4))
    second_moment = float(np.sum(mass * grid**2))

    def __call__(self, theta):
        return jnp.sum(theta**2 / 2 + theta**4 / 4)

    def draw(self, key, particles):
        uniform = jax.random.uniform(key, (particles, 1))
        return jnp.interp(uniform, jnp.asarray(np.cumsum(self.mass), float), jnp.asarray(self.grid, float))


@functools.partial(jax.jit, static_argnames=("particles", "rounds"))
def bias_over_time(key, kernel, particles, rounds):
    """E[theta^2] minus the truth, per particle, averaged over times one unit apart, after 20 units of forgetting."""
    potential = Quartic()
    draw_key, begin_key, forget_key, run_key = jax.random.split(key, 4)
    ensemble = sampling.begin(begin_key, potential.draw(draw_key, particles), potential, kernel)
    unit = jnp.ceil(1 / kernel.step_size).astype(int)
    ensemble, _, _ = sampling.run(forget_key, ensemble, potential, kernel, 20 * unit)

    def one(k, carry):
        ensemble, total = carry
        ensemble, _, _ = sampling.run(jax.random.fold_in(run_key, k), ensemble, potential, kernel, unit)
        return ensemble, total + jnp.square(ensemble.theta[:, 0]) - potential.second_moment

    return jax.lax.fori_loop(0, rounds, one, (ensemble, jnp.zeros(particles)))[1] / rounds


def measured_order(integrator, steps, particles, rounds):
    """The slope of log |bias| against log h, with its standard error, and the relative errors of the biases."""
    biases, errors = [], []
    for h in steps:
        kernel = Underdamped(step_size=jnp.asarray(h), friction=jnp.asarray(1.0), integrator=integrator)
        means = np.asarray(bias_over_time(jax.random.key(0), kernel, particles, rounds), float)
        biases.append(means.mean())
        errors.append(means.std() / np.sqrt(particles))
    biases, relative, logs = np.abs(biases), np.array(errors) / np.abs(biases), np.log(steps)
    design = np.stack([np.ones_like(logs), logs], axis=1) / relative[:, None]
    covariance = np.linalg.inv(design.T @ design)
    slope = (covariance @ design.T @ (np.log(biases) / relative))[1]
    return slope, np.sqrt(covariance[1, 1]), biases, relative


@pytest.mark.slow
@pytest.mark.parametrize(("integrator", "steps", "effort", "order"), [
    ("frozen_force", (0.02, 0.04, 0.08), (50_000, 40), 1),
    ("baoab", (0.2, 0.26, 0.34), (400_000, 800), 2),
])  # fmt: skip
def test_the_bias_falls_at_the_order_claimed(integrator, steps, effort, order):
    """Within 3 standard errors and 0.15 of the order: the next order's term is still there at these steps."""
    slope, error, biases, relative = measured_order(integrator, steps, *effort)
    print(f"{integrator}: slope {slope:.2f} +- {error:.2f}; biases {biases} within {np.round(100 * relative)} %")
    assert error < 0.15
    assert abs(slope - order) < 0.15 + 3 * error


def test_the_velocity_survives_a_new_potential(small):
    """With one inner step and Latest this is mean-field underdamped Langevin: v is not drawn again."""
    kernel = Underdamped(step_size=0.01, friction=1.0)
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, kernel=kernel, rule="latest",
        particles=200, outer_steps=2, inner_steps=1, progress=False,
    )  # fmt: skip
    longer = mfpda.fit(
        jax.random.key(0), small.model, small.data, kernel=kernel, rule="latest",
        particles=200, outer_steps=3, inner_steps=1, progress=False, resume=fit,
    )  # fmt: skip
    before, after = (np.asarray(f.state.ensemble.velocity).ravel() for f in (fit, longer))
    assert np.corrcoef(before, after)[0, 1] > 0.97


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"integrator": "euler"}, "'baoab', 'frozen_force'"),
        ({"friction": -1.0}, "friction"),
        ({"friction": mfpda.schedules.Constant(1.0)}, "Only the step size can depend on t"),
    ],
    ids=["integrator", "friction", "schedule"],
)
def test_it_refuses_what_it_does_not_know(settings, message):
    with pytest.raises(InputError, match=message):
        Underdamped(**settings)


def test_a_step_size_leaves_the_friction_to_be_chosen():
    assert dataclasses.replace(Underdamped(), step_size=0.1).friction == "auto"
