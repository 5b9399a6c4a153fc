"""The outer loop: one compiled step, driven from Python, where progress, recording, Ctrl-C and early stops live."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm import tqdm

from mfpda import fingerprint, history, sampling, schedules, storage, tuning
from mfpda.data import DataSet, Examples, StreamFeed, feed
from mfpda.errors import InputError, RunError, Status, listed
from mfpda.fitted import Fit, RunState, constrain, current_potential, initial_state, predict, versions
from mfpda.history import Record, Row
from mfpda.kernels import KERNELS, ULA, Kernel
from mfpda.kernels.protocol import is_adjusted
from mfpda.keys import as_key
from mfpda.model import Model
from mfpda.outputs import Outputs, outputs_at, stiffness
from mfpda.rules import RULES, DualAveraging, Problem, Rule
from mfpda.schedules import Schedule, positive, positive_count
from mfpda.starts import STARTS, Start, Warm

CERTIFY = 4  # folded into the key of an outer step for its certificate; its other keys are split from it
CERTIFY_EVERY = 10  # where stop_at_gap is given alone
Metrics = dict[str, Callable[[Callable[[Any], Array]], float]]


class StepStats(NamedTuple):
    """Scalars of one outer step."""

    finite: Array
    step_size: Array
    acceptance_rate: Array
    diverging: Array
    gradients: Array
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
    kernel, retuned = tuning.tuned(tune_key, kernel, new, state.ensemble.theta, state.step_size)
    ensemble, start_stats = start(start_key, state.ensemble, old, new, kernel)
    ensemble, sample_stats, kernel = sampling.run(inner_key, ensemble, new, kernel, inner_steps, retuned)

    step_size = tuning.step_size_of(kernel)
    finite = jnp.all(jnp.isfinite(ensemble.theta)) & jnp.all(jnp.isfinite(coefficients.c))
    if not is_adjusted(kernel):  # nothing corrects a step that would have left the finite numbers
        finite &= ~jnp.any(sample_stats.diverging)
    stats = StepStats(
        finite=finite,
        step_size=step_size,
        acceptance_rate=jnp.mean(sample_stats.acceptance),
        diverging=jnp.sum(sample_stats.diverging),
        gradients=jnp.mean(sample_stats.gradients) + is_adjusted(kernel) + start_stats.pop("gradients", 0),
        start=start_stats,
    )
    return state._replace(ensemble=ensemble, stats=sample_stats, step_size=step_size), stats


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
    certify_every: int = 0,
    stop_at_gap: float | None = None,
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
        certify_every: every how many outer steps (and after the last) ``fit.certify`` is asked, and its gap recorded in
            ``outer_stats``; 0 for never.
        stop_at_gap: stop when the upper bound on the gap is below this, in two independent certificates of one step;
            asked for every 10 outer steps unless ``certify_every`` says otherwise.
        resume: a fit to go on from.
        progress: show a progress bar.
        throw: raise when the run fails, with the fit so far on the error; else return it with its status.

    >>> import numpyro, numpyro.distributions as dist, mfpda
    >>> def neuron(x):
    ...     return 2 * jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)))
    >>> model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature=0.01)
    >>> x = jnp.linspace(-2, 2, 50)
    >>> mfpda.fit(jax.random.key(0), model, (x, jnp.sin(x)), particles=100, outer_steps=10, progress=False)
    Fit(100 particles, 10 outer steps, risk 0.0..., finished)
    """
    key, rule, kernel, start = _checked_plugs(key, model, rule, kernel, start)
    if resume is not None and not isinstance(resume, Fit):
        raise InputError("a Fit to resume", type(resume).__name__, "Load a saved one with mfpda.load(path, model).")
    if not isinstance(record, Record):
        raise InputError("a Record", repr(record), "Give Record(every=10), say.")
    particles, outer_steps = positive_count(particles, "particles"), positive_count(outer_steps, "outer_steps")
    certify_every, stop_at_gap = _checked_certifying(certify_every, stop_at_gap)
    start_key, data_key = jax.random.split(jax.random.fold_in(key, 0))
    earlier = (resume.examples, resume.outer_steps) if resume else (None, 0)
    source = feed(data_key, model, data, batch_size, *earlier)
    if resume:
        _check_resumable(resume, model, rule, kernel, particles, outer_steps, source)
    row = source.at(max(earlier[1], 1))[0].x[0]
    model.check_prior(row, rule.smallest_gamma)
    run = _Run(
        key=key,
        model=model,
        source=source,
        rule=rule,
        kernels=tuning.plan(kernel, outer_steps),
        start=start,
        inner_steps=schedules.values(inner_steps, outer_steps, "inner_steps", whole=True),
        record=record,
        sites=record.kept_sites(model.structure(row)),
        metrics=_checked_metrics(metrics),
        certify_every=certify_every,
        stop_at_gap=stop_at_gap,
        settings={
            "rule": repr(rule),
            "kernel": repr(kernel),
            "start": repr(start),
            "particles": particles,
            "outer_steps": outer_steps,
            "inner_steps": inner_steps if isinstance(inner_steps, int) else repr(inner_steps),
            "batch_size": source.batch_size,
        },
    )
    if resume:
        run.go_on_from(resume)
    else:
        run.begin(start_key, particles)

    status, failure = Status.FINISHED, None
    bar = tqdm(total=outer_steps, initial=run.place.t, disable=not progress, desc="mfpda", unit="step")
    try:
        while run.place.t < outer_steps:
            if not run.step():
                status = Status.DIVERGED
                break
            bar.set_postfix(run.shown(), refresh=False)
            bar.update()
            if run.reached:
                status = Status.CERTIFIED
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except Exception as error:
        status, failure = Status.FAILED, error
    finally:
        bar.close()

    result = run.fit(status)
    if failure is not None and throw:
        raise RunError(result, f", at which {type(failure).__name__} was raised: {failure}") from failure
    if status is Status.DIVERGED and throw:
        finite = bool(jnp.all(jnp.isfinite(result.predict(result.examples.x))))
        raise RunError(result, "" if finite else ": h(theta, x) is not finite at the particles it began with")
    return result


