"""A run in progress: what it was given, where it stands, what it has recorded."""

import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from mfpda import sampling
from mfpda.distributed.mesh import Agreement, agreed, gathered, replicated, several_processes, spread
from mfpda.engine.keeping import Keeper
from mfpda.engine.outer_step import outer_step, snapshot
from mfpda.errors import Status
from mfpda.kernels import KERNELS, Kernel
from mfpda.kernels.base import is_adjusted
from mfpda.persistence import checkpoint as checkpoints
from mfpda.persistence import files as storage
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.problem import blocks
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import DataSet, Examples, StreamFeed
from mfpda.problem.model import Model
from mfpda.progress import history
from mfpda.progress.history import Record, Row
from mfpda.results.fit import Fit, RunState, constrain, current_potential, initial_state, predict, versions
from mfpda.results.loading import Kept
from mfpda.rules import RULES, Rule
from mfpda.rules.base import grown
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Start, Temper

SETTLED = 5  # steps that a rule averages before it may ask for more particles
MOST_WIDENED = 32  # times as many as it began with
FEWEST_RENEWED = 50  # fewer cannot tell how far a step in temperature may go: so many are tempered, some of them taken
CERTIFY, RENEW = 4, 5  # folded into the key of an outer step; its other keys are split from it
Metrics = dict[str, Callable[[Callable[[Any], Array]], float]]


class Place(NamedTuple):
    """Where a run stands: after outer step t. One value, so that Ctrl-C finds the old place or the new one."""

    t: int
    state: RunState
    examples: Examples


