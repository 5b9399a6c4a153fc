"""What every rule must do, as checks that any rule object can be put through."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda.exact import _updated as updated
from mfpda.problem.problem import Problem
from mfpda.rules import Coefficients, Dual, Rule
from tests.rules.grid import grid_of, view_of

N, PARTICLES = 5, 10
OUTPUTS = [(), (3,)]
STEPS = (1.0, 2.0)


@functools.cache
def model_of(outputs):
    """Outputs around the last numbers of x: h = x[2:] + 0.1 x[:2] . w."""
    sites = {"w": dist.Normal(0, 1).expand([2, *outputs]).to_event(1 + len(outputs))}
    h = lambda theta, x: x[2:].reshape(outputs) + 0.1 * jnp.tensordot(x[:2], theta["w"], axes=1)  # noqa: E731
    loss = mfpda.losses.Softmax() if outputs else mfpda.losses.Logistic()
    return mfpda.Model.from_function(h, sites, loss, 0.1)


def problem_of(outputs, n=N, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, 2 + int(np.prod(outputs))))
    y = np.arange(n) % 3 if outputs else np.where(np.arange(n) % 2, 1.0, -1.0)
    return Problem.of(model_of(outputs), jnp.asarray(x, float), jnp.asarray(y))


def thetas_of(problem, seed=0):
    return jnp.asarray(np.random.default_rng(10 + seed).standard_normal((PARTICLES, problem.neuron.size)), float)


@jax.jit
def update(rule, key, state, t, thetas, batch, problem):
    return rule.update(key, state, t, problem.outputs(thetas), batch, problem)


def batches_for(rule):
    """The batches that ``fit`` gives to this rule: None for all examples."""
    return [None] if rule.requires == "full batch" else [None, (4, 1)]


class Taken(NamedTuple):
    """Two updates from the beginning."""

    problem: Problem
    thetas: jax.Array
    seen: np.ndarray  # which anchors a batch has held
    states: list
    coefficients: list[Coefficients]


@functools.cache
def taken(rule, outputs, batch):
    problem = problem_of(outputs)
    thetas, state = thetas_of(problem), rule.init(N, outputs)
    states, coefficients, places = [state], [], None if batch is None else jnp.array(batch)
    for t in STEPS:
        state, found = update(rule, jax.random.key(int(t)), state, jnp.asarray(t), thetas, places, problem)
        states.append(state)
        coefficients.append(found)
    seen = np.ones(N, bool) if batch is None else np.isin(np.arange(N), batch)
    return Taken(problem, thetas, seen, states, coefficients)


def every_way(rule):
    """A scalar and a vector of outputs, all examples and a batch: what ``taken`` returns, with the two."""
    return [(taken(rule, outputs, batch), outputs, batch) for outputs in OUTPUTS for batch in batches_for(rule)]


def types(tree):
    return jax.tree.map(lambda part: (part.shape, part.dtype, part.weak_type), tree)


def check_it_is_frozen_data_and_prints_as_itself(rule):
    assert isinstance(rule, Rule)
    assert rule.requires in ("anything", "data set", "full batch")
    assert type(rule).__dataclass_params__.frozen
    leaves, structure = jax.tree.flatten(rule)
    assert jax.tree.unflatten(structure, leaves) == rule
    assert eval(repr(rule), {type(rule).__name__: type(rule)}) == rule


def check_coefficients_and_duals_have_the_shape_of_the_outputs(rule):
    """One coefficient per anchor and output: of the batch's anchors, if the rule says so."""
    for (_, _, seen, states, coefficients), outputs, batch in every_way(rule):
        anchors = len(batch) if rule.on_batch and batch is not None else N
        for found in coefficients:
            assert isinstance(found, Coefficients)
            assert found.c.shape == (anchors, *outputs)
            assert found.gamma.shape == ()
            assert bool(jnp.all(jnp.isfinite(found.c)))
        dual = rule.dual(states[-1])
        assert isinstance(dual, Dual)
        assert dual.g.shape == (N, *outputs)
        assert dual.mass.shape == (N,)
        np.testing.assert_array_equal(dual.mass > 0, seen)


def check_the_state_keeps_its_shapes_and_types(rule):
    """Or a run would compile its outer step twice."""
    for (_, _, _, states, _), _, _ in every_way(rule):
        assert types(states[0]) == types(states[1]) == types(states[2])


def check_gamma_is_no_smaller_than_it_says(rule):
    assert 0 < rule.smallest_gamma <= 1
    for (_, _, _, _, coefficients), _, _ in every_way(rule):
        for found in coefficients:
            assert rule.smallest_gamma * (1 - 1e-6) <= float(found.gamma) <= 1


def check_the_dual_is_feasible(rule):
    """The conjugate is finite at every anchor that a batch has held."""
    for (problem, _, seen, states, _), _, _ in every_way(rule):
        for state in states[1:]:
            conjugates = problem.per_example(problem.loss.conjugate, rule.dual(state).g)
            assert bool(jnp.all(jnp.isfinite(conjugates[seen])))


