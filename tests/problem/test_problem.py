"""A model bound to its examples: what is on the one object that everything works on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.problem.binding import bind
from mfpda.problem.blocks import Blocks
from mfpda.problem.problem import Problem, predictions

pytestmark = pytest.mark.quick

N, M = 24, 7


def h(theta, x):
    return 2 * jnp.tanh(x @ theta["w"] + theta["b"])


def neuron_of(dimensions):
    return {"w": dist.Normal(0, 1).expand([dimensions - 1]).to_event(1), "b": dist.Normal(0, 1)}


MODEL = mfpda.Model.from_function(h, neuron_of(2), mfpda.losses.Squared(), 0.1)


def problem_of(seed=0, model=MODEL, width=1):
    """N examples, whose weights differ, of a neuron whose inputs have this width."""
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((N, width)), np.sign(random.standard_normal(N))
    problem = Problem.of(model, jnp.asarray(x, float), jnp.asarray(y, float))
    return dataclasses.replace(problem, weights=jnp.asarray(random.dirichlet(np.ones(N)), float))


@pytest.fixture
def thetas():
    return jax.random.normal(jax.random.key(0), (M, 2))


def test_bound_or_made_it_is_the_same_problem(thetas):
    x, y = np.linspace(-1, 1, N)[:, None], np.sin(np.arange(N))
    made, bound = Problem.of(MODEL, jnp.asarray(x, float), jnp.asarray(y, float)), bind(MODEL, x, y)
    assert jax.tree.structure(made) == jax.tree.structure(bound)
    for ours, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(bound), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(made.weights, np.full(N, 1 / N))
    assert made.loss is MODEL.loss
    assert made.temperature == 0.1
    assert repr(made) == f"Problem(Model(h, loss=Squared, temperature=0.1), {N} examples)"


def test_risk_is_weighted_and_what_weighs_nothing_may_be_infinite():
    problem, z = problem_of(), jnp.linspace(-1, 1, N)
    losses = 0.5 * np.square(z - problem.y)
    np.testing.assert_allclose(problem.risk(z), np.dot(problem.weights, losses), rtol=1e-5)
    assert abs(float(problem.risk(z)) - losses.mean()) > 1e-3  # the weights do matter here
    half = dataclasses.replace(problem, weights=problem.weights.at[3].set(0))
    expected = np.dot(np.delete(problem.weights, 3), np.delete(losses, 3))
    for free in (jnp.nan, jnp.inf):
        np.testing.assert_allclose(half.risk(z.at[3].set(free)), expected, rtol=1e-5)


@pytest.mark.parametrize("rows", [slice(2, 9), np.array([5, 5, 1]), jnp.array([0])], ids=["slice", "places", "one"])
def test_some_examples_keep_the_weights_they_have(rows):
    problem = problem_of()
    some = problem.at(rows)
    for name in ("x", "y", "weights"):
        np.testing.assert_array_equal(getattr(some, name), getattr(problem, name)[rows])
    assert (some.model, some.neuron, some.blocks) == (problem.model, problem.neuron, problem.blocks)
    unlabelled = dataclasses.replace(problem, y=None).at(rows)
    assert unlabelled.y is None
    assert len(unlabelled.x) == len(some.x)


def test_the_loss_of_a_batch_is_that_of_its_examples(thetas):
    problem, batch = problem_of(), jnp.array([4, 0, 21])
    z = predictions(problem, thetas)
    np.testing.assert_array_equal(problem.derivative(z), z - problem.y)
    np.testing.assert_array_equal(problem.derivative(z[batch], batch), (z - problem.y)[batch])
    np.testing.assert_array_equal(
        problem.per_example(problem.loss.value, z[batch], batch), problem.per_example(problem.loss.value, z)[batch]
    )
    unlabelled = mfpda.Model.from_function(h, neuron_of(2), lambda z, y: z**2, 0.1)
    free = Problem.of(unlabelled, problem.x)
    np.testing.assert_allclose(jax.jit(free.derivative)(z[batch], batch), 2 * z[batch], rtol=1e-6)


def test_weights_of_a_batch_are_unbiased():
    """Over the N / b batches of an epoch the mean of sum_i in batch (w_i N / b) v_i is sum_i w_i v_i, exactly."""
    problem, values = problem_of(), np.random.default_rng(1).standard_normal(N)
    np.testing.assert_array_equal(problem.batch_weights(None), problem.weights)
    batches = np.random.default_rng(2).permutation(N).reshape(4, 6)
    estimates = [np.dot(problem.batch_weights(batch), values[batch]) for batch in batches]
    np.testing.assert_allclose(np.mean(estimates), np.dot(problem.weights, values), rtol=1e-4)
    assert np.ptp(estimates) > 0.1


def test_in_blocks_it_is_the_same_problem(thetas):
    problem = problem_of()
    blocked = problem.in_blocks(Blocks(5))
    assert blocked.blocks == Blocks(5)
    assert problem.in_blocks(Blocks(N)).blocks == Blocks()
    assert blocked.at(slice(0, 5)).in_blocks(Blocks(5)).blocks == Blocks()
    direction = jnp.cos(jnp.arange(N))
    whole = 2 * np.tanh(np.outer(thetas[:, 0], problem.x[:, 0]) + thetas[:, 1:])
    project = jax.jit(lambda problem, thetas: problem.projections(thetas, direction))
    np.testing.assert_allclose(problem.outputs_at(thetas, problem.x), whole, rtol=1e-5, atol=1e-6)
    for each in (problem, blocked):
        np.testing.assert_allclose(predictions(each, thetas), whole.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(predictions(each, thetas, each.x[3:14]), whole.mean(0)[3:14], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(project(each, thetas), whole @ direction, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(problem.predict(thetas), whole.mean(0), rtol=1e-5, atol=1e-6)


def test_the_prior_does_not_depend_on_x():
    """log p0 is the sites' own, also where h has no value at any input; its gradient too."""
    problem, theta = problem_of(), jnp.array([0.4, -1.3])
    log_prior = jax.jit(jax.value_and_grad(lambda theta, problem: problem.log_prior(theta)))
    expected = -np.sum(np.square(theta)) / 2 - np.log(2 * np.pi)
    poles = mfpda.Model.from_function(
        lambda theta, x: jnp.log(x[0] * theta["b"]) / x[0], neuron_of(2), mfpda.losses.Squared(), 0.1
    )
    others = [dataclasses.replace(problem, x=x) for x in (-problem.x[::-1], 1e3 * problem.x, problem.x * jnp.nan)]
    for each in (problem, *others, Problem.of(poles, jnp.zeros((3, 1)))):
        value, gradient = log_prior(theta, each)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        np.testing.assert_allclose(gradient, -theta, rtol=1e-6)


