"""A run: it begins or resumes, takes outer steps, records and certifies them."""

import functools
import time
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda import sampling
from mfpda.distributed import Agreement, gathered, replicated, several_processes
from mfpda.engine.outer_step import Snapshot, StepStats, outer_step, snapshot
from mfpda.engine.plan import Plan, setup_keys
from mfpda.errors import CertificateStatus, Status
from mfpda.judging import Certificate, Target, certify, part_of_error
from mfpda.persistence import Contents, HistoryStore, RunWriter, SavedRun, provenance
from mfpda.problem import Problem, predictions, runs_away
from mfpda.progress import (
    CERTIFICATE_STATS,
    Progress,
    Row,
    RunState,
    current_potential,
    grown,
    initial_state,
    recorded_steps,
)
from mfpda.sampling import FEWEST_TEMPERED

PRIOR = 2  # folded into the key of the first particles; its other keys are split from it
CERTIFY = 4  # folded into the key of an outer step; its other keys are split from it
LEVEL = 0.99  # of all certificates of a run together
PATIENCE = 3  # certificates without a smaller bound that end a run which is to be certified
_initial_state = jax.jit(initial_state, static_argnames=("particles",))
_draw_prior = jax.jit(sampling.draw_prior, static_argnames=("particles",))


@dataclass
class Run:
    """A run, with its ``progress`` so far."""

    plan: Plan
    progress: Progress
    best: Progress | None = None  # the state with the smallest bound so far
    writer: RunWriter | None = None
    began: float = field(default_factory=time.perf_counter)
    _before: Progress | None = None  # with several processes: the last step, which a failed process may still be at
    _on_devices: tuple[Problem, Problem] | None = None

    @classmethod
    def begin(cls, plan: Plan) -> "Run":
        """A new run before outer step 1, or one that resumes where an earlier run stopped."""
        saved, earlier = plan.saved, plan.earlier
        best = earlier if earlier and earlier.certificate else None
        if saved:
            earlier = _read(plan, saved, saved.latest)
            best = _read(plan, saved, saved.best) if saved.best else None
        run = cls(plan, _resumed(plan, earlier) if earlier else _begun(plan))
        run.best = replace(_resumed(plan, best), state=best.state) if best else None
        if run.progress.rows:
            run.began -= run.progress.rows[-1].stats["seconds"]
        return run

    def open_checkpoint(self) -> None:
        """Write the run to its checkpoint from now on: a new folder, or the one it resumes from."""
        plan, progress = self.plan, self.progress
        if plan.checkpoint is None:
            return
        statistics = [*plan.metrics, *(() if plan.certify_every == 0 else CERTIFICATE_STATS)]
        if plan.saved and plan.checkpoint.holds(plan.saved.folder):
            self.writer = RunWriter.reopen(plan.checkpoint, plan.saved, plan.ends, statistics)
        else:
            steps = [row.outer_step for row in progress.rows] + sorted(self._recorded_steps)
            whole = replace(progress, state=gathered(progress.state))
            self.writer = RunWriter.create(plan.checkpoint, whole, plan.identity, steps, plan.ends, statistics)
            if self.best:
                self.writer.best(self.best)
        self.progress = replace(progress, rows=tuple(self.writer.store.rows(progress.t)))

    @property
    def store(self) -> HistoryStore | None:
        return self.writer.store if self.writer else None

    @functools.cached_property
    def _recorded_steps(self) -> set[int]:
        """The outer steps to come that are recorded."""
        plan = self.plan
        return set(recorded_steps(plan.record.every, plan.certify_every, plan.ends, after=self.progress.t))

    def step(self, agreement: Agreement) -> Status | None:
        """Make the next outer step, record and write it. If it cannot be taken, change nothing and return why."""
        plan, before = self.plan, self.progress
        t = before.t + 1
        problem, batch = plan.feed.at(t)
        judged = plan.feed.judged_on(t) if t in self._recorded_steps else None
        agreement.check()  # from here on the processes compute together
        state = before.state
        if len(problem.x) != len(before.problem.x):
            state = grown(state, plan.rule, len(problem.x))
        kernel, inner_steps = plan.kernels[t - 1], np.int32(plan.inner_steps[t - 1])
        plugs = kernel, plan.rule, plan.start
        everywhere = self._everywhere(problem)
        state, stats = outer_step(plan.key, np.int32(t), state, everywhere, batch, *plugs, inner_steps, mesh=plan.mesh)
        thetas = state.ensemble.theta
        taken = None if judged is None else snapshot(self._everywhere(judged), thetas)
        escapes = None if taken is None else runs_away(current_potential(everywhere, plan.rule, state), thetas)
        due = self.writer is not None and self.writer.due(t)
        measured = bool(plan.metrics) and taken is not None
        whole = gathered(state) if due or measured or plan.certifies(t) else state
        stats, taken, escapes = jax.device_get(gathered((stats, taken, escapes)))
        # from here on each process is by itself; if one fails, the others learn of it at the next check

        if not stats.finite or (taken is not None and not np.isfinite(taken.risk)):
            return Status.DIVERGED
        if taken is not None and escapes.any():
            return Status.IMPROPER
        after = replace(
            before,
            problem=problem,
            kernel=kernel,
            t=t,
            inner_steps=before.inner_steps + int(inner_steps),
            state=state,
            certificate=None,
        )
        if taken is not None:
            # metrics see the particles of the fit that would end here, calibrated if its rule calibrates
            metrics = self._measured(replace(after, state=whole)) if measured else {}
            row = self._row(t, stats, taken, inner_steps, metrics)
            after = replace(after, rows=(*before.rows, self.writer.row(row, problem.neuron) if self.writer else row))
        self._before = self.progress if several_processes() else None
        self.progress = after
        if plan.certifies(t):  # after its row, so that nothing is lost if it fails
            self._certify(whole)
        if self.writer and due:
            self.writer.write(replace(self.progress, state=whole), Status.INTERRUPTED)
        return None

    def _row(self, t: int, stats: StepStats, taken: Snapshot, inner_steps: np.int32, metrics: dict[str, float]) -> Row:
        """What is recorded of this step."""
        plan = self.plan
        numbers: dict[str, Any] = {
            **stats.plugs,
            "risk": taken.risk,
            "second_moment": taken.second_moment,
            "stiffness": taken.stiffness,
            "particles": plan.settings.particles,
            "step_size": stats.step_size,
            "inner_steps": inner_steps,
            "acceptance_rate": stats.acceptance_rate,
            "diverging": stats.diverging,
            "gradients": stats.gradients,
            **metrics,
            "seconds": time.perf_counter() - self.began,
        }
        particles = plan.record.thin(plan.sites, taken.particles)
        return Row(t, {name: float(number) for name, number in numbers.items()}, particles)

    def _everywhere(self, problem: Problem) -> Problem:
        """The problem on every device. One that stays the same is copied there once."""
        known = self._on_devices[0] if self._on_devices else None
        if not (known and known.x is problem.x and known.y is problem.y and known.blocks == problem.blocks):
            self._on_devices = problem, replicated(problem, self.plan.mesh)
        assert self._on_devices is not None
        return self._on_devices[1]

    def _measured(self, progress: Progress) -> dict[str, float]:
        """The user's metrics of this state."""
        found, predict = {}, lambda x: predictions(progress.problem, progress.thetas, jnp.asarray(x))
        for name, metric in self.plan.metrics.items():
            try:
                found[name] = float(metric(predict))
            except Exception as error:
                raise RuntimeError(f"the metric {name!r} raised {type(error).__name__}: {error}") from error
        return found

    def finish_pending_certificate(self) -> None:
        """Issue the certificate that an interruption left pending."""
        progress = self.progress
        last = progress.rows[-1] if progress.rows else None
        pending = last is not None and last.outer_step == progress.t and progress.certificate is None
        if pending and self.plan.certifies(progress.t):
            self._certify(gathered(progress.state))

    def _certify(self, whole: RunState) -> None:
        """Certify the present state, gathered from all devices, and write the numbers into its row.

        The k-th certificate of a run has the level 1 - 0.01 / (k (k + 1)), so that all of them hold together at level
        0.99.
        """
        plan, progress = self.plan, self.progress
        *rows, last = progress.rows
        count = 1 + sum(np.isfinite(row.stats.get("certified", np.nan)) for row in rows)
        key = jax.random.fold_in(jax.random.fold_in(plan.key, progress.t), CERTIFY)
        level, target = 1 - part_of_error(1 - LEVEL, count), plan.target or Target()
        judged = _certificate(key, replace(progress, state=whole), level, target)
        last = last._replace(stats=last.stats | judged.numbers)
        if self.writer:
            self.writer.stats(last)  # first: if this is interrupted, the certificate is pending and is issued again
        self.progress = replace(progress, rows=(*rows, last), certificate=judged)
        if self.best is None or judged.upper <= _upper(self.best):
            self.best = replace(self.progress, state=whole)
            if self.writer:
                self.writer.best(self.best)

    @property
    def certified(self) -> bool:
        """Whether the bound on the present state is as small as was asked for."""
        judged, target = self.progress.certificate, self.plan.target
        if judged is None or target is None:
            return False
        return judged.upper <= target.bound(judged.winnable_lower, judged.temperature)

    @property
    def stalled(self) -> bool:
        """Whether the last certificates of a run that is to be certified brought no smaller bound.

        Dual averaging overshoots at first, so its bounds count only after twice the stiffness.
        """
        progress = self.progress
        first = 2 * progress.stiffness if self.plan.rule.overshoots else 0
        stats = [row.stats for row in progress.rows if np.isfinite(row.stats.get("certified", np.nan))]
        judged = progress.certificate is not None  # a run ends at a certificate, not between two of them
        if not (self.plan.settings.until_certified and judged) or len(stats) <= PATIENCE or progress.t < first:
            return False
        bounds = [each["gap_upper"] if each["certified"] else np.inf for each in stats]
        return not min(bounds[-PATIENCE:]) < min(bounds[:-PATIENCE])

    @property
    def status(self) -> Status:
        """How the run has ended, if nothing broke it off."""
        if self.plan.target is None:
            return Status.FINISHED
        if self.certified:
            return Status.CERTIFIED
        judged = self.best_result.certificate
        if judged is None or judged.status is not CertificateStatus.CERTIFIED:
            return Status.NO_BOUND
        if judged.worse_than_prior:
            return Status.WORSE_THAN_PRIOR
        return Status.STALLED if self.stalled else Status.OUT_OF_STEPS

    @property
    def best_result(self) -> Progress:
        """The certified state with the smallest bound, or the present state if none was certified."""
        return self.best or self.progress

    @property
    def better_before(self) -> Progress | None:
        """An earlier state whose bound is clearly below the gap of the present one, if there is one."""
        judged, best = self.progress.certificate, self.best
        if judged is None or best is None or best.certificate is None:
            return None
        lower = 2 * judged.gap - judged.upper  # as far below the estimate as the bound is above it
        return best if best.certificate.upper < lower else None

    def shown(self) -> dict[str, str]:
        """The numbers of the progress bar."""
        rows, plan = self.progress.rows, self.plan
        if not rows:
            return {}
        stats = rows[-1].stats
        shown = {"risk": f"{stats['risk']:.4g}", "step": f"{stats['step_size']:.2g}"}
        bounds = [row.stats for row in rows if np.isfinite(row.stats.get("gap_upper", np.nan))]
        if bounds:
            shown["gap"] = f"<={bounds[-1]['gap_upper']:.2g} (asked {bounds[-1]['gap_asked']:.2g})"
        if plan.kernels[0].adjusted:
            shown["accept"] = f"{stats['acceptance_rate']:.2f}"
        return shown

    def step_back_to(self, t: int) -> None:
        """Return to the outer step that all processes have reached."""
        if self._before is not None and t < self.progress.t:
            self.progress = self._before

    def close(self, status: Status) -> Exception | None:
        """Gather the state, write the last checkpoint, and return the error if that failed."""
        self.progress = replace(self.progress, state=gathered(self.progress.state))
        if self.writer:
            try:
                self.writer.write(self.progress, status)
                self.writer.wait()
            except Exception as error:
                return error
        return None


