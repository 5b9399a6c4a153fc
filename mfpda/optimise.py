"""The outer loop: one compiled step, driven from Python, where progress, recording, Ctrl-C and early stops live."""

import functools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm import tqdm

from mfpda import history, sampling, schedules, storage, tuning
from mfpda.data import DataSet, Examples, Stream, StreamFeed, feed
from mfpda.errors import InputError, RunError, Status, listed
from mfpda.fitted import Fit, RunState, constrain, current_potential, initial_state, predict, versions
from mfpda.history import Record, Row
from mfpda.kernels import KERNELS, ULA, Kernel
from mfpda.keys import as_key
from mfpda.model import Model
from mfpda.outputs import Outputs, outputs_at, stiffness
from mfpda.rules import RULES, DualAveraging, Problem, Rule
from mfpda.schedules import Schedule, positive_count
from mfpda.starts import STARTS, Start, Warm

Metrics = dict[str, Callable[[Callable[[Any], Array]], float]]


class StepStats(NamedTuple):
    """Scalars of one outer step."""

    finite: Array
    step_size: Array
    acceptance_rate: Array
    diverging: Array
    start: dict[str, Array]


@jax.jit
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
) -> tuple[RunState, StepStats]:
    """Outer step t of particle dual averaging (Algorithms 1 and 3), for any plugs. ``key`` is the run's."""
    rule_key, tune_key, start_key, inner_key = jax.random.split(jax.random.fold_in(key, t), 4)
    t = t.astype(float)
    old = current_potential(model, examples, rule, state)
    outputs = Outputs(model, state.ensemble.theta, examples.x)
    problem = Problem(examples.y, model.loss, model.temperature)
    rule_state, coefficients = rule.update(rule_key, state.rule, t, outputs, batch, problem)

    state = state._replace(rule=rule_state, coefficients=coefficients, batch=batch)
    new = current_potential(model, examples, rule, state)
    kernel = tuning.tuned(tune_key, kernel, new, state.ensemble.theta)
    ensemble, start_stats = start(start_key, state.ensemble, old, new, kernel)
    ensemble, sample_stats = sampling.run(inner_key, ensemble, new, kernel, inner_steps)

    stats = StepStats(
        finite=jnp.all(jnp.isfinite(ensemble.theta)) & jnp.all(jnp.isfinite(coefficients.c)),
        step_size=jnp.asarray(getattr(kernel, "step_size", jnp.nan)),
        acceptance_rate=jnp.mean(sample_stats.acceptance),
        diverging=jnp.sum(sample_stats.diverging),
        start=start_stats,
    )
    return state._replace(ensemble=ensemble, stats=sample_stats), stats


class Snapshot(NamedTuple):
    """What is recorded of a state; the second moment is (1/M) sum_r |theta_r|^2 in unconstrained space."""

    risk: Array
    second_moment: Array
    stiffness: Array
    particles: dict[str, Array]


@jax.jit
def snapshot(model: Model, thetas: Array, examples: Examples) -> Snapshot:
    outputs = outputs_at(model, thetas, examples.x)
    return Snapshot(
        jnp.mean(model.loss.over_rows(model.loss.value, jnp.mean(outputs, axis=0), examples.y)),
        jnp.mean(jnp.sum(jnp.square(thetas), axis=1)),
        stiffness(model, outputs, examples.y),
        constrain(model, thetas, examples.x[0]),
    )


