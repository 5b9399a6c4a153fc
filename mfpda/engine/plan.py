"""The plan of a run: every check of the arguments of ``fit``, and every refusal, before anything is compiled."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from tqdm import tqdm

from mfpda.core import Schedule, as_key, positive, positive_count, schedules
from mfpda.distributed import agreed, in_first_process, is_writer, mesh_over, replicated, spread
from mfpda.errors import InputError, listed
from mfpda.judging import Target
from mfpda.kernels import KERNELS, Kernel, step_size_of
from mfpda.persistence import Checkpoint, SavedRun, fingerprint, versions
from mfpda.persistence import checkpoint as checkpoints
from mfpda.problem import Blocks, Feed, Model, Problem, check_prior, check_proper, feed, seen_convex, seen_only_kinks
from mfpda.problem import memory as budgets
from mfpda.progress import CERTIFICATE_STATS, OUTER_STATS, Progress, Record, RunState, Settings, certifies
from mfpda.results import Fit
from mfpda.rules import RULES, Rule, pick
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Start

TOLERANCE = 0.05  # by default: the bound of a certified run, as a share of what could be won over the prior
LIMIT = 640  # outer steps of a run that ends when it is certified
UNCERTIFIED = 60  # outer steps, if there are none given and the problem cannot be certified
Metrics = Mapping[str, Callable[[Callable[[Any], Array]], float]]
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Plan:
    """The checked arguments of a run."""

    key: Array
    model: Model
    feed: Feed
    rule: Rule
    kernels: list[Kernel]  # one per outer step
    start: Start
    inner_steps: np.ndarray  # one per outer step
    record: Record
    sites: tuple[str, ...]
    metrics: Metrics
    certify_every: int | None  # None: at steps 5, 10, 15, 20, 30, 40, 60, ...
    target: Target | None  # the bound at which the run ends
    settings: Settings
    ends: list[int]  # the lengths that the user asked for, one after another: each ends with a recorded step
    mesh: Mesh | None
    checkpoint: Checkpoint | None  # where to write
    saved: SavedRun | None  # a checkpoint to resume
    earlier: Progress | None  # a fit to resume
    silent: bool

    @property
    def outer_steps(self) -> int:
        return self.settings.outer_steps

    def certifies(self, t: int) -> bool:
        """Whether outer step t ends with a certificate."""
        return certifies(t, self.certify_every, self.ends)

    def placed(self, state: RunState) -> RunState:
        """The state on the run's devices: particles spread over them, the rest whole on each."""
        apart = {"ensemble": spread(state.ensemble, self.mesh), "stats": spread(state.stats, self.mesh)}
        rest = {name: replicated(part, self.mesh) for name, part in state._asdict().items() if name not in apart}
        return RunState(**apart, **rest)

    @property
    def identity(self) -> dict[str, Any]:
        """What the bits of a run depend on. A resumed run must be given the same."""
        sizes = [step_size_of(kernel) for kernel in self.kernels]
        planned = sizes[0] is not None and not isinstance(sizes[0], str)
        kernel = KERNELS.describe(self.kernels[0])
        kernel["settings"].pop("step_size", None)  # it is compared step by step
        problem = self.feed.at(1)[0]
        return checkpoints.as_json(
            {
                **{name: version for name, version in versions().items() if name != "arviz_version"},
                "platform": jax.default_backend(),
                "precision": str(jnp.result_type(float)),
                "key": np.asarray(jax.random.key_data(self.key)).tolist(),
                "rule": RULES.describe(self.rule),
                "kernel": kernel,
                "start": STARTS.describe(self.start),
                "step_size": [float(size) for size in sizes] if planned else sizes[0],
                "inner_steps": self.inner_steps.tolist(),
                "particles": self.settings.particles,
                "batch_size": self.feed.batch_size,
                "record": dataclasses.asdict(self.record),
                "metrics": list(self.metrics),
                "certify_every": self.certify_every,
                "data": "a stream" if self.feed.is_stream else checkpoints.data_digest(problem.x, problem.y),
                "block_rows": self.feed.blocks.rows,
                "devices": 1 if self.mesh is None else self.mesh.size,
            }
        )


