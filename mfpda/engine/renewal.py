"""Redrawing the particles of a run: when it happens, how many are drawn, and how.

A rule that averages noise over steps (``DualNewton``) may ask for fresh particles, tempered from the prior: old ones
keep the mode shares of the first steps. Under ``stop_at_gap`` the number of particles may also double.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda import sampling
from mfpda.distributed import agreed, gathered
from mfpda.engine.plan import Plan
from mfpda.kernels import Kernel
from mfpda.problem import Problem
from mfpda.progress import Progress, RunState, current_potential
from mfpda.rules import Rule
from mfpda.sampling import Tempering, tuning

FEWEST_AVERAGED = 5  # steps that a rule averages before its particles may double
LARGEST_FACTOR = 32  # the number of particles grows at most this many-fold
FEWEST_TEMPERED = 50  # fewer particles cannot tell how far a step in temperature may go
RENEW = 5  # folded into the key of an outer step; its other keys are split from it


def factor_due(plan: Plan, progress: Progress) -> int:
    """The factor by which a renewal before the next step multiplies the particles. 0 means no renewal.

    The answer depends on the state and on recorded rows alone, so that a resumed run finds the same.
    """
    due, averaged = gathered(plan.rule.renewal(progress.state.rule))
    if _needs_more(plan, progress, float(averaged)):
        return 2
    return int(bool(due) and not plan.start.draws_fresh)


def _needs_more(plan: Plan, progress: Progress, averaged: float) -> bool:
    """Whether the particles should double to reach ``stop_at_gap``."""
    if plan.stop_at_gap is None or averaged == 0:
        return False
    last = progress.rows[-1] if progress.rows else None
    needed = (
        last is not None
        and last.outer_step == progress.t
        and 2 * len(progress.thetas) <= LARGEST_FACTOR * plan.settings.particles
        and out_of_reach(last.stats, averaged, max(plan.ends) - last.outer_step, plan.stop_at_gap)
    )
    return bool(agreed(int(needed)))


def out_of_reach(stats: Mapping[str, float], averaged: float, left: int, stop_at_gap: float) -> bool:
    """Whether the gap of a certified step would stay above ``stop_at_gap`` after averaging over the steps left.

    The noise in the gap falls like 1 / ``averaged``, the number of averaged steps, if the particles mix between steps.
    """
    gap = stats.get("gap", np.nan)
    if averaged < FEWEST_AVERAGED or not np.isfinite(gap):
        return False
    return bool(gap * averaged / (averaged + left) + (stats["gap_upper"] - gap) >= stop_at_gap)


def renew(plan: Plan, progress: Progress, times: int) -> tuple[Progress, Array]:
    """The run's state with ``times * M`` fresh particles, and the gradients spent for each."""
    state, t = gathered(progress.state), progress.t
    problem = plan.in_blocks(progress.problem, times * len(state.ensemble.theta))
    key = jax.random.fold_in(jax.random.fold_in(plan.key, t), RENEW)
    ensemble, gradients = temper_again(
        key, problem, state, plan.rule, plan.kernels[t], plan.start.tempering, times=times
    )
    stats = sampling.SampleStats.unmoved(len(ensemble.theta))
    state = state._replace(ensemble=ensemble, stats=stats, rule=plan.rule.renewed(state.rule, times))
    return replace(progress, problem=problem, state=plan.placed(state)), gradients


@functools.partial(jax.jit, static_argnames="times")
def temper_again(
    key: Array,
    problem: Problem,
    state: RunState,
    rule: Rule,
    kernel: Kernel,
    tempering: Tempering,
    times: int,
) -> tuple[sampling.Ensemble, Array]:
    """``times * M`` freshly tempered particles of the present potential; the old ones, tiled, if tempering failed."""
    temper_key, choose_key, tune_key, begin_key = jax.random.split(key, 4)
    potential, old = current_potential(problem, rule, state), state.ensemble.theta
    asked = times * len(old)
    particles = max(asked, FEWEST_TEMPERED)
    thetas, how = tempering.sample(temper_key, potential, particles)
    fresh = jax.random.choice(choose_key, thetas, (asked,), replace=False)
    thetas = jnp.where(how.sound(particles), fresh, jnp.tile(old, (times, 1)))
    kernel, _ = tuning.tuned(tune_key, kernel, potential, thetas, state.factor)
    gradients = how.gradients * particles / asked + kernel.adjusted  # an adjusted kernel evaluates one to begin
    return sampling.begin(begin_key, thetas, potential, kernel), gradients