@pytest.mark.parametrize("name", ["draw_prior", "draw_initial"])
def test_draws_do_not_depend_on_x_either(name):
    draw = jax.jit(lambda problem, key: getattr(problem, name)(key))
    problem, key = problem_of(), jax.random.key(0)
    for x in (-problem.x[::-1], problem.x * jnp.nan):
        np.testing.assert_array_equal(draw(dataclasses.replace(problem, x=x), key), draw(problem, key))


def test_it_is_a_pytree_and_compiles_once_for_other_data_of_equal_shape(thetas):
    """Other inputs, labels, weights and another temperature: one program. Other blocks and another model: others."""

    @jax.jit
    def seen(problem, thetas):
        z = problem.predict(thetas)
        return problem.risk(z), problem.stiffness(thetas, z), problem.potential(z, 0.5)(thetas[0])

    warmer = mfpda.Model(MODEL.declaration.neuron, mfpda.losses.Squared(), 0.7)
    found = [seen(problem, thetas) for problem in (problem_of(0), problem_of(1), problem_of(0, warmer))]
    assert seen._cache_size() == 1
    assert len({float(risk) for risk, _, _ in found}) == 2
    np.testing.assert_allclose(found[2][1] * 7, found[0][1], rtol=1e-5)  # kappa falls with T
    seen(problem_of(0).in_blocks(Blocks(5)), thetas)
    assert seen._cache_size() == 2
    seen(problem_of(0, mfpda.Model(MODEL.declaration.neuron, mfpda.losses.Logistic(), 0.1)), thetas)
    assert seen._cache_size() == 3


def test_it_goes_through_a_tree_map_unchanged():
    problem = problem_of()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, problem)
    assert isinstance(doubled, Problem)
    np.testing.assert_array_equal(doubled.x, 2 * problem.x)
    assert float(doubled.temperature) == pytest.approx(0.2)
    assert (doubled.neuron, doubled.blocks) == (problem.neuron, problem.blocks)


@pytest.mark.parametrize(("dimensions", "loss"), [(2, mfpda.losses.Squared()), (12, mfpda.losses.Logistic())])
def test_stiffness_is_the_largest_eigenvalue(dimensions, loss):
    """Against all eigenvalues of C diag(w l''(z)) / T, the weights unequal. Lanczos never finds more."""
    model = mfpda.Model.from_function(h, neuron_of(dimensions), loss, 0.02)
    problem = problem_of(model=model, width=dimensions - 1)
    thetas = jax.random.normal(jax.random.key(0), (200, dimensions))
    outputs = np.asarray(jax.jit(problem.outputs_at)(thetas, problem.x), float)
    z = outputs.mean(0)
    second = np.ones(N) if isinstance(loss, mfpda.losses.Squared) else np.exp(-z) / (1 + np.exp(-z)) ** 2
    weighted = np.cov(outputs.T, bias=True) * (np.asarray(problem.weights) * second)
    truth = np.linalg.eigvals(weighted / 0.02).real.max()
    stiffness = jax.jit(lambda problem: problem.stiffness(thetas, jnp.asarray(z, float)))
    assert float(stiffness(problem)) <= truth * (1 + 1e-5)
    assert float(stiffness(problem)) == pytest.approx(truth, rel=1e-3)
    equal = dataclasses.replace(problem, weights=jnp.full(N, 1 / N))
    assert abs(float(stiffness(equal)) / truth - 1) > 0.01  # the weights do matter here