def make_plan(
    key: Array,
    model: Model,
    data: Any,
    *,
    rule: Rule | str,
    kernel: Kernel | str | None,
    start: Start | str | None,
    particles: int,
    outer_steps: int | None,
    tolerance: float | None,
    inner_steps: int | Schedule | None,
    batch_size: int | None,
    record: Record,
    metrics: Metrics | None,
    certify_every: int | None,
    stop_at_gap: float | None,
    memory: float | None,
    checkpoint: Checkpoint | Folder | None,
    resume: Fit | Folder | None,
    devices: Sequence[jax.Device] | None,
    progress: bool,
) -> Plan:
    """Check the arguments of ``fit``, in the order in which a mistake is easiest to understand.

    This function is long because ``fit`` has many arguments. Each check has a function of its own below.
    """
    key = as_key(key)
    if not isinstance(model, Model):
        raise InputError("a Model as the second argument", type(model).__name__, "Call fit(key, model, data).")
    if not isinstance(record, Record):
        raise InputError("a Record", repr(record), "Give Record(every=10), for example.")
    particles = positive_count(particles, "particles")
    mesh = mesh_over(devices, particles)
    memory = None if memory is None else positive(memory, "memory")
    earlier, saved, checkpoint = _check_folders(checkpoint, resume)
    silent = not (progress and is_writer())

    source, done = _feed(key, model, data, batch_size, earlier, saved)
    problem = source.at(max(done, 1))[0]
    every = saved.identity["certify_every"] if saved and certify_every is None else certify_every
    length = _length(outer_steps, tolerance, every, stop_at_gap, problem, source.is_stream)
    if saved and certify_every is None:
        length = length._replace(certify_every=every)
    outer_steps = max(length.outer_steps, done) if length.until_certified else length.outer_steps
    rule, why = _resolve_rule(rule, problem, source, particles)
    _check_batches(rule, source)
    _check_curvature(rule, problem)
    _check_init(rule, model)
    chosen_kernel = KERNELS.resolve(rule.defaults.kernel if kernel is None else kernel)
    kernels = tuning.plan(chosen_kernel, outer_steps)
    chosen_start = STARTS.resolve(rule.defaults.start if start is None else start)
    chosen_start.check(model)
    if earlier:
        _check_resumable(earlier, rule, chosen_kernel, particles, source, problem)
    if outer_steps < done:
        advice = "outer_steps counts all outer steps, including those already done."
        raise InputError(f"at least the {done} outer steps already done", str(outer_steps), advice)
    check_prior(problem.neuron, rule.smallest_gamma)
    inner = rule.defaults.inner_steps if inner_steps is None else inner_steps
    settings = saved.settings if saved else earlier.settings if earlier else None
    budget, source.blocks = _blocks(memory, settings, problem, particles, source.is_stream)
    if not done:
        check_proper(problem.in_blocks(source.blocks))
    plan = Plan(
        key=key,
        model=model,
        feed=source,
        rule=rule,
        kernels=kernels,
        start=chosen_start,
        inner_steps=schedules.values(inner, outer_steps, "inner_steps", whole=True),
        record=record,
        sites=record.kept_sites(problem.neuron),
        metrics=_check_metrics(metrics, rule),
        certify_every=length.certify_every,
        target=length.target,
        settings=Settings(
            rule=repr(rule),
            overshoots=rule.overshoots,
            kernel=repr(chosen_kernel),
            start=repr(chosen_start),
            particles=particles,
            outer_steps=outer_steps,
            until_certified=length.until_certified,
            inner_steps=inner if isinstance(inner, int) else repr(inner),
            batch_size=source.batch_size,
            memory=budget,
            block_rows=source.blocks.rows,
        ),
        ends=_ends(saved, outer_steps),
        mesh=mesh,
        checkpoint=checkpoint,
        saved=saved,
        earlier=earlier,
        silent=silent,
    )
    if saved:
        checkpoints.check_same(saved.identity, plan.identity, saved.folder)
        source.check_drawn_again(done)
    if why and not silent:  # after all refusals
        tqdm.write(f'mfpda: rule="auto" chose {rule}: {why}.', file=sys.stderr)
    return plan


def _ends(saved: SavedRun | None, outer_steps: int) -> list[int]:
    """The lengths so far, and the new one. A step that a saved run has passed without recording it is no new end."""
    if saved is None:
        return [outer_steps]
    return list(dict.fromkeys([*saved.ends, *([outer_steps] if outer_steps > saved.outer_steps else [])]))


class _Length(NamedTuple):
    """How long a run is, and when it is certified."""

    outer_steps: int
    until_certified: bool
    certify_every: int | None
    target: Target | None


