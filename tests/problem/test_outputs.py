import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.exact import Quadrature
from mfpda.problem.blocks import Blocks
from mfpda.problem.outputs import FAMILIES
from mfpda.problem.problem import Problem, predictions
from tests.helpers import reference


def test_mean_over_particles_on_all_anchors_or_a_batch(small):
    thetas, x = jax.random.normal(jax.random.key(0), (6, 2)), jnp.asarray(small.x, float)
    view = Problem.of(small.model, x).outputs(thetas)
    by_hand = np.mean(2 * np.tanh(np.outer(thetas[:, 0], x[:, 0]) + thetas[:, 1:]), axis=0)
    np.testing.assert_allclose(view.mean(), by_hand, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(view.mean(jnp.array([3, 1])), by_hand[[3, 1]], rtol=1e-4, atol=1e-6)


def by_eigenvalues(outputs, second, temperature):
    """The largest eigenvalue of C L'' / (n T), densely; ``second`` is the block-diagonal of l''."""
    n = outputs.shape[1]
    flat = outputs.reshape(len(outputs), -1)
    return np.linalg.eigvals(np.cov(flat.T, bias=True) @ second / (n * temperature)).real.max()


@pytest.mark.parametrize("loss", [mfpda.losses.Squared(), mfpda.losses.Logistic()])
def test_stiffness_is_the_largest_eigenvalue(small, loss):
    model = mfpda.Model(small.model.declaration.neuron, loss, 0.02)
    y = jnp.sign(jnp.asarray(small.data[1], float))
    thetas, x = 2 * jax.random.normal(jax.random.key(0), (500, 2)), jnp.asarray(small.x, float)
    problem = Problem.of(model, x, y)
    outputs = problem.outputs_at(thetas, x)
    z = jnp.mean(outputs, axis=0)
    second = np.ones(40) if isinstance(loss, mfpda.losses.Squared) else np.exp(-z) / (1 + np.exp(-z)) ** 2
    truth = by_eigenvalues(outputs, np.diag(second), 0.02)
    assert float(problem.stiffness(thetas, z)) == pytest.approx(truth, rel=1e-4)


def test_stiffness_of_several_outputs(small):
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"]) * jnp.array([1.0, -2.0, 0.5])  # noqa: E731
    sites = {"w": dist.Normal(0, 1).expand([1]).to_event(1), "b": dist.Normal(0, 1)}
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Softmax(), 0.1)
    thetas, x = jax.random.normal(jax.random.key(0), (300, 2)), jnp.asarray(small.x[:8], float)
    problem = Problem.of(model, x, jnp.zeros(8, int))
    outputs = problem.outputs_at(thetas, x)
    z = jnp.mean(outputs, axis=0)
    p = np.asarray(jax.nn.softmax(z))
    second = np.zeros((24, 24))
    for i in range(8):
        second[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] = np.diag(p[i]) - np.outer(p[i], p[i])
    found = float(problem.stiffness(thetas, z))
    assert found == pytest.approx(by_eigenvalues(np.asarray(outputs), second, 0.1), rel=1e-4)


@pytest.mark.parametrize(("name", "kappa"), [("tanh_logistic", 105), ("sine_squared", 111)])
def test_stiffness_of_the_reference_problems(name, kappa):
    """At the optimum, from draws of the exact law: the figures known for two of the problems, within 10 %."""
    stored = reference(name)
    grid = Quadrature.of(stored.model, stored.data, stored.bounds, 301)
    law = grid.optimum().law
    chosen = np.random.default_rng(0).choice(len(law.probability), 4000, p=law.probability)
    thetas, x, y = (jnp.asarray(part, float) for part in (grid.thetas[chosen], grid.x, stored.data[1]))
    problem = Problem.of(stored.model, x, y)
    found = float(problem.stiffness(thetas, predictions(problem, thetas)))
    assert found == pytest.approx(kappa, rel=0.1)


def with_outputs(small, classes):
    if not classes:
        y = jnp.sign(jnp.asarray(small.data[1], float))
        return mfpda.Model(small.model.declaration.neuron, mfpda.losses.Logistic(), 0.1), y
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"]) * jnp.array([1.0, -2.0, 0.5])  # noqa: E731
    sites = {"w": dist.Normal(0, 1).expand([1]).to_event(1), "b": dist.Normal(0, 1)}
    return mfpda.Model.from_function(h, sites, mfpda.losses.Softmax(), 0.1), jnp.arange(40) % 3