class _Place(NamedTuple):
    """Where a run stands: after outer step t. One value, so that Ctrl-C finds the old place or the new one."""

    t: int
    state: RunState
    examples: Examples


@dataclass
class _Run:
    """A run in progress: what it was given, where it stands, what it has recorded."""

    key: Array
    model: Model
    source: DataSet | StreamFeed
    rule: Rule
    kernels: list[Kernel]
    start: Start
    inner_steps: np.ndarray
    record: Record
    sites: tuple[str, ...]
    metrics: Metrics
    certify_every: int
    stop_at_gap: float | None
    settings: dict[str, Any]
    reached: bool = False  # stop_at_gap
    place: _Place = field(init=False)
    initial: dict[str, np.ndarray] = field(init=False)
    rows: list[Row] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def begin(self, key: Array, particles: int) -> None:
        """M draws of q1, before outer step 1."""
        examples, batch = self.source.at(1)
        state = _initial_state(key, self.model, examples, batch, self.kernels[0], self.rule, particles)
        values = constrain(self.model, state.ensemble.theta, examples.x[0])
        self.initial = {name: np.asarray(value) for name, value in values.items()}
        self.place = _Place(0, state, examples)

    def go_on_from(self, earlier: Fit) -> None:
        self.initial, self.rows = earlier.initial, list(earlier.rows)
        self.place = _Place(earlier.outer_steps, earlier.state, earlier.examples)
        if earlier.rows:
            self.began -= earlier.rows[-1].stats["seconds"]

    def step(self) -> bool:
        """The next outer step, recorded. False, and nothing changed, when it left the finite numbers."""
        t = self.place.t + 1
        examples, batch = self.source.at(t)
        anchors, state = len(examples.x), self.place.state
        if anchors != len(self.place.examples.x):
            state = _grown(state, self.rule, anchors)
        kernel, inner_steps = self.kernels[t - 1], np.int32(self.inner_steps[t - 1])
        state, stats = outer_step(
            self.key, np.int32(t), state, examples, batch, self.model, kernel, self.rule, self.start, inner_steps
        )
        thetas = state.ensemble.theta
        taken = snapshot(self.model, thetas, self.source.judged_on(t)) if self._recorded(t) else None
        stats, taken = jax.device_get((stats, taken))
        if not stats.finite or (taken is not None and not np.isfinite(taken.risk)):
            return False
        if taken is not None:
            numbers = {
                **stats.start,
                "risk": taken.risk,
                "second_moment": taken.second_moment,
                "stiffness": taken.stiffness,
                "step_size": stats.step_size,
                "inner_steps": inner_steps,
                "acceptance_rate": stats.acceptance_rate,
                "diverging": stats.diverging,
                "gradients": stats.gradients,
                **{name: _measured(name, metric, self.model, thetas) for name, metric in self.metrics.items()},
                "seconds": time.perf_counter() - self.began,
            }
            numbers = {name: float(number) for name, number in numbers.items()}
            self.rows.append(Row(t, numbers, self.record.thin(self.sites, taken.particles)))
        self.place = _Place(t, state, examples)
        if self._certifies(t):  # last, so that nothing is lost if it fails
            gap, self.reached = self._certified()
            self.rows[-1] = self.rows[-1]._replace(stats=self.rows[-1].stats | gap)
        return True

    def _recorded(self, t: int) -> bool:
        return self.record.wants(t) or t == len(self.kernels) or self._certifies(t)

    def _certifies(self, t: int) -> bool:
        return bool(self.certify_every) and (t % self.certify_every == 0 or t == len(self.kernels))

    def _certified(self) -> tuple[dict[str, float], bool]:
        """The certificate of the fit so far, as recorded, and whether stop_at_gap is reached.

        A run is looked at again and again, and each look may be lucky: a second certificate has to agree, and the worse
        of the two is recorded.
        """
        fit, eps = self.fit(Status.FINISHED), self.stop_at_gap
        first_key, second_key = jax.random.split(
            jax.random.fold_in(jax.random.fold_in(self.key, self.place.t), CERTIFY)
        )
        certificate = fit.certify(first_key)
        if eps is None or not certificate.upper < eps:
            return certificate.numbers, False
        second = fit.certify(second_key)
        return max(certificate, second, key=lambda each: each.upper).numbers, second.upper < eps

    def shown(self) -> dict[str, str]:
        """The numbers of the progress bar."""
        if not self.rows:
            return {}
        stats = self.rows[-1].stats
        shown = {"risk": f"{stats['risk']:.4g}", "step": f"{stats['step_size']:.2g}"}
        certified = next((row.stats for row in reversed(self.rows) if np.isfinite(row.stats.get("gap", np.nan))), None)
        if certified:
            shown["gap"] = f"{certified['gap']:.2g}+-{certified['gap_stderr']:.1g}"
        if is_adjusted(self.kernels[0]):
            shown["accept"] = f"{stats['acceptance_rate']:.2f}"
        return shown

    def fit(self, status: Status) -> Fit:
        """Everything so far, as what the user gets."""
        t, state, examples = self.place
        attributes = {
            "creator": "mfpda",
            "format": storage.FORMAT,
            **versions(),
            "model": repr(self.model),
            "temperature": float(self.model.temperature),
            "key": json.dumps(np.asarray(jax.random.key_data(self.key)).tolist()),
            "settings": json.dumps(self.settings),
            "status": status.value,
        }
        return Fit(
            model=self.model,
            rule=self.rule,
            kernel=self.kernels[max(t, 1) - 1],
            start=self.start,
            examples=examples,
            is_stream=self.source.is_stream,
            batch_size=self.source.batch_size,
            outer_steps=t,
            inner_steps=int(np.sum(self.inner_steps[:t])),
            state=state,
            initial=self.initial,
            rows=tuple(row for row in self.rows if row.outer_step <= t),  # Ctrl-C may fall between a row and its place
            status=status,
            attributes=attributes,
        )