def _length(
    outer_steps: int | None,
    tolerance: float | None,
    every: int | None,
    stop_at_gap: float | None,
    problem: Problem,
    is_stream: bool,
) -> _Length:
    """Without ``outer_steps`` a run ends when it is certified. A stream, or a loss that is not convex, cannot be."""
    if every is not None and (isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 0):
        raise InputError("a whole number as certify_every", repr(every), "Give 10, for example, or 0 for never.")
    if tolerance is not None and stop_at_gap is not None:
        raise InputError("tolerance or stop_at_gap", "both", "Leave one out: each is the bound at which the run ends.")
    target = None
    if tolerance is not None:
        target = Target(positive(tolerance, "tolerance"), only_whether=True)
    if stop_at_gap is not None:
        target = Target(gap=positive(stop_at_gap, "stop_at_gap"), only_whether=True)
    if every == 0 and target is not None:
        expected = "certificates, to stop at a bound"
        raise InputError(expected, "certify_every=0", "Leave certify_every out, or give 10, for example.")
    if outer_steps is not None:
        never = 0 if target is None and every is None else every
        return _Length(positive_count(outer_steps, "outer_steps"), False, never, target)
    convex = problem.loss.convex or seen_convex(problem.loss, problem.y, problem.neuron.output)
    if stop_at_gap is None and (is_stream or not convex):
        return _Length(UNCERTIFIED, False, every or 0, None)
    if every == 0:
        expected = "outer_steps for a run without certificates (certify_every=0, or resumed from one that had none)"
        raise InputError(expected, "None", "Give outer_steps.")
    return _Length(LIMIT, True, every, target or Target(TOLERANCE, only_whether=True))


def _check_folders(checkpoint: object, resume: object) -> tuple[Progress | None, SavedRun | None, Checkpoint | None]:
    """The fit or the checkpoint to resume, and the checkpoint to write. A resumed run keeps writing to its folder."""
    if isinstance(checkpoint, (str, os.PathLike)):
        checkpoint = Checkpoint(checkpoint)
    if not isinstance(checkpoint, Checkpoint | None):
        raise InputError(
            "the name of a folder, or a Checkpoint", repr(checkpoint), 'Give checkpoint="run", for example.'
        )
    if not isinstance(resume, Fit | str | os.PathLike | None):
        advice = "Load a saved one with mfpda.load(path, model), or give the folder of a checkpoint."
        raise InputError("a Fit to resume", type(resume).__name__, advice)
    earlier = resume.progress if isinstance(resume, Fit) else None
    saved = SavedRun.read(resume) if isinstance(resume, str | os.PathLike) else None
    if saved and checkpoint is None:
        checkpoint = Checkpoint(saved.folder)
    if checkpoint and not (saved and checkpoint.holds(saved.folder)):
        path = checkpoint.path
        in_first_process(lambda: checkpoints.check_new(path))
    return earlier, saved, checkpoint


def _feed(
    key: Array, model: Model, data: object, batch_size: int | None, earlier: Progress | None, saved: SavedRun | None
) -> tuple[Feed, int]:
    """Where the examples come from, and how many outer steps are already done."""
    done, buffer = 0, None
    if saved:
        done, buffer = saved.outer_steps, saved.stream_buffer(model)
    elif earlier:
        done = earlier.t
        if earlier.is_stream:  # with the model that is given, which has yet to be compared with the run's
            buffer = Problem.of(model, earlier.problem.x, earlier.problem.y)
    _, data_key = setup_keys(key)
    return feed(data_key, model, data, batch_size, buffer, done), done


def setup_keys(key: Array) -> tuple[Array, Array]:
    """The keys of the first particles and of the data, from the key of a run."""
    start_key, data_key = jax.random.split(jax.random.fold_in(key, 0))
    return start_key, data_key


def _resolve_rule(rule: Rule | str, problem: Problem, source: Feed, particles: int) -> tuple[Rule, str]:
    """The rule itself, or the one of this name. For "auto", also why it was chosen."""
    if not (isinstance(rule, str) and rule == "auto"):
        return RULES.resolve(rule), ""
    predictions = (len(problem.x), *problem.neuron.output)
    kinks = seen_only_kinks(problem.loss, problem.y, problem.neuron.output)
    return pick(source.is_stream, source.batch_size, predictions, particles, problem.model.has_init, kinks)


