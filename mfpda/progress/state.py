"""The state of a run between two outer steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda import sampling
from mfpda.kernels import Kernel
from mfpda.problem import GibbsPotential, Problem
from mfpda.rules import Coefficients, Rule, RuleState, padded


class RunState(NamedTuple):
    """All that the next outer step needs of the last one, besides the data."""

    ensemble: sampling.Ensemble
    rule: RuleState
    coefficients: Coefficients
    batch: Array | None
    stats: sampling.SampleStats
    factor: Array  # the factor that acceptance has put on an "auto" step size


def initial_state(
    key: Array, problem: Problem, batch: Array | None, kernel: Kernel, rule: Rule, particles: int
) -> RunState:
    """The state before outer step 1: M draws of q1, no coefficients."""
    draw_key, begin_key = jax.random.split(key)
    potential = _anchored(problem, batch, rule).prior_potential()
    thetas = sampling.draw_initial(draw_key, particles, problem)
    return RunState(
        sampling.begin(begin_key, thetas, potential, kernel),
        rule.init(len(problem.x), problem.neuron.output),
        Coefficients(potential.coefficients, potential.gamma),
        batch,
        sampling.SampleStats.unmoved(particles),
        jnp.ones((), float),
    )


def current_potential(problem: Problem, rule: Rule, state: RunState) -> GibbsPotential:
    """The potential that the last outer step sampled."""
    return GibbsPotential(_anchored(problem, state.batch, rule), *state.coefficients)


def grown(state: RunState, rule: Rule, anchors: int) -> RunState:
    """The state with room for the anchors of a stream's next buffer."""
    state = state._replace(rule=rule.grow(state.rule, anchors))
    if rule.on_batch:
        return state
    return state._replace(coefficients=state.coefficients._replace(c=padded(state.coefficients.c, anchors)))


def _anchored(problem: Problem, batch: Array | None, rule: Rule) -> Problem:
    """The problem on the anchors that the rule's coefficients belong to."""
    return problem if batch is None or not rule.on_batch else problem.at(batch)
