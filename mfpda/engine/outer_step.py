"""The outer step of particle dual averaging, and what is recorded of a state: the two compiled parts of a run."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from mfpda import sampling
from mfpda.distributed.mesh import on_each
from mfpda.kernels import Kernel
from mfpda.kernels.base import is_adjusted
from mfpda.problem.data import Examples
from mfpda.problem.model import Model
from mfpda.problem.outputs import Outputs, predictions, stiffness
from mfpda.results.fit import RunState, constrain, current_potential
from mfpda.rules import Problem, Rule
from mfpda.sampling import tuning
from mfpda.starts import Start


class StepStats(NamedTuple):
    """Scalars of one outer step."""

    finite: Array
    step_size: Array
    acceptance_rate: Array
    diverging: Array
    gradients: Array
    plugs: dict[str, Array]  # what the rule and the start tell of it


@functools.partial(jax.jit, static_argnames=("mesh",))
def outer_step(
    key: Array,
    t: Array,
    state: RunState,
    examples: Examples,
    batch: Array | None,
    model: Model,
    kernel: Kernel,
    rule: Rule,
    start: Start,
    inner_steps: Array,
    mesh: Mesh | None = None,
) -> tuple[RunState, StepStats]:
    """Outer step t of particle dual averaging (Algorithms 1 and 3), for any plugs. ``key`` is the run's.

    Particles of one device and of another meet in the predictions that the rule asks for, in tuning and in the start;
    not in the inner loop, in which the kernel's numbers are fixed.
    """
    rule_key, tune_key, start_key, inner_key = jax.random.split(jax.random.fold_in(key, t), 4)
    t = t.astype(float)
    old = current_potential(model, examples, rule, state)
    outputs = Outputs(model, state.ensemble.theta, examples.x, examples.blocks)
    problem = Problem(examples.y, model.loss, model.temperature)
    rule_state, coefficients = rule.update(rule_key, state.rule, t, outputs, batch, problem)

    state = state._replace(rule=rule_state, coefficients=coefficients, batch=batch)
    new = current_potential(model, examples, rule, state)
    kernel, retuned = tuning.tuned(tune_key, kernel, new, state.ensemble.theta, state.factor)
    ensemble, start_stats = start(start_key, state.ensemble, old, new, kernel)
    keys = sampling.particle_keys(inner_key, len(ensemble.theta))
    inner_loop = on_each(mesh, lambda *arguments: sampling.run_with(*arguments)[:2])
    ensemble, sample_stats = inner_loop(keys, ensemble, inner_key, new, kernel, inner_steps)

    step_size, factor = tuning.step_size_of(kernel), state.factor
    if retuned:
        followed = tuning.towards_target(kernel, sample_stats.acceptance, ensemble.theta, tuning.GAIN_OF_A_LOOP)
        factor = factor * tuning.step_size_of(followed) / step_size
    finite = jnp.all(jnp.isfinite(ensemble.theta)) & jnp.all(jnp.isfinite(coefficients.c))
    if not is_adjusted(kernel):  # nothing corrects a step that would have left the finite numbers
        finite &= ~jnp.any(sample_stats.diverging)
    stats = StepStats(
        finite=finite,
        step_size=step_size,
        acceptance_rate=jnp.mean(sample_stats.acceptance),
        diverging=jnp.sum(sample_stats.diverging),
        gradients=jnp.mean(sample_stats.gradients) + is_adjusted(kernel) + start_stats.pop("gradients", 0),
        plugs=(rule.stats(rule_state) if hasattr(rule, "stats") else {}) | start_stats,
    )
    return state._replace(ensemble=ensemble, stats=sample_stats, factor=factor), stats


class Snapshot(NamedTuple):
    """What is recorded of a state; the second moment is (1/M) sum_r |theta_r|^2 in unconstrained space."""

    risk: Array
    second_moment: Array
    stiffness: Array
    particles: dict[str, Array]


@jax.jit
def snapshot(model: Model, thetas: Array, examples: Examples) -> Snapshot:
    z = predictions(model, thetas, examples.x, examples.blocks)
    return Snapshot(
        jnp.mean(model.loss.over_rows(model.loss.value, z, examples.y)),
        jnp.mean(jnp.sum(jnp.square(thetas), axis=1)),
        stiffness(model, thetas, examples, z),
        constrain(model, thetas, examples.x[0]),
    )
