"""A thinned potential is unbiased, what its noise does to the particles is as derived, and a step costs m anchors."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import ULA, GibbsPotential, InputError, Model, StochasticGradient, sampling
from mfpda.problem import losses
from mfpda.problem.problem import Problem
from mfpda.sampling import tuning
from tests.helpers import slow_but

STANDARD_ERRORS = 4.5  # of a normal estimate: a false-failure rate of 7e-6 for each number compared
SCALE, TEMPERATURE, GAMMA = 1.5, 0.5, 0.8

LINEAR = Model.from_function(
    lambda theta, x: theta["w"] * x, {"w": dist.Normal(0, SCALE)}, losses.Squared(), TEMPERATURE
)
TWO_OUTPUTS = Model.from_function(
    lambda theta, x: jnp.tanh(x @ theta["w"]),
    {"w": dist.Normal(0, 1).expand([3, 2]).to_event(2)},
    losses.Softmax(),
    TEMPERATURE,
)


def potential_of(model, x, c, gamma=1.0):
    return Problem.of(model, jnp.asarray(x, float)).potential(jnp.asarray(c, float), gamma)


def linear_potential(n=60, unused=0):
    """h(theta, x) = theta x: V is quadratic, and the noise of its thinned gradient is the same everywhere."""
    random = np.random.default_rng(0)
    x, c = random.normal(1, 1, n), random.normal(0.01, 0.03, n) * np.linspace(0.1, 2, n)
    x, c = np.pad(x, (0, unused), constant_values=x[0]), np.pad(c, (0, unused))
    return potential_of(LINEAR, x, c, GAMMA)


def potential_of_two_outputs(n=40):
    random = np.random.default_rng(1)
    x, c = random.normal(size=(n, 3)), 0.1 * random.normal(size=(n, 2)) * random.uniform(0, 1, (n, 1)) ** 2
    return potential_of(TWO_OUTPUTS, x, c, GAMMA)


def drawn_uniformly(potential, anchors):
    """Broken: every anchor is as likely as any other, and the weights are those of |c|."""
    c = potential.coefficients
    units = c / jnp.linalg.norm(c.reshape(len(c), -1), axis=1).reshape(-1, *[1] * (c.ndim - 1))
    share = jnp.sum(jnp.linalg.norm(c.reshape(len(c), -1), axis=1)) / len(c)
    thinned = sound(dataclasses.replace(potential, coefficients=units), anchors)
    return lambda key: scaled(thinned(key), share)


def weighted_wrongly(potential, anchors):
    """Broken: every weight a tenth too large."""
    thinned = sound(potential, anchors)
    return lambda key: scaled(thinned(key), 1.1)


def scaled(potential, factor):
    return dataclasses.replace(potential, coefficients=potential.coefficients * factor)


sound = GibbsPotential.thinning
BROKEN = [drawn_uniformly, weighted_wrongly]


def test_every_anchor_is_drawn_m_p_times_in_expectation(monkeypatch):
    """Exactly: sizes are whole numbers that sum to 64, and u is the middle of every sixteenth of a stratum in turn."""
    sizes = np.array([0, 3, 16, 1, 0, 20, 5, 0, 0, 9, 10, 0])
    signs = np.where(np.arange(12) % 2, -1, 1)
    potential = potential_of(LINEAR, np.arange(12), sizes * signs)
    counts = np.zeros(12)
    for j in range(16):
        monkeypatch.setattr("jax.random.uniform", lambda key, shape, dtype, u=(j + 0.5) / 16: jnp.full(shape, u, dtype))
        drawn = potential.thinning(4)(None)
        counts += np.bincount(np.asarray(drawn.anchors, int), minlength=12) / 16
        np.testing.assert_array_equal(drawn.coefficients, 16 * signs[np.asarray(drawn.anchors, int)])
    np.testing.assert_array_equal(counts, 4 * sizes / 64)


@pytest.mark.parametrize("make", [linear_potential, potential_of_two_outputs])
def test_value_and_gradient_are_unbiased(make):
    """The mean of 20,000 draws, within STANDARD_ERRORS of it: at most 14 numbers, a false-failure rate of 1e-4."""
    potential = make()
    thetas = jax.random.normal(jax.random.key(0), (2, potential.problem.neuron.size))

    @jax.jit
    def parts(potential, keys):
        values = lambda potential: jax.vmap(jax.value_and_grad(potential))(thetas)  # noqa: E731
        thinned = potential.thinning(8)
        return values(potential), jax.vmap(lambda key: values(thinned(key)))(keys)

    exact, drawn = parts(potential, jax.random.split(jax.random.key(1), 20_000))
    for truth, found in zip(exact, drawn, strict=True):
        found = np.asarray(found, float)
        errors = (found.mean(axis=0) - truth) / (found.std(axis=0) / np.sqrt(len(found)))
        assert np.all(np.abs(errors) < STANDARD_ERRORS), errors


def gradient_noise(potential, anchors):
    """b and v: mean and variance of the data's part of the thinned gradient of ``linear_potential``, exactly.

    Draw k is anchor i with probability m times the overlap of [k, k + 1] / m and the i-th piece of the cumulative sum.
    """
    x, c = np.asarray(potential.anchors, float), np.asarray(potential.coefficients, float)
    ends = np.cumsum(np.abs(c)) / np.abs(c).sum()
    k = np.arange(anchors)[:, None]
    overlap = np.minimum(ends, (k + 1) / anchors) - np.maximum(np.append(0, ends[:-1]), k / anchors)
    chances = anchors * np.maximum(overlap, 0)
    values = GAMMA / TEMPERATURE * np.abs(c).sum() / anchors * np.sign(c) * x
    means = chances @ values
    return means.sum(), np.sum(chances @ values**2 - means**2)


RUNS, PARTICLES, STEPS, ANCHORS = 4000, 10, 60, 8


def after_many_steps(potential, kernel):
    """The particles of independent runs, with axes (run, particle)."""

    def one(key):
        start_key, key = jax.random.split(key)
        ensemble = sampling.begin(key, jax.random.normal(start_key, (PARTICLES, 1)), potential, kernel)
        return sampling.run(key, ensemble, potential, kernel, STEPS)[0].theta[:, 0]

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), RUNS)), float)


def test_the_bias_on_a_quadratic_is_predicted():
    """Mean, variance of a particle, variance of the mean of M particles, and their spread around it: the four formulas
    of the docstring, each within STANDARD_ERRORS over independent runs, a false-failure rate of 3e-5.

    eta k = 0.2: 60 steps leave 2e-6 of the start.
    """
    potential = linear_potential()
    k = GAMMA / SCALE**2
    eta = 0.2 / k
    b, v = gradient_noise(potential, ANCHORS)
    assert eta * v > 1  # else what it adds would not be seen beside 2 / M
    thetas = after_many_steps(potential, StochasticGradient(eta, ANCHORS))
    means = thetas.mean(axis=1)
    found = {
        "mean": means,
        "variance": ((thetas + b / k) ** 2).mean(axis=1),
        "variance of the mean": (means + b / k) ** 2,
        "spread": thetas.var(axis=1, ddof=1),
    }
    predicted = {
        "mean": -b / k,
        "variance": (1 + eta * v / 2) / (1 - eta * k / 2) / k,
        "variance of the mean": (2 / PARTICLES + eta * v) / (k * (2 - eta * k)),
        "spread": 1 / (1 - eta * k / 2) / k,
    }
    errors = {
        name: (values.mean() - predicted[name]) / (values.std() / np.sqrt(RUNS)) for name, values in found.items()
    }
    assert all(abs(error) < STANDARD_ERRORS for error in errors.values()), errors


@pytest.mark.parametrize("broken", slow_but(BROKEN[:1], BROKEN))
def test_wrong_chances_and_wrong_weights_are_seen(broken, monkeypatch):
    monkeypatch.setattr(GibbsPotential, "thinning", broken)
    with pytest.raises(AssertionError):
        test_the_bias_on_a_quadratic_is_predicted()
    with pytest.raises(AssertionError):
        test_value_and_gradient_are_unbiased(potential_of_two_outputs)


def test_anchors_without_a_coefficient_are_never_drawn(monkeypatch):
    """Neither where rounding could, nor by the last point, which rounds to the whole sum: 600 sizes whose partial sums
    round, every fourth of them and the last hundred 0."""
    random = np.random.default_rng(0)
    c = random.exponential(size=600) * (np.arange(600) % 4 > 0) * (np.arange(600) < 500)
    potential = potential_of(LINEAR, np.arange(600), c)
    almost_one = lambda key, shape, dtype: jnp.full(shape, jnp.nextafter(jnp.ones((), dtype), 0))  # noqa: E731
    thinned = jax.jit(jax.vmap(potential.thinning(256)))
    drawn = thinned(jax.random.split(jax.random.key(0), 500))
    assert np.all(c[np.asarray(drawn.anchors, int)] > 0)
    monkeypatch.setattr("jax.random.uniform", almost_one)
    last = potential.thinning(256)(None)
    assert np.all(c[np.asarray(last.anchors, int)] > 0)
    assert last.anchors[-1] == 499


def test_without_coefficients_it_is_the_prior():
    potential, theta = potential_of_two_outputs(), jnp.linspace(-1, 1, 6)
    thinned = lambda theta: scaled(potential, 0.0).thinning(8)(jax.random.key(0))(theta)  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(thinned))(theta)
    np.testing.assert_allclose(value, -GAMMA * potential.problem.log_prior(theta), rtol=1e-6)
    np.testing.assert_allclose(gradient, GAMMA * theta, rtol=1e-5)


def particles_of(potential, kernel, steps=5):
    key = jax.random.key(0)
    ensemble = sampling.begin(key, jax.random.normal(key, (PARTICLES, 1)), potential, kernel)
    return np.asarray(jax.jit(sampling.run)(key, ensemble, potential, kernel, steps)[0].theta)


def test_more_unused_anchors_leave_the_bits():
    few, many = linear_potential(unused=3), linear_potential(unused=452)
    kernel = StochasticGradient(0.5, ANCHORS)
    np.testing.assert_array_equal(particles_of(few, kernel), particles_of(many, kernel))


def test_with_as_many_anchors_as_there_are_it_is_ula():
    potential = linear_potential()
    ula = particles_of(potential, ULA(0.5))
    np.testing.assert_array_equal(particles_of(potential, StochasticGradient(0.5, 60)), ula)
    assert np.all(particles_of(potential, StochasticGradient(0.5, 59)) != ula)


def test_trace_sees_the_steps_of_run():
    potential, kernel, key = linear_potential(), StochasticGradient(0.5, ANCHORS), jax.random.key(0)
    ensemble = sampling.begin(key, jax.random.normal(key, (PARTICLES, 1)), potential, kernel)
    traced, _ = jax.jit(sampling.trace, static_argnums=4)(key, ensemble, potential, kernel, 5)
    np.testing.assert_allclose(traced[-1], particles_of(potential, kernel), rtol=1e-5)


def test_no_matrix_product_has_all_anchors():
    """n = 1000 anchors, m = 50, M = 30 particles, d = 7: the products of tuning and of the loop are with m rows."""
    n, d, particles, anchors = 1000, 7, 30, 50
    sites = {"w": dist.Normal(0, 1).expand([d]).to_event(1)}
    model = Model.from_function(lambda theta, x: jnp.tanh(x @ theta["w"]), sites, losses.Squared(), 0.1)
    x = jax.random.normal(jax.random.key(0), (n, d))
    potential = potential_of(model, x, x[:, 0] / n)

    @jax.jit
    def tuned_run(key, thetas, potential, kernel):
        kernel, _ = tuning.tuned(key, kernel, potential, thetas)
        ensemble = sampling.begin(key, thetas, potential, kernel)
        return sampling.run(key, ensemble, potential, kernel, 20)[0].theta

    def rows(kernel):
        """Every size of an operand or a result of a matrix product in the program."""
        program = tuned_run.lower(jax.random.key(0), jnp.zeros((particles, d)), potential, kernel).as_text()
        products = [line for line in program.splitlines() if "dot_general" in line]
        return {int(size) for line in products for shape in re.findall(r"tensor<([\dx]+)xf32>", line)
                for size in shape.split("x")}  # fmt: skip

    assert n in rows(ULA())
    assert rows(StochasticGradient(anchors=anchors)) == {anchors, particles, d, tuning.PROBES}


def draw(key, batch_size):
    x = jax.random.normal(key, (batch_size,))
    return x, jnp.sin(x)


DATA = {"data set": draw(jax.random.key(9), 1600), "stream": mfpda.Stream(draw)}


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
def test_a_fit_reaches_the_risk_of_ula(data):
    """Forty outer steps past a stiffness of about 12; 1600 anchors, at the end of the stream, and 128 in a step.

    With the same keys, and so the same stream, the risk against the teacher is ULA's within a quarter; without data it
    would be 0.6, and on the data set weights too small by half give 0.048 in place of 0.023.
    """
    sites = {"w": dist.Normal(0, 1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(theta["w"] * x + theta["b"])  # noqa: E731
    model = Model.from_function(h, sites, losses.Squared(), 0.1)
    settings = {"particles": 500, "outer_steps": 40, "batch_size": 40, "record": mfpda.Record(every=40)}
    settings |= {"rule": "dual_averaging"}
    x = jnp.linspace(-2, 2, 101)

    def risk(kernel):
        fit = mfpda.fit(jax.random.key(2), model, DATA[data], kernel=kernel, **settings, progress=False)
        return float(jnp.mean((fit.predict(x) - jnp.sin(x)) ** 2))

    assert 0.75 < risk(StochasticGradient(anchors=128)) / risk(ULA()) < 1.25


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "many", None, True])
def test_a_number_of_anchors_must_be_whole_and_positive(wrong):
    with pytest.raises(InputError, match="anchors"):
        StochasticGradient(anchors=wrong)