@dataclass
class Run:
    """A run in progress."""

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
    ends: list[int]  # the lengths that were asked for, one after another: each ends with a recorded step
    mesh: Mesh | None
    reached: bool = False  # stop_at_gap
    place: Place = field(init=False)
    before: Place | None = None  # with several processes: where one that fails while it records still stands
    initial: dict[str, np.ndarray] = field(init=False)
    rows: list[Row] = field(default_factory=list)
    keeper: Keeper | None = None
    began: float = field(default_factory=time.perf_counter)
    _examples: tuple[Examples, Examples] | None = None

    def begin(self, key: Array, particles: int) -> None:
        """M draws of q1, before outer step 1."""
        examples, batch = self.source.at(1)
        state = _initial_state(key, self.model, examples, batch, self.kernels[0], self.rule, particles)
        values = constrain(self.model, state.ensemble.theta, examples.x[0])
        self.initial = {name: np.asarray(value) for name, value in values.items()}
        self.place = Place(0, _placed(state, self.mesh), examples)

    def go_on_from(self, earlier: Fit) -> None:
        self.initial, self.rows = earlier.initial, list(earlier.rows)
        examples = self._in_blocks(earlier.examples, len(earlier.thetas))
        self.place = Place(earlier.outer_steps, _placed(earlier.state, self.mesh), examples)
        if earlier.rows:
            self.began -= earlier.rows[-1].stats["seconds"]

    def keep_in(self, checkpoint: Checkpoint, kept: Kept | None) -> None:
        """Keep the run in this folder: a new one, or the one it goes on from."""
        statistics = [*self.metrics, *(history.CERTIFICATE_STATS if self.certify_every else ())]
        if kept and checkpoint.holds(kept.folder):
            self.keeper = Keeper.gone_on(checkpoint, kept, self.ends, statistics)
        else:
            steps = [row.outer_step for row in self.rows] + sorted(self._steps)
            fit, identity = self.fit(Status.INTERRUPTED), self.identity
            self.keeper = Keeper.begun(checkpoint, fit, identity, steps, self.ends, statistics)
        self.rows = self.keeper.store.rows(self.place.t)

    @functools.cached_property
    def _steps(self) -> set[int]:
        """The outer steps to come that are recorded."""
        return set(history.recorded_steps(self.record.every, self.certify_every, self.ends, after=self.place.t))

    @property
    def identity(self) -> dict[str, Any]:
        """What the same bits depend on, as JSON: the same run has to be given it again."""
        sizes: list[Any] = [getattr(kernel, "step_size", None) for kernel in self.kernels]
        planned = sizes[0] is not None and not isinstance(sizes[0], str)
        plugs = {
            "rule": RULES.described(self.rule),
            "kernel": KERNELS.described(self.kernels[0]),
            "start": STARTS.described(self.start),
        }
        plugs["kernel"]["settings"].pop("step_size", None)  # it is compared step by step
        data = "a stream" if self.source.is_stream else checkpoints.data_digest(*self.source.at(1)[0][:2])
        identity = {
            **{name: version for name, version in versions().items() if name != "arviz_version"},
            "platform": jax.default_backend(),
            "precision": str(jnp.result_type(float)),
            "key": np.asarray(jax.random.key_data(self.key)).tolist(),
            **plugs,
            "step_size": [float(size) for size in sizes] if planned else sizes[0],
            "inner_steps": self.inner_steps.tolist(),
            "particles": self.settings["particles"],
            "batch_size": self.source.batch_size,
            "record": dataclasses.asdict(self.record),
            "metrics": list(self.metrics),
            "certify_every": self.certify_every,
            "stop_at_gap": self.stop_at_gap,
            "data": data,
            "block_rows": self.source.blocks.rows,
            "devices": 1 if self.mesh is None else self.mesh.size,
        }
        addresses = re.compile(r" at 0x[0-9a-f]+")  # in the names of functions: they differ from one process to another
        return json.loads(addresses.sub("", json.dumps(identity)))

    def step(self, agreement: Agreement) -> bool:
        """The next outer step, recorded and kept. False, and nothing changed, when it left the finite numbers."""
        t = self.place.t + 1
        times = self._times_as_many()
        place, renewing = self._renewed(times) if times else (self.place, 0.0)
        particles = len(place.state.ensemble.theta)
        examples, batch = self.source.at(t)
        examples = self._in_blocks(examples, particles)
        judged_on = self._in_blocks(self.source.judged_on(t), particles) if t in self._steps else None
        agreement.check()  # from here on the processes compute together
        anchors, state = len(examples.x), place.state
        if anchors != len(place.examples.x):
            state = _grown(state, self.rule, anchors)
        kernel, inner_steps = self.kernels[t - 1], np.int32(self.inner_steps[t - 1])
        everywhere, plugs = self._everywhere(examples), (kernel, self.rule, self.start)
        state, stats = outer_step(
            self.key, np.int32(t), state, everywhere, batch, self.model, *plugs, inner_steps, mesh=self.mesh
        )
        thetas, taken = state.ensemble.theta, None
        if judged_on is not None:
            taken = snapshot(self.model, thetas, self._everywhere(judged_on))
            thetas = gathered(thetas) if self.metrics else thetas
        due = self.keeper is not None and self.keeper.due(t)
        whole = gathered(state) if due or self._certifies(t) else state
        stats, taken = jax.device_get(gathered((stats, taken)))
        # from here on each by itself: where one fails, the others learn of it at the next check

        if not stats.finite or (taken is not None and not np.isfinite(taken.risk)):
            return False
        if taken is not None:
            numbers = {
                **stats.plugs,
                "risk": taken.risk,
                "second_moment": taken.second_moment,
                "stiffness": taken.stiffness,
                "particles": len(thetas),
                "step_size": stats.step_size,
                "inner_steps": inner_steps,
                "acceptance_rate": stats.acceptance_rate,
                "diverging": stats.diverging,
                "gradients": stats.gradients + renewing,
                **{name: self._measured(name, thetas, examples.blocks) for name in self.metrics},
                "seconds": time.perf_counter() - self.began,
            }
            numbers = {name: float(number) for name, number in numbers.items()}
            first = {name: taken.particles[name][: self.settings["particles"]] for name in self.sites}
            row = Row(t, numbers, self.record.thin(self.sites, first))
            self.rows.append(self.keeper.row(row, self.model, examples.x) if self.keeper else row)
        self.before = self.place if several_processes() else None
        self.place = Place(t, state, examples)
        if self._certifies(t):  # after its row, so that nothing is lost if it fails
            self._certify(whole)
        if self.keeper and due:
            self.keeper.write(self.fit(Status.INTERRUPTED, whole))
        return True

    def _times_as_many(self) -> int:
        """How many times as many particles the next step begins with, drawn anew; 0 where it goes on with those it has.

        Asked of what is recorded and of the state alone, so that a resumed run finds the same.
        """
        if not hasattr(self.rule, "renewed"):
            return 0
        if self._needs_more_particles():
            return 2
        if not hasattr(self.rule, "stale") or getattr(self.start, "draws_anew", False):
            return 0
        return int(bool(gathered(self.rule.stale(self.place.state.rule))))

    def _needs_more_particles(self) -> bool:
        """Whether stop_at_gap asks for more than the rule's average over the steps that are left would give.

        What noise leaves of the gap falls like 1 / settled, the number of steps that the rule has averaged, as far as
        the particles mix from one to the next.
        """
        if self.stop_at_gap is None:
            return False
        particles = len(self.place.state.ensemble.theta)
        last = self.rows[-1] if self.rows else None
        needed = (
            last is not None
            and last.outer_step == self.place.t
            and 2 * particles <= MOST_WIDENED * self.settings["particles"]
            and out_of_reach(last.stats, max(self.ends) - last.outer_step, self.stop_at_gap)
        )
        return bool(agreed(int(needed)))

    def _renewed(self, times: int) -> tuple[Place, Array]:
        """This place with so many times as many particles, tempered from the prior to the present potential, and the
        gradients that took, for each.

        Not the old ones again: their share of each mode goes back to the first steps, with the error of M particles.
        """
        t, state, examples = self.place
        state, rule = gathered(state), cast(Any, self.rule)
        examples = self._in_blocks(examples, times * len(state.ensemble.theta))
        key = jax.random.fold_in(jax.random.fold_in(self.key, t), RENEW)
        temper = self.start if isinstance(self.start, Temper) else Temper()
        plugs = self.rule, self.kernels[t], temper
        ensemble, gradients = _tempered_anew(key, self.model, examples, state, *plugs, times=times)
        unmoved = sampling.SampleStats.unmoved(len(ensemble.theta))
        state = state._replace(ensemble=ensemble, stats=unmoved, rule=rule.renewed(state.rule, times))
        return Place(t, _placed(state, self.mesh), examples), gradients

    def _in_blocks(self, examples: Examples, particles: int) -> Examples:
        """The examples in the run's blocks, or in those in which more particles than it began with fit."""
        if particles == self.settings["particles"]:
            return examples
        x = examples.x
        return examples._replace(
            blocks=blocks.within(self.settings["memory"], self.model, x[0], particles).over(len(x))
        )

    def make_up(self) -> None:
        """What a run that goes on owes its present place: the certificate, if it was stopped while that was asked for,
        or to be where stop_at_gap was reached."""
        last = self.rows[-1] if self.rows else None
        if last is None or last.outer_step != self.place.t or not self._certifies(self.place.t):
            return
        if np.isnan(last.stats.get("certified", np.nan)):
            self._certify(gathered(self.place.state))
        elif self.stop_at_gap is not None:  # the worse of two certificates is what is recorded
            self.reached = bool(last.stats["gap_upper"] < self.stop_at_gap)

    def _certify(self, state: RunState) -> None:
        """Ask for a certificate, and write it into the last row."""
        gap, self.reached = self._certified(state)
        self.rows[-1] = self.rows[-1]._replace(stats=self.rows[-1].stats | gap)
        if self.keeper:
            self.keeper.stats(self.rows[-1])

    def _everywhere(self, examples: Examples) -> Examples:
        """The examples on every device; those that stay the same are taken there once."""
        known = self._examples[0] if self._examples else None
        if not (known and known.x is examples.x and known.y is examples.y and known.blocks == examples.blocks):
            self._examples = examples, replicated(examples, self.mesh)
        assert self._examples is not None
        return self._examples[1]

    def _measured(self, name: str, thetas: Array, blocks: Blocks) -> float:
        try:
            return float(self.metrics[name](lambda x: predict(self.model, thetas, jnp.asarray(x), blocks)))
        except Exception as error:
            raise RuntimeError(f"the metric {name!r} raised {type(error).__name__}: {error}") from error

    def _certifies(self, t: int) -> bool:
        return bool(self.certify_every) and (t % self.certify_every == 0 or t in self.ends)

    def _certified(self, state: RunState) -> tuple[dict[str, float], bool]:
        """The certificate of the fit so far, as recorded, and whether stop_at_gap is reached.

        A run is looked at again and again, and each look may be lucky: a second certificate has to agree, and the worse
        of the two is recorded.
        """
        fit, eps = self.fit(Status.FINISHED, state), self.stop_at_gap
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
        certified = None
        if self.certify_every:
            gaps = (row.stats for row in reversed(self.rows) if np.isfinite(row.stats.get("gap", np.nan)))
            certified = next(gaps, None)
        if certified:
            shown["gap"] = f"{certified['gap']:.2g}+-{certified['gap_stderr']:.1g}"
        if stats.get("particles", self.settings["particles"]) != self.settings["particles"]:
            shown["particles"] = f"{stats['particles']:.0f}"
        if is_adjusted(self.kernels[0]):
            shown["accept"] = f"{stats['acceptance_rate']:.2f}"
        return shown

    @functools.cached_property
    def _attributes(self) -> dict[str, Any]:
        return {
            "creator": "mfpda",
            "format": storage.FORMAT,
            **versions(),
            "model": repr(self.model),
            "temperature": float(self.model.temperature),
            "key": json.dumps(np.asarray(jax.random.key_data(self.key)).tolist()),
            "settings": json.dumps(self.settings),
        }

    def back_to(self, t: int) -> None:
        """Stand where all processes stand."""
        if self.before is not None and t < self.place.t:
            self.place = self.before

    def end(self, status: Status, failure: Exception | None) -> tuple[Fit, Exception | None]:
        """Everything, kept with how it ended; a checkpoint that cannot be written is a failure of its own."""
        result = self.fit(status)
        if self.keeper:
            try:
                self.keeper.write(result)
                self.keeper.wait()
            except Exception as error:
                return self.fit(Status.FAILED), failure or error
        return result, failure

    def fit(self, status: Status, state: RunState | None = None) -> Fit:
        """Everything so far, as what the user gets; ``state`` is that of its place, where it was gathered already."""
        t, spread_state, examples = self.place
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
            state=gathered(spread_state) if state is None else state,
            initial=self.initial,
            rows=tuple(row for row in self.rows if row.outer_step <= t),  # Ctrl-C may fall between a row and its place
            status=status,
            attributes=self._attributes | {"status": status.value},
            store=self.keeper.store if self.keeper else None,
        )