def _check_batches(rule: Rule, source: Feed) -> None:
    """Refuse streams and batches for a rule that cannot use them."""
    name = type(rule).__name__
    if source.is_stream and rule.requires != "anything":
        advice = 'Draw a data set first, or use rule="dual_averaging".'
        raise InputError(f"a data set (x, y) for {name}, which returns to its examples", "a stream", advice)
    if source.is_stream and type(rule).grow is Rule.grow:
        raise InputError(f"a method grow of {name}, for streams", "none", 'Define it, or say requires = "data set".')
    if source.batch_size is not None and rule.requires == "full batch":
        expected = f"all examples at every step for {name}, which needs the covariance of all outputs"
        advice = 'Leave batch_size out, or use rule="dual_averaging".'
        raise InputError(expected, f"batches of {source.batch_size}", advice)


def _check_curvature(rule: Rule, problem: Problem) -> None:
    """Refuse a loss without curvature for a rule that needs its second derivative."""
    if rule.needs_curvature and seen_only_kinks(problem.loss, problem.y, problem.neuron.output):
        advice = (
            'Use rule="dual_averaging", or a smooth loss: `lambda z, y: jnp.sqrt((z - y)**2 + 1e-2)` for the absolute '
            "error, losses.SmoothedHinge() for the hinge."
        )
        expected = f"a loss with curvature for {type(rule).__name__}, which uses its second derivative"
        raise InputError(expected, "one whose second derivative is 0 except at kinks", advice)


def _check_init(rule: Rule, model: Model) -> None:
    """Refuse an init for a rule that judges its first step by the particles it begins with."""
    if rule.takes_back and model.has_init:
        name = type(rule).__name__
        expected = f"particles that begin as draws of the prior, for {name}, which judges its steps by them"
        raise InputError(expected, "a model with init", 'Leave init out, or use rule="dual_averaging".')


def _blocks(
    memory: float | None, earlier: Settings | None, problem: Problem, particles: int, is_stream: bool
) -> tuple[float, Blocks]:
    """The memory budget in GiB, and the blocks that it allows.

    A resumed run keeps both unless ``memory`` is given. Without a budget the smallest default of all processes holds.
    In a stream blocks do not depend on t, so that bits do not depend on where a run was stopped.
    """
    if memory is None and earlier is not None:
        return earlier.memory, Blocks(earlier.block_rows)
    budget = -agreed(-int(1024 * budgets.default_budget())) / 1024 if memory is None else memory
    budgets.check_budget(budget, problem.neuron, particles)
    chosen = budgets.blocks_within(budget, problem.neuron, particles)
    return budget, chosen if is_stream else chosen.over(len(problem.x))


def _check_metrics(metrics: Metrics | None, rule: Rule) -> Metrics:
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, dict):
        raise InputError(
            "metrics as a dict of functions of predict", type(metrics).__name__, 'Give {"name": function}.'
        )
    odd = [name for name in metrics if not isinstance(name, str) or "/" in name]
    if odd:
        raise InputError("names of metrics that are strings without '/'", listed(odd), "NetCDF allows no others.")
    recorded = OUTER_STATS + CERTIFICATE_STATS + tuple(rule.stats(rule.init(1, ())))
    taken = [name for name in metrics if name in recorded]
    if taken:
        raise InputError("names of metrics other than " + listed(recorded), listed(taken), "Rename them.")
    broken = [name for name, metric in metrics.items() if not callable(metric)]
    if broken:
        advice = 'Give {"name": lambda predict: ...}.'
        raise InputError("metrics that are functions of predict", listed(broken), advice)
    return metrics


def _check_resumable(
    earlier: Progress, rule: Rule, kernel: Kernel, particles: int, source: Feed, problem: Problem
) -> None:
    """Refuse to resume with another model, other plugs, another number of particles or other data than the run had."""
    kinds = {True: "a stream", False: "(x, y)"}
    same = {
        "kind of data": (kinds[earlier.is_stream], kinds[source.is_stream]),
        "rule": (repr(earlier.rule), repr(rule)),
        "kernel": (KERNELS.name_of(earlier.kernel), KERNELS.name_of(kernel)),
        "particles": (earlier.settings.particles, particles),
        "batch_size": (earlier.settings.batch_size, source.batch_size),
    }
    for what, (before, now) in same.items():
        if before != now:
            raise InputError(f"the {what} of the run that is resumed, {before}", str(now), f"Pass its {what} again.")
    for name, ours, theirs in (("x", problem.x, earlier.problem.x), ("y", problem.y, earlier.problem.y)):
        if ours is not None and not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            raise InputError("the data of the run that is resumed", f"another {name}", "Pass the same data.")
    fingerprint.check_names(problem, fingerprint.names(earlier.problem))
    values = fingerprint.values(earlier.problem, earlier.state.ensemble.theta)
    fingerprint.check_values(problem, earlier.state.ensemble.theta, values)
