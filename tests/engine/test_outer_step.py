"""The outer step: how often it is compiled, and which potential it samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import Stream
from mfpda.core import schedules
from mfpda.engine import outer_step
from mfpda.kernels import KernelInfo
from mfpda.progress import current_potential
from mfpda.starts import Moved
from tests.helpers import draw


def test_a_run_with_growing_inner_steps_compiles_once_and_a_second_one_not_at_all(small):
    before = outer_step.outer_step._cache_size()
    arguments = {
        "rule": "dual_averaging",
        "kernel": mfpda.ULA(step_size=schedules.InverseSqrt(0.01)),
        "particles": 23,
        "outer_steps": 50,
        "inner_steps": schedules.Linear(1),
        "progress": False,
    }
    mfpda.fit(jax.random.key(0), small.model, small.data, **arguments)
    assert outer_step.outer_step._cache_size() == before + 1
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    mfpda.fit(jax.random.key(1), small.model, small.data, **arguments)
    hotter = mfpda.Model(small.model.declaration.neuron, small.model.loss, temperature=0.5)
    mfpda.fit(jax.random.key(1), hotter, small.data, **arguments)
    jax.monitoring.clear_event_listeners()
    assert outer_step.outer_step._cache_size() == before + 1
    assert compiled == []


@pytest.mark.slow
def test_a_stream_of_a_hundred_steps_compiles_at_most_eight_times(small):
    before = outer_step.outer_step._cache_size()
    arguments = {"particles": 11, "outer_steps": 100, "inner_steps": 2, "batch_size": 3, "progress": False}
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), **arguments)
    assert outer_step.outer_step._cache_size() - before <= 8
    assert len(fit.potential.anchors) == 300


@pytest.mark.slow
def test_a_stream_is_the_weighted_problem_on_its_anchors(small):
    """c_i = 2 s l'(z_i) / (b t (t+1)) for an anchor of batch s: the weights of the design."""
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), batch_size=5, **small.quick)
    t, s = 8, np.repeat(np.arange(1, 9), 5)
    weights = 2 * s / (5 * t * (t + 1))
    np.testing.assert_allclose(fit.potential.coefficients, weights * np.asarray(fit.dual)[:40], rtol=1e-5)
    np.testing.assert_allclose(fit.state.coefficients.c[:40], fit.potential.coefficients, rtol=1e-5)
    np.testing.assert_array_equal(fit.state.coefficients.c[40:], 0)
    theta = fit.thetas[0]
    potential = current_potential(fit.progress.problem, fit.rule, fit.state)
    np.testing.assert_allclose(potential(theta), 8 / 10 * fit.potential(theta), rtol=1e-5)


def test_latest_on_a_stream_sees_the_last_batch_only(small):
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), batch_size=5, **small.quick | {"rule": "latest"})
    potential = current_potential(fit.progress.problem, fit.rule, fit.state)
    np.testing.assert_array_equal(potential.anchors, fit.problem.x[35:40])
    assert len(fit.potential.anchors) == 40


class Counted(NamedTuple):
    theta: jax.Array
    step: jax.Array


class Rising(mfpda.Kernel):
    """Step k = 0, 1, ... of an inner loop is accepted with chance k / 10, and has k gradients."""

    def init(self, key, theta, potential):
        return Counted(theta, jnp.zeros(()))

    def step(self, key, state, potential):
        k = state.step
        return Counted(state.theta, k + 1), KernelInfo(potential(state.theta), k / 10, k < 0, k)


def test_acceptance_is_a_mean_over_steps(small):
    """Of 0, 0.1, 0.2, 0.3 and 0.4 in every outer step. Gradients are a sum, 0 + 1 + 2 + 3 + 4."""
    arguments = small.quick | {"inner_steps": 5, "outer_steps": 3}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=Rising(), **arguments)
    np.testing.assert_allclose([row.stats["acceptance_rate"] for row in fit.rows], 0.2, rtol=1e-6)
    np.testing.assert_allclose([row.stats["gradients"] for row in fit.rows], 10, rtol=1e-6)


class Fails(mfpda.Start):
    """Says that it could not sample the new density. It moves the particles on its lucky steps only."""

    sound: float = 0.0

    def __call__(self, key, thetas, old, new):
        sound = jnp.asarray(self.sound) > 0
        return Moved(jnp.where(sound, thetas + 1, thetas), sound=sound)


class Contradicts(mfpda.DualNewton):
    """Newton's rule whose particles always contradict its steps."""

    def allows(self, state, outputs, problem):
        return jnp.zeros((), bool)


def test_a_step_that_is_taken_back_leaves_dual_potential_and_particles(small):
    """If the start fails or the particles contradict the step, only the longest step that may follow changes."""
    arguments = {"rule": "dual_newton", "particles": 50, "inner_steps": 1, "progress": False}
    kernel = mfpda.MALA(step_size=1e-6)  # particles stay where a start puts them
    begun = mfpda.fit(
        jax.random.key(0), small.model, small.data, start="warm", kernel=kernel, outer_steps=3, **arguments
    )
    step = lambda start, rule=begun.rule: outer_step.outer_step(  # noqa: E731
        jax.random.key(1), np.int32(4), begun.state, begun.problem, None, begun.kernel, rule, start, np.int32(1)
    )
    (taken, stats), refusals = step(Fails(1.0)), [step(Fails(0.0)), step(Fails(1.0), Contradicts())]
    assert [bool(each.plugs["taken"]) for each in (stats, *(stats for _, stats in refusals))] == [True, False, False]
    for refused, _ in refusals:
        longest = begun.state.rule._replace(longest=refused.rule.longest)
        before = begun.state._replace(rule=longest)
        for kept, old in zip(jax.tree.leaves(refused), jax.tree.leaves(before), strict=True):
            np.testing.assert_array_equal(kept, old)
    assert np.abs(taken.rule.g - begun.state.rule.g).max() > 0
    expected = 1.0 if taken.rule.settled > 1 else taken.rule.alpha / 2
    assert all(refused.rule.longest == expected for refused, _ in refusals)
    assert np.abs(taken.ensemble.theta - begun.state.ensemble.theta).min() > 0.9


def test_other_rules_ignore_that_a_start_failed(small):
    arguments = {"rule": "dual_averaging", "particles": 50, "outer_steps": 3, "progress": False}
    failed, warm = (
        mfpda.fit(jax.random.key(0), small.model, small.data, start=start, **arguments) for start in (Fails(), "warm")
    )
    np.testing.assert_array_equal(failed.dual, warm.dual)