def check_stats_are_scalars_by_name(rule):
    """The same names before the first step, which is where ``fit`` looks for names that are taken."""
    for (_, _, _, states, _), _, _ in every_way(rule):
        names = list(rule.stats(states[0]))
        for state in states[1:]:
            recorded = rule.stats(state)
            assert list(recorded) == names
            assert all(isinstance(name, str) for name in recorded)
            assert all(isinstance(value, jax.Array) and value.shape == () for value in recorded.values())


def check_predictions_of_a_rule_belong_to_its_dual(rule):
    """l'(u) = g where a rule knows better predictions u than its particles make. Before step 1 it knows none."""
    assert rule.predictions(rule.init(N, ())) is None
    for (problem, _, _, states, _), outputs, _ in every_way(rule):
        for state in states:
            u = rule.predictions(state)
            if u is not None:
                assert u.shape == (N, *outputs)
                np.testing.assert_allclose(problem.derivative(u), rule.dual(state).g, rtol=1e-5, atol=1e-6)


def check_the_particles_sample_the_fitted_density(rule):
    """c_i = w_i g_i wherever gamma is 1: what the kernel samples is the density that the dual stands for."""
    for (problem, _, seen, states, coefficients), _, _ in every_way(rule):
        for state, (c, gamma) in zip(states[1:], coefficients, strict=True):
            if gamma == 1 and not rule.on_batch:
                g = rule.dual(state).g
                expected = problem.weights.reshape(-1, *[1] * (g.ndim - 1)) * g
                np.testing.assert_allclose(c[seen], expected[seen], rtol=1e-5, atol=1e-7)


def check_growing_keeps_the_dual(rule):
    """Where streams are allowed: new anchors have no mass yet, and the next step goes on as if they were not there."""
    if rule.requires != "anything":
        return
    for (problem, thetas, seen, states, _), outputs, batch in every_way(rule):
        before, state = rule.dual(states[-1]), rule.grow(states[-1], 2 * N)
        assert types(state) == types(rule.init(2 * N, outputs))
        g, mass = rule.dual(state)
        np.testing.assert_array_equal(g, jnp.concatenate([before.g, jnp.zeros_like(before.g)]))
        np.testing.assert_array_equal(mass > 0, [*seen, *[False] * N])
        if batch is None:
            continue  # a stream has batches
        places = jnp.concatenate([jnp.arange(N), jnp.zeros(N, int)])
        larger = Problem.of(problem.model, problem.x[places], problem.y[places])
        arguments = jax.random.key(3), states[-1], jnp.asarray(3.0), thetas, jnp.array(batch)
        there = update(rule, *arguments, problem)
        here = update(rule, *(state if each is states[-1] else each for each in arguments), larger)
        np.testing.assert_allclose(rule.dual(here[0]).g[:N], rule.dual(there[0]).g, rtol=1e-6)
        np.testing.assert_allclose(here[1].c[: len(there[1].c)], there[1].c, rtol=1e-6)
        np.testing.assert_array_equal(here[1].c[len(there[1].c) :], 0)


def check_nothing_compiles_again(rule):
    """Another step, another state, other particles, another temperature, other numbers of the rule: one compilation."""
    taken(rule, (), None)
    compiled, state = update._cache_size(), rule.init(N, ())
    numbers = {name: 0.9 * value for name, value in rule.settings_by_name.items() if isinstance(value, float)}
    for number, each in enumerate((rule, dataclasses.replace(rule, **numbers))):
        warmer = jax.tree.map(lambda temperature, factor=1 + number: factor * temperature, model_of(()))
        problem = dataclasses.replace(problem_of((), seed=number), model=warmer)
        for t in STEPS:
            now = jnp.asarray(t + number)
            state, _ = update(each, jax.random.key(number), state, now, thetas_of(problem, number), None, problem)
    assert update._cache_size() == compiled


def check_float64(rule):
    with jax.enable_x64(True):
        problem = problem_of(())
        arguments = jax.random.key(0), rule.init(N, ()), jnp.asarray(1.0), thetas_of(problem), None, problem
        state, coefficients = jax.eval_shape(update, rule, *arguments)
        numbers = jax.tree.leaves((arguments[1], state, coefficients))
        assert {part.dtype for part in numbers if jnp.issubdtype(part.dtype, jnp.floating)} == {jnp.dtype("float64")}


def check_it_ends_at_the_optimum(rule):
    """Shown the law of the exact optimum again and again, by quadrature: its dual becomes the optimum's, and gamma 1.

    Leave this check out for a rule that is meant to end elsewhere.
    """
    grid = grid_of("tanh_squared", 31)
    best = grid.optimum()
    with jax.enable_x64(True):
        state, view = rule.init(len(grid.x), ()), view_of(grid, best.law)
        for t in range(1, 81):
            now, key = jnp.asarray(float(t)), jax.random.key(t)
            state, (c, gamma) = updated(rule, key, state, now, view, None, grid.problem)
        g = rule.dual(state).g
    size = np.abs(best.dual).max()
    np.testing.assert_allclose(g, best.dual, atol=1e-3 * size)
    np.testing.assert_allclose(c, best.dual / len(grid.x), atol=1e-3 * size / len(grid.x))
    assert float(gamma) > 0.95


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