_initial_state = jax.jit(initial_state, static_argnames=("particles",))


def out_of_reach(stats: Mapping[str, float], left: int, stop_at_gap: float) -> bool:
    """Whether the gap of a certified step would stay above stop_at_gap if noise were averaged over the steps left."""
    settled, gap = stats.get("settled", 0), stats.get("gap", np.nan)
    if settled < SETTLED or not np.isfinite(gap):
        return False
    return bool(gap * settled / (settled + left) + (stats["gap_upper"] - gap) >= stop_at_gap)


@functools.partial(jax.jit, static_argnames="times")
def _tempered_anew(
    key: Array,
    model: Model,
    examples: Examples,
    state: RunState,
    rule: Rule,
    kernel: Kernel,
    temper: Temper,
    times: int,
) -> tuple[sampling.Ensemble, Array]:
    """Fresh particles of the present potential, so many times as many; the old ones, so many times, where tempering
    was degenerate."""
    temper_key, choose_key, tune_key, begin_key = jax.random.split(key, 4)
    potential, old = current_potential(model, examples, rule, state), state.ensemble.theta
    asked = times * len(old)
    particles = max(asked, FEWEST_RENEWED)
    thetas, how = temper.tempered(temper_key, potential, particles)
    fresh = jax.random.choice(choose_key, thetas, (asked,), replace=False)
    thetas = jnp.where(how.sound(particles), fresh, jnp.tile(old, (times, 1)))
    kernel, _ = tuning.tuned(tune_key, kernel, potential, thetas, state.factor)
    gradients = how.gradients * particles / asked + is_adjusted(kernel)  # one to begin with
    return sampling.begin(begin_key, thetas, potential, kernel), gradients


def _placed(state: RunState, mesh: Mesh | None) -> RunState:
    """What there is of every particle spread over the devices, the rest whole on each."""
    apart = {"ensemble": spread(state.ensemble, mesh), "stats": spread(state.stats, mesh)}
    rest = {name: replicated(part, mesh) for name, part in state._asdict().items() if name not in apart}
    return RunState(**apart, **rest)


def _grown(state: RunState, rule: Rule, anchors: int) -> RunState:
    """The state with room for the anchors of a stream's next bucket."""
    state = state._replace(rule=rule.grow(state.rule, anchors))
    if rule.on_batch:
        return state
    return state._replace(coefficients=state.coefficients._replace(c=grown(state.coefficients.c, anchors)))
