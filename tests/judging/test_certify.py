"""The certificate of a problem, a dual and particles: it needs no fit, and respects the weights of examples."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import CertificateStatus, Temper
from mfpda.judging import certify
from mfpda.problem import losses
from mfpda.problem.problem import Problem

LARGEST = 5.4  # errors: exceeded with probability 1e-3 by Student's t with the 7 degrees of freedom of 8 replicates


def test_it_needs_no_fit():
    """h = theta x, theta ~ N(0, 1), T = 1, three examples: q_g is N(m, 1), m = -mean(g x), and all is known."""
    x, y, g = np.array([1.0, -2.0, 0.5]), np.array([0.3, -1.0, 0.7]), np.array([0.2, 0.4, -0.5])
    model = mfpda.Model.from_function(lambda theta, x: theta["w"] * x, {"w": dist.Normal(0, 1)}, losses.Squared(), 1.0)
    problem, thetas = Problem.of(model, jnp.asarray(x, float), jnp.asarray(y, float)), jnp.full((3, 1), 0.25)
    found = certify(jax.random.key(0), problem, jnp.asarray(g, float), thetas, tempering=Temper())
    mean = -np.mean(g * x)
    risk, dual = 0.5 * np.mean((mean * x - y) ** 2), -np.mean(g * y + 0.5 * g**2) - 0.5 * mean**2
    assert found.status is CertificateStatus.CERTIFIED
    assert found.particles == 1000
    assert abs(found.gap - (risk + 0.5 * mean**2 - dual)) < LARGEST * found.stderr
    assert abs(found.objective - (risk + 0.5 * mean**2)) < LARGEST * found.objective_stderr
    assert abs(found.dual_value - dual) < LARGEST * found.dual_stderr
    assert found.stiffness == pytest.approx(np.mean(x**2), rel=0.1)
    z = 0.25 * x  # of the particles, which are all at 0.25
    assert found.particle_gap == pytest.approx(np.mean(0.5 * (z - y) ** 2 + g * y + 0.5 * g**2 - g * z), rel=1e-5)


COUNTS = np.array([2, 1, 3, 1, 1, 2, 1, 1])  # 2/12, 1/12, 3/12, ...
ROWS, EXAMPLES = COUNTS.sum(), len(COUNTS)
COPIES = np.repeat(np.arange(EXAMPLES), COUNTS)


FEW_MOVES = Temper(kernel="mala", moves=2)  # more would amplify rounding


def examples_of(dimensions):
    """A neuron of so many parameters, and the examples of a weighted problem, with free places of weight 0 behind."""
    random = np.random.default_rng(dimensions)
    x, y = random.normal(size=(EXAMPLES, dimensions - 1)), random.normal(size=EXAMPLES)
    sites = {"w": dist.Normal(0, 1).expand([dimensions - 1]).to_event(1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    places = np.r_[np.arange(EXAMPLES), np.zeros(ROWS - EXAMPLES, int)]
    model = mfpda.Model.from_function(h, sites, losses.Squared(), 0.05)
    return Problem.of(model, jnp.asarray(x[places]), jnp.asarray(y[places]))


def weighing(problem, counts):
    """The problem with these weights of its first examples, but for a factor, and 0 for the free places."""
    weights = np.r_[counts / np.sum(counts), np.zeros(ROWS - EXAMPLES)]
    return replace(problem, weights=jnp.asarray(weights))


@pytest.mark.parametrize("dimensions", [pytest.param(2, marks=pytest.mark.slow), 12])
def test_an_example_of_double_weight_is_two_examples(dimensions):
    """The same random numbers lead to the same certificate, but for rounding; without the weights they do not."""
    with jax.enable_x64(True):
        examples, size = examples_of(dimensions), {"replicates": 4, "particles": 200, "tempering": FEW_MOVES}
        repeated = Problem.of(examples.model, examples.x[COPIES], examples.y[COPIES])
        problem, even = (weighing(examples, counts) for counts in (COUNTS, np.ones(EXAMPLES)))
        thetas = jax.random.normal(jax.random.key(1), (50, dimensions))
        z = problem.predict(thetas)
        np.testing.assert_allclose(problem.risk(z), repeated.risk(z[COPIES]), rtol=1e-12)
        stiffness = repeated.stiffness(thetas, z[COPIES])
        np.testing.assert_allclose(problem.stiffness(thetas, z), stiffness, rtol=1e-8)
        g = 0.7 * problem.derivative(z)
        found, unlike = (certify(jax.random.key(0), each, g, thetas, **size) for each in (problem, even))
        expected = certify(jax.random.key(0), repeated, g[COPIES], thetas, **size)
    assert found.status is CertificateStatus.CERTIFIED
    np.testing.assert_allclose(found.predictions[COPIES], expected.predictions, rtol=1e-8)
    numbers = [name for name, value in vars(found).items() if isinstance(value, float)]
    assert {"gap", "stderr", "upper", "risk", "kl", "stiffness", "particle_distance", "r_hat"} <= set(numbers)
    for name in numbers:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    off = [getattr(found, name) / getattr(unlike, name) - 1 for name in ("gap", "risk", "stiffness")]
    assert np.abs(off).max() > 0.05