def _begun(plan: Plan) -> Progress:
    """M draws of q1, before outer step 1."""
    problem, batch = plan.feed.at(1)
    start_key, _ = setup_keys(plan.key)
    state = _initial_state(start_key, problem, batch, plan.kernels[0], plan.rule, plan.settings.particles)
    initial = _values(problem, state.ensemble.theta)
    return Progress(
        problem=problem,
        rule=plan.rule,
        kernel=plan.kernels[0],
        start=plan.start,
        settings=plan.settings,
        is_stream=plan.feed.is_stream,
        provenance=provenance(plan.key, plan.model),
        t=0,
        inner_steps=0,
        state=plan.placed(state),
        initial=initial,
        prior=_prior_draws(start_key, problem, plan.settings.particles) if plan.model.has_init else initial,
        rows=(),
    )


def _prior_draws(start_key: Array, problem: Problem, particles: int) -> dict[str, np.ndarray]:
    return _values(problem, _draw_prior(jax.random.fold_in(start_key, PRIOR), particles, problem))


def _values(problem: Problem, thetas: Array) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in problem.constrain(thetas).items()}


def _read(plan: Plan, saved: SavedRun, contents: Contents) -> Progress:
    """A state of a saved run."""
    t = max(int(contents.facts["outer_steps"]), 1)
    return saved.progress(plan.feed.at(t)[0], (plan.kernels[t - 1], plan.rule, plan.start), contents)


def _resumed(plan: Plan, earlier: Progress) -> Progress:
    """An earlier run with this plan: its state, its rows, its first particles and its draws of the prior."""
    t = earlier.t
    problem = plan.feed.at(max(t, 1))[0]
    return replace(
        earlier,
        problem=problem,
        rule=plan.rule,
        kernel=plan.kernels[max(t, 1) - 1],
        start=plan.start,
        settings=plan.settings,
        provenance=provenance(plan.key, plan.model),
        state=plan.placed(earlier.state),
    )


def _certificate(key: Array, progress: Progress, level: float, target: Target) -> Certificate:
    return certify(
        key,
        progress.certified_problem.in_blocks(progress.blocks_for(FEWEST_TEMPERED)),
        progress.dual,
        progress.thetas,
        tempering=progress.start.tempering,
        level=level,
        stiffness=progress.stiffness,
        target=target,
    )


def _upper(progress: Progress) -> float:
    return np.inf if progress.certificate is None else progress.certificate.upper
