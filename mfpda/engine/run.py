"""A run: it begins or resumes, takes outer steps, records and certifies them."""

import functools
import time
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.distributed import Agreement, gathered, replicated, several_processes
from mfpda.engine import renewal
from mfpda.engine.outer_step import Snapshot, StepStats, outer_step, snapshot
from mfpda.engine.plan import Plan, setup_keys
from mfpda.errors import Status
from mfpda.judging import Certificate, certificate
from mfpda.persistence import HistoryStore, RunWriter, provenance
from mfpda.problem import Problem, predictions
from mfpda.progress import CERTIFICATE_STATS, Progress, Row, grown, initial_state, recorded_steps

CERTIFY = 4  # folded into the key of an outer step; its other keys are split from it
_initial_state = jax.jit(initial_state, static_argnames=("particles",))


@dataclass
class Run:
    """A run, with its ``progress`` so far."""

    plan: Plan
    progress: Progress
    reached: bool = False  # stop_at_gap
    writer: RunWriter | None = None
    began: float = field(default_factory=time.perf_counter)
    _before: Progress | None = None  # with several processes: the last step, which a failed process may still be at
    _on_devices: tuple[Problem, Problem] | None = None

    @classmethod
    def begin(cls, plan: Plan) -> "Run":
        """A new run before outer step 1, or one that resumes where an earlier run stopped."""
        earlier = plan.earlier
        if plan.saved:
            t = plan.saved.outer_steps
            problem = plan.feed.at(max(t, 1))[0]
            earlier = plan.saved.progress(problem, (plan.kernels[max(t, 1) - 1], plan.rule, plan.start))
        run = cls(plan, _resumed(plan, earlier) if earlier else _begun(plan))
        if run.progress.rows:
            run.began -= run.progress.rows[-1].stats["seconds"]
        return run

    def open_checkpoint(self) -> None:
        """Write the run to its checkpoint from now on: a new folder, or the one it resumes from."""
        plan, progress = self.plan, self.progress
        if plan.checkpoint is None:
            return
        statistics = [*plan.metrics, *(CERTIFICATE_STATS if plan.certify_every else ())]
        if plan.saved and plan.checkpoint.holds(plan.saved.folder):
            self.writer = RunWriter.reopen(plan.checkpoint, plan.saved, plan.ends, statistics)
        else:
            steps = [row.outer_step for row in progress.rows] + sorted(self._recorded_steps)
            whole = replace(progress, state=gathered(progress.state))
            self.writer = RunWriter.create(plan.checkpoint, whole, plan.identity, steps, plan.ends, statistics)
        self.progress = replace(progress, rows=tuple(self.writer.store.rows(progress.t)))

    @property
    def store(self) -> HistoryStore | None:
        return self.writer.store if self.writer else None

    @functools.cached_property
    def _recorded_steps(self) -> set[int]:
        """The outer steps to come that are recorded."""
        plan = self.plan
        return set(recorded_steps(plan.record.every, plan.certify_every, plan.ends, after=self.progress.t))

    def step(self, agreement: Agreement) -> bool:
        """Make the next outer step, record and write it. If not all is finite, change nothing and return False."""
        plan, before, spent = self.plan, self.progress, jnp.zeros(())
        t = before.t + 1
        times = renewal.factor_due(plan, before)
        if times:
            before, spent = renewal.renew(plan, before, times)
        particles = len(before.thetas)
        problem, batch = plan.feed.at(t)
        problem = plan.in_blocks(problem, particles)
        judged = plan.in_blocks(plan.feed.judged_on(t), particles) if t in self._recorded_steps else None
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
        due = self.writer is not None and self.writer.due(t)
        whole = gathered(state) if due or plan.certifies(t) else state
        thetas = gathered(thetas) if plan.metrics and taken is not None else thetas
        stats, taken = jax.device_get(gathered((stats, taken)))
        # from here on each process is by itself; if one fails, the others learn of it at the next check

        if not stats.finite or (taken is not None and not np.isfinite(taken.risk)):
            return False
        rows = before.rows
        if taken is not None:
            stats = stats._replace(gradients=stats.gradients + spent)
            row = self._row(t, stats, taken, inner_steps, thetas, problem)
            rows = (*rows, self.writer.row(row, problem.neuron) if self.writer else row)
        self._before = self.progress if several_processes() else None
        taken_steps = before.inner_steps + int(inner_steps)
        self.progress = replace(
            before, problem=problem, kernel=kernel, t=t, inner_steps=taken_steps, state=state, rows=rows
        )
        whole_progress = replace(self.progress, state=whole)
        if plan.certifies(t):  # after its row, so that nothing is lost if it fails
            self._certify(whole_progress)
        if self.writer and due:
            self.writer.write(whole_progress, Status.INTERRUPTED)
        return True

    def _row(
        self, t: int, stats: StepStats, taken: Snapshot, inner_steps: np.int32, thetas: Array, problem: Problem
    ) -> Row:
        """What is recorded of this step. The history has the first M particles, M the number the run began with."""
        plan = self.plan
        numbers: dict[str, Any] = {
            **stats.plugs,
            "risk": taken.risk,
            "second_moment": taken.second_moment,
            "stiffness": taken.stiffness,
            "particles": len(thetas),
            "step_size": stats.step_size,
            "inner_steps": inner_steps,
            "acceptance_rate": stats.acceptance_rate,
            "diverging": stats.diverging,
            "gradients": stats.gradients,
            **{name: self._measure(name, thetas, problem) for name in plan.metrics},
            "seconds": time.perf_counter() - self.began,
        }
        first = {name: taken.particles[name][: plan.settings.particles] for name in plan.sites}
        return Row(t, {name: float(number) for name, number in numbers.items()}, plan.record.thin(plan.sites, first))

    def _everywhere(self, problem: Problem) -> Problem:
        """The problem on every device. One that stays the same is copied there once."""
        known = self._on_devices[0] if self._on_devices else None
        if not (known and known.x is problem.x and known.y is problem.y and known.blocks == problem.blocks):
            self._on_devices = problem, replicated(problem, self.plan.mesh)
        assert self._on_devices is not None
        return self._on_devices[1]

    def _measure(self, name: str, thetas: Array, problem: Problem) -> float:
        try:
            return float(self.plan.metrics[name](lambda x: predictions(problem, thetas, jnp.asarray(x))))
        except Exception as error:
            raise RuntimeError(f"the metric {name!r} raised {type(error).__name__}: {error}") from error

    def finish_pending_certificate(self) -> None:
        """Issue the certificate that an interruption left pending, or note that ``stop_at_gap`` was reached."""
        plan, progress = self.plan, self.progress
        last = progress.rows[-1] if progress.rows else None
        if last is None or last.outer_step != progress.t or not plan.certifies(progress.t):
            return
        if np.isnan(last.stats.get("certified", np.nan)):
            self._certify(replace(progress, state=gathered(progress.state)))
        elif plan.stop_at_gap is not None:  # the worse of two certificates was recorded
            self.reached = bool(last.stats["gap_upper"] < plan.stop_at_gap)

    def _certify(self, progress: Progress) -> None:
        """Issue a certificate, and write it into the last row.

        Under ``stop_at_gap`` a run is judged many times, and any one certificate may be lucky. So a second certificate
        must agree, and the worse of the two is recorded.
        """
        plan, limit = self.plan, self.plan.stop_at_gap
        key = jax.random.fold_in(jax.random.fold_in(plan.key, progress.t), CERTIFY)
        first_key, second_key = jax.random.split(key)
        judged = _certificate(first_key, progress)
        self.reached = False
        if limit is not None and judged.upper < limit:
            second = _certificate(second_key, progress)
            self.reached = second.upper < limit
            judged = max(judged, second, key=lambda each: each.upper)
        *rows, last = self.progress.rows
        last = last._replace(stats=last.stats | judged.numbers)
        self.progress = replace(self.progress, rows=(*rows, last))
        if self.writer:
            self.writer.stats(last)

    def shown(self) -> dict[str, str]:
        """The numbers of the progress bar."""
        rows, plan = self.progress.rows, self.plan
        if not rows:
            return {}
        stats = rows[-1].stats
        shown = {"risk": f"{stats['risk']:.4g}", "step": f"{stats['step_size']:.2g}"}
        if plan.certify_every:
            gaps = (row.stats for row in reversed(rows) if np.isfinite(row.stats.get("gap", np.nan)))
            certified = next(gaps, None)
            if certified:
                shown["gap"] = f"{certified['gap']:.2g}+-{certified['gap_stderr']:.1g}"
        if stats["particles"] != plan.settings.particles:
            shown["particles"] = f"{stats['particles']:.0f}"
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
    values = problem.constrain(state.ensemble.theta)
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
        initial={name: np.asarray(value) for name, value in values.items()},
        rows=(),
    )


def _resumed(plan: Plan, earlier: Progress) -> Progress:
    """An earlier run with this plan: its state, its rows and its first particles."""
    t = earlier.t
    problem = plan.feed.at(max(t, 1))[0]
    return replace(
        earlier,
        problem=plan.in_blocks(problem, len(earlier.thetas)),
        rule=plan.rule,
        kernel=plan.kernels[max(t, 1) - 1],
        start=plan.start,
        settings=plan.settings,
        provenance=provenance(plan.key, plan.model),
        state=plan.placed(earlier.state),
    )


def _certificate(key: Array, progress: Progress) -> Certificate:
    particles = certificate.default_particles(progress.thetas)
    problem = progress.certified_problem.in_blocks(progress.blocks_for(particles))
    tempering = progress.start.tempering
    return certificate.certify(key, problem, progress.dual, progress.thetas, tempering, particles=particles)
