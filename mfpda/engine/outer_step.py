"""The outer step of particle dual averaging, and what is recorded of a state: the two compiled parts of a run."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from mfpda import sampling
from mfpda.distributed import on_each
from mfpda.kernels import Kernel
from mfpda.problem import Problem
from mfpda.progress import RunState, current_potential
from mfpda.rules import Rule
from mfpda.sampling import tuning
from mfpda.starts import Start, move


class StepStats(NamedTuple):
    """Scalars of one outer step."""

    finite: Array
    step_size: Array
    acceptance_rate: Array
    diverging: Array
    gradients: Array
    plugs: dict[str, Array]  # the statistics of the rule and the start


@functools.partial(jax.jit, static_argnames=("mesh",))
def outer_step(
    key: Array,
    t: Array,
    state: RunState,
    problem: Problem,
    batch: Array | None,
    kernel: Kernel,
    rule: Rule,
    start: Start,
    inner_steps: Array,
    mesh: Mesh | None = None,
) -> tuple[RunState, StepStats]:
    """Outer step t of particle dual averaging (Algorithms 1 and 3), for any plugs. ``key`` is the run's.

    A rule may take its step back if the start cannot sample the new density, or if the new particles contradict the
    step. Then potential and particles stay as they were.

    Devices exchange data for the predictions that the rule needs, for tuning and for the start. The inner loop needs
    no exchange, because the kernel's numbers are fixed there.
    """
    rule_key, tune_key, start_key, inner_key = jax.random.split(jax.random.fold_in(key, t), 4)
    t = t.astype(float)
    old = current_potential(problem, rule, state)
    outputs = problem.outputs(state.ensemble.theta)
    rule_state, coefficients = rule.update(rule_key, state.rule, t, outputs, batch, problem)

    proposed = jnp.all(jnp.isfinite(coefficients.c))
    before, state = state, state._replace(rule=rule_state, coefficients=coefficients, batch=batch)
    new = current_potential(problem, rule, state)
    kernel, retune = tuning.tuned(tune_key, kernel, new, state.ensemble.theta, state.factor)
    ensemble, moved = move(start_key, start, state.ensemble, old, new, kernel)
    keys = sampling.particle_keys(inner_key, len(ensemble.theta))
    inner_loop = on_each(mesh, lambda *arguments: sampling.run_with(*arguments)[:2])
    ensemble, sample_stats = inner_loop(keys, ensemble, inner_key, new, kernel, inner_steps)

    step_size, factor = tuning.recorded_step_size(kernel), state.factor
    if retune:
        followed = tuning.towards_target(kernel, sample_stats.acceptance, ensemble.theta, tuning.GAIN_OF_A_LOOP)
        factor = factor * tuning.recorded_step_size(followed) / step_size
    finite = jnp.all(jnp.isfinite(ensemble.theta)) & proposed
    if not kernel.adjusted:  # nothing corrects a step that would have left the finite numbers
        finite &= ~jnp.any(sample_stats.diverging)
    state = state._replace(ensemble=ensemble, stats=sample_stats, factor=factor)
    plugs = moved.stats
    if rule.takes_back:
        taken = moved.sound & rule.allows(rule_state, problem.outputs(ensemble.theta), problem)
        back = before._replace(rule=rule.taken_back(before.rule, rule_state))
        state = jax.tree.map(lambda new, old: jnp.where(taken, new, old), state, back)
        plugs = plugs | {"taken": taken}  # 0 if the step was taken back
    stats = StepStats(
        finite=finite,
        step_size=step_size,
        acceptance_rate=jnp.mean(sample_stats.acceptance),
        diverging=jnp.sum(sample_stats.diverging),
        gradients=jnp.mean(sample_stats.gradients) + kernel.adjusted + moved.gradients,
        plugs=rule.stats(state.rule) | plugs,
    )
    return state, stats


class Snapshot(NamedTuple):
    """What is recorded of a state. The second moment is (1/M) sum_r |theta_r|^2 in unconstrained space."""

    risk: Array
    second_moment: Array
    stiffness: Array
    particles: dict[str, Array]


@jax.jit
def snapshot(problem: Problem, thetas: Array) -> Snapshot:
    z = problem.predict(thetas)
    return Snapshot(
        problem.risk(z),
        jnp.mean(jnp.sum(jnp.square(thetas), axis=1)),
        problem.stiffness(thetas, z),
        problem.constrain(thetas),
    )