_initial_state = jax.jit(initial_state, static_argnames=("particles",))


def _measured(name: str, metric: Callable[..., Any], model: Model, thetas: Array) -> float:
    try:
        return float(metric(lambda x: predict(model, thetas, jnp.asarray(x))))
    except Exception as error:
        raise RuntimeError(f"the metric {name!r} raised {type(error).__name__}: {error}") from error


def _grown(state: RunState, rule: Rule, anchors: int) -> RunState:
    """The state with room for the anchors of a stream's next bucket."""
    state = state._replace(rule=rule.grow(state.rule, anchors))
    if rule.on_batch:
        return state
    c = state.coefficients.c
    c = jnp.pad(c, [(0, anchors - len(c))] + [(0, 0)] * (c.ndim - 1))
    return state._replace(coefficients=state.coefficients._replace(c=c))


def _checked_plugs(key: Any, model: Any, rule: Any, kernel: Any, start: Any) -> tuple[Array, Rule, Kernel, Start]:
    key = as_key(key)
    if not isinstance(model, Model):
        raise InputError("a Model as the second argument", type(model).__name__, "Call fit(key, model, data).")
    rule, kernel, start = RULES.resolve(rule), KERNELS.resolve(kernel), STARTS.resolve(start)
    if not isinstance(rule, Rule):
        raise InputError("a rule with init, grow, update and dual", repr(rule), f"Use one of {listed(RULES)}.")
    if not isinstance(start, Start):
        raise InputError("a start, callable on an ensemble", repr(start), f"Use one of {listed(STARTS)}.")
    for plug in (rule, start):
        tuning.check_pytree(plug)
    return key, rule, kernel, start