@pytest.mark.parametrize("blocks", [Blocks(), Blocks(7)])
@pytest.mark.parametrize("classes", [False, True])
def test_products_with_the_deviations_are_those_of_dense_matrices(small, classes, blocks):
    """In float64, whole and in blocks whose last one overlaps the one before; weights of the examples differ."""
    with jax.enable_x64(True):
        model, y = with_outputs(small, classes)
        thetas, x = jax.random.normal(jax.random.key(0), (30, 2)), jnp.asarray(small.x)
        problem = Problem.of(model, x, y, blocks)
        view = problem.outputs(thetas)
        whole = np.asarray(problem.outputs_at(thetas, x))
        np.testing.assert_allclose(view.column(3), whole[:, 3], rtol=1e-12)
        np.testing.assert_allclose(view.mass, np.full(30, 1 / 30))
        deviations = view.deviations()
        z = whole.mean(0)
        flat = (whole - z).reshape(30, -1)
        rng = np.random.default_rng(1)
        d, b, weights = rng.normal(size=z.shape), rng.normal(size=30), rng.dirichlet(np.ones(40))
        second = np.asarray(jax.vmap(jax.jacfwd(model.loss.derivative))(jnp.asarray(z + d), y))
        curved = (flat / 30**0.5).T @ b
        curved = weights.reshape(-1, 1) * np.einsum("nij,nj->ni", second.reshape(40, *2 * (curved.size // 40,)),
                                                     curved.reshape(40, -1))  # fmt: skip
        close = {"rtol": 1e-9, "atol": 1e-12}
        np.testing.assert_allclose(deviations.z, z, **close)
        np.testing.assert_allclose(deviations.energies(jnp.asarray(d)), flat @ d.ravel(), **close)
        np.testing.assert_allclose(deviations.matvec(jnp.asarray(d)), flat @ d.ravel() / 30**0.5, **close)
        np.testing.assert_allclose(np.ravel(deviations.rmatvec(jnp.asarray(b))), flat.T @ b / 30**0.5, **close)
        at_z = np.asarray(jax.vmap(jax.jacfwd(model.loss.derivative))(jnp.asarray(z), y)).reshape(40, *2 * (z[0].size,))
        noise = np.mean(np.einsum("nij,rnj->rni", at_z, (whole - z).reshape(30, 40, -1)) ** 2, axis=0)
        np.testing.assert_allclose(deviations.noise(problem), noise.reshape(z.shape), **close)
        weighted = dataclasses.replace(problem, weights=jnp.asarray(weights))
        found = deviations.curved(weighted, jnp.asarray(z + d), jnp.asarray(b))
        np.testing.assert_allclose(found, flat @ curved.ravel() / 30**0.5, **close)


def worth(families, copies, spread, seed=0, blocks=None):
    """Independent draws that 1000 particles of 10 parameters are worth: families of copies, moved by ``spread``."""
    rng = np.random.default_rng(seed)
    theta = np.repeat(rng.normal(size=(families, 10)), copies, axis=0)
    theta = np.sqrt(1 - spread**2) * theta + spread * rng.normal(size=theta.shape)
    order = rng.permutation(len(theta))
    problem = Problem.of(LINEAR, jnp.asarray(rng.normal(size=(30, 10)), float), blocks=Blocks(blocks))
    ancestors = 7 * np.repeat(np.arange(families), copies)[order]
    found = problem.outputs(jnp.asarray(theta[order], float)).deviations().independent(problem, jnp.asarray(ancestors))
    return float(found)


LINEAR = mfpda.Model(
    lambda x: x @ numpyro.sample("w", dist.Normal(0, 1).expand([10]).to_event(1)), mfpda.losses.Squared(), 1.0
)


@pytest.mark.parametrize("blocks", [None, 7])
def test_copies_are_worth_their_ancestors_and_moves_make_them_independent(blocks):
    """h = w . x. The variance of a mean of M copies of F draws is that of F draws; a full move forgets the ancestor.

    The estimate averages over 10 directions: over 20 seeds its error was at most a fifth.
    """
    assert worth(1000, 1, 0.0, blocks=blocks) == pytest.approx(1000)
    assert worth(100, 10, 0.0, blocks=blocks) == pytest.approx(100, rel=0.2)
    assert worth(100, 10, 1.0, blocks=blocks) == pytest.approx(1000, rel=0.2)
    half = 1000 / (1 + 9 * 0.5)  # copies correlate by 1 - spread^2 = 1/2
    assert worth(100, 10, np.sqrt(0.5), blocks=blocks) == pytest.approx(half, rel=0.2)


def test_the_worth_of_many_particles_does_not_overflow():
    assert worth(50_000, 1, 0.0) == pytest.approx(50_000, rel=1e-3)


def test_few_families_are_worth_little_even_if_they_seem_to_agree():
    assert worth(1, 1000, 0.3) == pytest.approx(1000 / FAMILIES)