def fit(
    key: Array,
    model: Model,
    data: Any = None,
    *,
    rule: Rule | str = DualAveraging(),
    kernel: Kernel | str = ULA(),
    start: Start | str = Warm(),
    particles: int = 500,
    outer_steps: int = 60,
    inner_steps: int | Schedule = 20,
    batch_size: int | None = None,
    record: Record = Record(),
    metrics: Metrics | None = None,
    resume: Fit | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Fit:
    """Find the distribution over theta that minimises the regularised risk, by particle dual averaging.

    Args:
        key: a JAX random key. The same key gives the same bits, whether a run is whole or stopped and resumed.
        model: the declared neuron, loss and temperature.
        data: ``(x, y)``, or ``Stream(draw)`` for one pass over a data distribution.
        rule, kernel, start: the three plugs, or their registered names.
        particles: M.
        outer_steps: the number of outer steps in all (a resumed run does what is missing).
        inner_steps: kernel steps per outer step, or a schedule of t.
        batch_size: None for the full batch, else that many examples of a shuffled epoch (of a stream: 50 by default).
        record: which outer steps, sites and particles are kept.
        metrics: functions of ``predict``, evaluated at recorded steps into ``outer_stats``.
        resume: a fit to go on from.
        progress: show a progress bar.
        throw: raise when the run fails, with the fit so far on the error; else return it with its status.

    >>> import numpyro, numpyro.distributions as dist, mfpda
    >>> def neuron(x):
    ...     return 2 * jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)))
    >>> model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature=0.01)
    >>> x = jnp.linspace(-2, 2, 50)
    >>> mfpda.fit(jax.random.key(0), model, (x, jnp.sin(x)), particles=100, outer_steps=10, progress=False)
    Fit(100 particles, 10 outer steps, risk 0.0246, finished)
    """
    key, rule, kernel, start = _checked_plugs(key, model, rule, kernel, start)
    positive_count(particles, "particles")
    positive_count(outer_steps, "outer_steps")
    kernels = tuning.plan(kernel, outer_steps)
    inner = schedules.values(inner_steps, outer_steps, "inner_steps", whole=True)
    metrics = _checked_metrics(metrics)
    start_key, data_key = jax.random.split(jax.random.fold_in(key, 0))
    done = resume.outer_steps if resume else 0
    source = feed(data_key, model, data, batch_size, resume.examples if resume else None, done)
    examples, batch = source.at(max(done, 1))
    model.check_prior(examples.x[0], rule.smallest_gamma)
    kept_sites = record.kept_sites(model.structure(examples.x[0]))

    if resume:
        _check_resumable(resume, rule, kernel, particles, outer_steps, source)
        state, initial, rows, before = resume.state, resume.initial, list(resume.rows), _seconds(resume)
    else:
        state = _begin(start_key, model, examples, batch, kernels[0], rule, particles)
        initial = _to_host(constrain(model, state.ensemble.theta, examples.x[0]))
        rows, before = [], 0.0
    status, failure, began = Status.FINISHED, None, time.perf_counter()
    bar = tqdm(total=outer_steps, initial=done, disable=not progress, desc="mfpda", unit="step", dynamic_ncols=True)
    try:
        for t in range(done + 1, outer_steps + 1):
            step_examples, batch = source.at(t)
            anchors = len(step_examples.x)
            before_step = state if anchors == len(examples.x) else _grown(state, rule, anchors)
            new, stats = outer_step(
                key, np.int32(t), before_step, step_examples, batch,
                model, kernels[t - 1], rule, start, np.int32(inner[t - 1]),
            )  # fmt: skip
            taken = snapshot(model, new.ensemble.theta, source.judged_on(t)) if record.wants(t) else None
            stats, taken = jax.device_get((stats, taken))
            if not stats.finite or (taken is not None and not np.isfinite(taken.risk)):
                status = Status.DIVERGED
                break
            if taken is not None:
                row = _row(t, stats, taken, record.thin(kept_sites, taken.particles))
                current = functools.partial(_predict_now, model, new.ensemble.theta)
                row.stats.update({name: float(metric(current)) for name, metric in metrics.items()})
                row.stats.update(inner_steps=float(inner[t - 1]), seconds=before + time.perf_counter() - began)
                rows.append(row)
                bar.set_postfix(_shown(row.stats), refresh=False)
            state, examples, done = new, step_examples, t
            bar.update()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except Exception as error:
        status, failure = Status.FAILED, error
    finally:
        bar.close()

    result = Fit(
        model=model,
        rule=rule,
        kernel=kernels[max(done, 1) - 1],
        start=start,
        examples=examples,
        is_stream=isinstance(data, Stream),
        batch_size=source.batch_size,
        outer_steps=done,
        inner_steps=int(np.sum(inner[:done])),
        state=state,
        initial=initial,
        rows=tuple(row for row in rows if row.outer_step <= done),  # Ctrl-C may fall between a row and its state
        status=status,
        attributes=_attributes(
            key, model, rule, kernel, start, inner_steps, particles, outer_steps, source.batch_size, status
        ),
    )
    if failure is not None and throw:
        raise RunError(result, f", at which {type(failure).__name__} was raised: {failure}") from failure
    if status is Status.DIVERGED and throw:
        raise RunError(result)
    return result


_begin = jax.jit(initial_state, static_argnames=("particles",))


def _grown(state: RunState, rule: Rule, anchors: int) -> RunState:
    """The state with room for the anchors of a stream's next bucket."""
    state = state._replace(rule=rule.grow(state.rule, anchors))
    if rule.on_batch:
        return state
    c = state.coefficients.c
    c = jnp.pad(c, [(0, anchors - len(c))] + [(0, 0)] * (c.ndim - 1))
    return state._replace(coefficients=state.coefficients._replace(c=c))


def _row(t: int, stats: StepStats, taken: Snapshot, particles: dict[str, np.ndarray]) -> Row:
    numbers = {
        "risk": taken.risk,
        "second_moment": taken.second_moment,
        "stiffness": taken.stiffness,
        "step_size": stats.step_size,
        "acceptance_rate": stats.acceptance_rate,
        "diverging": stats.diverging,
        **stats.start,
    }
    return Row(t, {name: float(number) for name, number in numbers.items()}, particles)


def _predict_now(model: Model, thetas: Array, x: Any) -> Array:
    return predict(model, thetas, jnp.asarray(x))


def _shown(stats: dict[str, float]) -> dict[str, str]:
    return {
        "risk": f"{stats['risk']:.4g}",
        "step": f"{stats['step_size']:.2g}",
        "accept": f"{stats['acceptance_rate']:.2f}",
    }


def _checked_plugs(key: Any, model: Any, rule: Any, kernel: Any, start: Any) -> tuple[Array, Rule, Kernel, Start]:
    key = as_key(key)
    if not isinstance(model, Model):
        raise InputError("a Model as the second argument", type(model).__name__, "Call fit(key, model, data).")
    rule, kernel, start = RULES.resolve(rule), KERNELS.resolve(kernel), STARTS.resolve(start)
    if not isinstance(rule, Rule):
        raise InputError("a rule with init, grow, update and dual", repr(rule), f"Use one of {listed(RULES)}.")
    if not isinstance(start, Start):
        raise InputError("a start, callable on an ensemble", repr(start), f"Use one of {listed(STARTS)}.")
    return key, rule, kernel, start


def _checked_metrics(metrics: Metrics | None) -> Metrics:
    metrics = metrics or {}
    taken = [name for name in metrics if name in history.OUTER_STATS]
    if taken:
        raise InputError("names of metrics other than " + listed(history.OUTER_STATS), listed(taken), "Rename them.")
    broken = [name for name, metric in metrics.items() if not callable(metric)]
    if broken:
        raise InputError("metrics that are functions of predict", listed(broken), "Give lambda predict: ..., say.")
    return metrics


def _check_resumable(
    earlier: Fit, rule: Rule, kernel: Kernel, particles: int, outer_steps: int, source: DataSet | StreamFeed
) -> None:
    """Refuse to go on with other plugs, another number of particles, or other data than the earlier run had."""
    same = {
        "rule": (type(earlier.rule).__name__, type(rule).__name__),
        "kernel": (type(earlier.kernel).__name__, type(kernel).__name__),
        "number of particles": (len(earlier.thetas), particles),
        "kind of data": (earlier.is_stream, isinstance(source, StreamFeed)),
        "batch size": (earlier.batch_size, source.batch_size),
    }
    for what, (before, now) in same.items():
        if before != now:
            raise InputError(
                f"the {what} of the run that is resumed ({before})", str(now), "Resume with the same settings."
            )
    if outer_steps < earlier.outer_steps:
        raise InputError(
            f"at least the {earlier.outer_steps} outer steps already done",
            str(outer_steps),
            "outer_steps counts them in all.",
        )
    now = source.at(earlier.outer_steps or 1)[0]
    for name, ours, theirs in zip(("x", "y"), now, earlier.examples, strict=True):
        if ours is not None and not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            raise InputError("the data of the run that is resumed", f"another {name}", "Pass the same data.")


def _attributes(
    key: Array, model: Model, rule: Any, kernel: Any, start: Any, inner_steps: Any, particles: int, outer_steps: int,
    batch_size: int | None, status: Status,
) -> dict[str, Any]:  # fmt: skip
    settings = {
        "rule": repr(rule), "kernel": repr(kernel), "start": repr(start), "particles": particles,
        "outer_steps": outer_steps,
        "inner_steps": inner_steps if isinstance(inner_steps, int) else repr(inner_steps), "batch_size": batch_size,
    }  # fmt: skip
    return {
        "creator": "mfpda",
        "format": storage.FORMAT,
        **versions(),
        "model": repr(model),
        "temperature": float(model.temperature),
        "key": json.dumps(np.asarray(jax.random.key_data(key)).tolist()),
        "settings": json.dumps(settings),
        "status": status.value,
    }


def _seconds(earlier: Fit) -> float:
    return earlier.rows[-1].stats.get("seconds", 0.0) if earlier.rows else 0.0


def _to_host(values: dict[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}
