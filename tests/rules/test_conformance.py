"""What every registered rule must do, and the one that the guide on extensions declares."""

import dataclasses
import doctest
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.problem.problem import Problem
from mfpda.rules import RULES, Rule
from tests.rules.conformance import CHECKS, OUTPUTS, batches_for, problem_of, taken, thetas_of, update

ON_THE_COVARIANCE = ("dual_newton", "dual_coordinate_ascent")  # others linearise at z itself


GUIDE = Path(__file__).parents[2] / "tutorials" / "guides" / "extending.md"


def from_the_guide():
    """The one rule that the guide declares, as a new user would type it in."""
    namespace = {}
    for example in doctest.DocTestParser().get_examples(GUIDE.read_text()):
        if re.match(r"import |from |class \w+\(mfpda.Rule\)", example.source):
            exec(example.source, namespace)
    (rule,) = (each for each in namespace.values() if isinstance(each, type) and Rule in each.__bases__)
    return rule


NAMES = [*RULES, "guide"]


@functools.cache
def named(name):
    return from_the_guide()() if name == "guide" else RULES[name]()


@pytest.fixture(params=NAMES, scope="module")
def rule(request):
    return named(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(rule, check):
    check(rule)


@pytest.mark.parametrize("name", RULES)
def test_a_registered_rule_prints_as_mfpda_has_it(name):
    assert eval(repr(RULES[name]()), vars(mfpda)) == RULES[name]()


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize(("name", "batch"), [(name, batch) for name in NAMES for batch in batches_for(named(name))])
def test_particles_that_stay_have_their_linearisation_as_dual(name, batch, outputs):
    """After two steps of the same particles: l'(z), at the anchors that a batch has held."""
    rule = named(name)
    problem, thetas, seen, states, _ = taken(rule, outputs, batch)
    derivative = problem.derivative(problem.outputs(thetas).mean())[seen]
    g = rule.dual(states[-1]).g[seen]
    if name in ON_THE_COVARIANCE:  # l' at predictions that the new g itself moves a little
        np.testing.assert_allclose(g, derivative, atol=0.02)
    else:
        np.testing.assert_allclose(g, derivative, rtol=1e-5)


COUNTS = np.array([1, 3, 2, 1, 2])  # of the examples of a weighted problem, among as many that weigh the same


def weighted_and_repeated(outputs):
    """One problem twice: with weights 1/9, 3/9, ..., and with each example as often as that. And where each went."""
    problem, copies = problem_of(outputs), np.repeat(np.arange(len(COUNTS)), COUNTS)
    repeated = Problem.of(problem.model, problem.x[copies], problem.y[copies])
    return dataclasses.replace(problem, weights=jnp.asarray(COUNTS / COUNTS.sum(), float)), repeated, copies


WEIGHTED = [
    pytest.param(name, outputs, marks=[pytest.mark.slow] * (name == "dual_newton" and outputs != ()))
    for name in NAMES
    for outputs in OUTPUTS
    if name != "dual_coordinate_ascent"
]


@pytest.mark.parametrize(("name", "outputs"), WEIGHTED)
def test_an_example_of_double_weight_is_two_examples(name, outputs):
    """Coefficients of copies add up, their duals are the same. (Coordinate ascent has a step of its own for each.)"""
    rule, (problem, repeated, copies) = named(name), weighted_and_repeated(outputs)
    thetas, found = thetas_of(problem), []
    for each in (problem, repeated):
        state = rule.init(len(each.x), outputs)
        for t in (1.0, 2.0):
            state, (c, gamma) = update(rule, jax.random.key(0), state, jnp.asarray(t), thetas, None, each)
        found.append((state, np.asarray(c), float(gamma)))
    (state, c, gamma), (of_copies, c_of_copies, gamma_of_copies) = found
    np.testing.assert_allclose(c[copies] / COUNTS[copies].reshape(-1, *[1] * len(outputs)), c_of_copies, rtol=1e-4)
    assert gamma == gamma_of_copies
    np.testing.assert_allclose(rule.dual(state).g[copies], rule.dual(of_copies).g, rtol=1e-4)
    np.testing.assert_array_equal(rule.dual(state).mass[copies], rule.dual(of_copies).mass)
    for number, value in rule.stats(state).items() if name in RULES else ():  # the guide's is a plain mean
        np.testing.assert_allclose(value, rule.stats(of_copies)[number], rtol=1e-4, err_msg=number)
    assert np.abs(c / np.max(np.abs(c)) - _evenly(rule, problem, thetas, outputs)).max() > 0.1  # weights matter


def _evenly(rule, problem, thetas, outputs):
    """The coefficients with equal weights, over the largest."""
    even, state = dataclasses.replace(problem, weights=jnp.full(5, 0.2)), rule.init(5, outputs)
    for t in (1.0, 2.0):
        state, (c, _) = update(rule, jax.random.key(0), state, jnp.asarray(t), thetas, None, even)
    return np.asarray(c) / np.max(np.abs(c))