def _checked_certifying(every: Any, stop_at_gap: Any) -> tuple[int, float | None]:
    if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 0:
        raise InputError("a whole number as certify_every", repr(every), "Give 10, say, or 0 for never.")
    if stop_at_gap is None:
        return int(every), None
    return int(every) or CERTIFY_EVERY, positive(stop_at_gap, "stop_at_gap")


def _checked_metrics(metrics: Metrics | None) -> Metrics:
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, dict):
        raise InputError(
            "metrics as a dict of functions of predict", type(metrics).__name__, 'Give {"name": function}.'
        )
    odd = [name for name in metrics if not isinstance(name, str) or "/" in name]
    if odd:
        raise InputError("names of metrics that are strings without '/'", listed(odd), "Netcdf has no other names.")
    recorded = history.OUTER_STATS + history.CERTIFICATE_STATS
    taken = [name for name in metrics if name in recorded]
    if taken:
        raise InputError("names of metrics other than " + listed(recorded), listed(taken), "Rename them.")
    broken = [name for name, metric in metrics.items() if not callable(metric)]
    if broken:
        raise InputError("metrics that are functions of predict", listed(broken), "Give lambda predict: ..., say.")
    return metrics


def _check_resumable(
    earlier: Fit,
    model: Model,
    rule: Rule,
    kernel: Kernel,
    particles: int,
    outer_steps: int,
    source: DataSet | StreamFeed,
) -> None:
    """Refuse to go on with another model, other plugs, another number of particles or other data than the run had."""
    same = {
        "kind of data": ("a stream" if earlier.is_stream else "(x, y)", "a stream" if source.is_stream else "(x, y)"),
        "rule": (repr(earlier.rule), repr(rule)),
        "kernel": (KERNELS.name_of(earlier.kernel), KERNELS.name_of(kernel)),
        "particles": (len(earlier.thetas), particles),
        "batch_size": (earlier.batch_size, source.batch_size),
    }
    for what, (before, now) in same.items():
        if before != now:
            raise InputError(f"the {what} of the run that is resumed, {before}", str(now), f"Pass its {what} again.")
    if outer_steps < earlier.outer_steps:
        done = f"at least the {earlier.outer_steps} outer steps already done"
        raise InputError(done, str(outer_steps), "outer_steps counts them in all.")
    examples = source.at(earlier.outer_steps or 1)[0]
    for name, ours, theirs in zip(("x", "y"), examples, earlier.examples, strict=True):
        if ours is not None and not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            raise InputError("the data of the run that is resumed", f"another {name}", "Pass the same data.")
    fingerprint.check_names(model, examples.x[0], fingerprint.names(earlier.model, examples.x[0]))
    values = fingerprint.values(earlier.model, earlier.thetas, examples)
    fingerprint.check_values(model, earlier.thetas, examples, values)
