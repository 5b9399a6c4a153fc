"""``fit``, the one entry function: it checks what it is given, then drives the outer loop from Python, where progress,
recording, Ctrl-C and early stops live."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm import tqdm

from mfpda.core import schedules
from mfpda.core.keys import as_key
from mfpda.core.schedules import Schedule, positive, positive_count
from mfpda.distributed import signals
from mfpda.distributed.mesh import Agreement, agreed, in_first_process, is_lost, is_writer, mesh_over, several_processes
from mfpda.engine.run import Metrics, Run
from mfpda.errors import InputError, RunError, Status, Terminated, listed
from mfpda.kernels import KERNELS, ULA, Kernel
from mfpda.persistence import checkpoint as checkpoints
from mfpda.persistence import fingerprint
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.problem import blocks
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import DataSet, StreamFeed, feed
from mfpda.problem.model import Model
from mfpda.progress import history
from mfpda.progress.history import Record
from mfpda.results.fit import Fit
from mfpda.results.loading import Kept
from mfpda.rules import RULES, DualAveraging, Rule
from mfpda.rules.automatic import picked
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Start, Warm

CERTIFY_EVERY = 10  # where stop_at_gap is given alone


def fit(
    key: Array,
    model: Model,
    data: Any = None,
    *,
    rule: Rule | str = DualAveraging(),
    kernel: Kernel | str | None = None,
    start: Start | str | None = None,
    particles: int = 500,
    outer_steps: int = 60,
    inner_steps: int | Schedule | None = None,
    batch_size: int | None = None,
    record: Record = Record(),
    metrics: Metrics | None = None,
    certify_every: int = 0,
    stop_at_gap: float | None = None,
    memory: float | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    resume: Fit | str | os.PathLike[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Fit:
    """Find the distribution over theta that minimises the regularised risk, by particle dual averaging.

    Args:
        key: a JAX random key. The same key gives the same bits, whether a run is whole or stopped and resumed.
        model: the declared neuron, loss and temperature.
        data: ``(x, y)``, or ``Stream(draw)`` for one pass over a data distribution. A memory-mapped x of the type that
            JAX computes in (``np.load(path, mmap_mode="r")`` of float32, say) is read where it lies on disk, and is not
            to change while its fit is in use; other arrays are copied once.
        rule: how linearisations are combined, or its registered name. "auto" picks by what the problem is, and says
            what and why.
        kernel, start: the other two plugs, or their names. Where none is named, those that suit the rule: ``ULA()`` and
            ``Warm()``, for ``DualNewton`` and ``DualCoordinateAscent`` ``MALA()`` and ``Reweight()``.
        particles: M.
        outer_steps: the number of outer steps in all (a resumed run does what is missing).
        inner_steps: kernel steps per outer step, or a schedule of t; 20 by default, 10 for those two rules.
        batch_size: None for the full batch, else that many examples of a shuffled epoch (of a stream: 50 by default).
        record: which outer steps, sites and particles are kept.
        metrics: functions of ``predict``, evaluated at recorded steps into ``outer_stats``.
        certify_every: every how many outer steps (and after the last) ``fit.certify`` is asked, and its gap recorded in
            ``outer_stats``; 0 for never.
        stop_at_gap: stop when the upper bound on the gap is below this, in two independent certificates of one step;
            asked for every 10 outer steps unless ``certify_every`` says otherwise. Where the rule's average over the
            steps that are left would not get there (``DualNewton``), twice as many particles are tempered from the
            prior, at every certificate again, up to 32 M; ``outer_stats`` has their number, the particle history the
            first M.
        memory: how many GiB intermediate results may take, a quarter of what is free by default. Where those of all
            examples would take more, examples are looked at in blocks, with the same results within rounding (the same
            bits, if the blocks are the same: ``block_rows`` in the settings).
        checkpoint: a new folder in which the run keeps, after every outer step, all that the next one needs, and its
            history; ``Checkpoint(folder, every=10)`` or ``Checkpoint(folder, seconds=60)`` for less often.
        resume: a fit to go on from; or the folder of a checkpoint, whose run then ends with the same bits as if it had
            never stopped, and is kept in that folder on. All else has to be as it was, but for ``outer_steps``. (Of a
            model that is code, a few values are compared.)
            A resumed run keeps its blocks unless ``memory`` is given.
        devices: what the particles are spread over, as many on each: ``jax.devices()``, say. By default JAX's default
            device alone; all devices of all processes if ``jax.distributed`` is up. The fit has ordinary arrays again.
        progress: show a progress bar, in process 0 if there are several.
        throw: raise when the run fails, with the fit so far on the error; else return it with its status.

    >>> import numpyro, numpyro.distributions as dist, mfpda
    >>> def neuron(x):
    ...     return 2 * jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)))
    >>> model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature=0.01)
    >>> x = jnp.linspace(-2, 2, 50)
    >>> mfpda.fit(jax.random.key(0), model, (x, jnp.sin(x)), particles=100, outer_steps=10, progress=False)
    Fit(100 particles, 10 outer steps, risk 0.0..., finished)
    """
    key = as_key(key)
    if not isinstance(model, Model):
        raise InputError("a Model as the second argument", type(model).__name__, "Call fit(key, model, data).")
    if not isinstance(record, Record):
        raise InputError("a Record", repr(record), "Give Record(every=10), say.")
    particles, outer_steps = positive_count(particles, "particles"), positive_count(outer_steps, "outer_steps")
    mesh = mesh_over(devices, particles)
    certify_every, stop_at_gap = _checked_certifying(certify_every, stop_at_gap)
    memory = None if memory is None else positive(memory, "memory")
    earlier, kept, checkpoint = _checked_folders(checkpoint, resume)
    start_key, data_key = jax.random.split(jax.random.fold_in(key, 0))
    done, buffer = 0, None
    if kept:
        done, buffer = kept.outer_steps, kept.anchors
    elif earlier:
        done, buffer = earlier.outer_steps, earlier.examples
    source = feed(data_key, model, data, batch_size, buffer, done)
    silent = not (progress and is_writer())
    if isinstance(rule, str) and rule == "auto":
        rule = _picked(model, source, particles, silent)
    rule, kernel, start, inner_steps = _checked_plugs(rule, kernel, start, inner_steps)
    _check_batches(rule, source)
    if hasattr(start, "check"):
        start.check(model)
    if earlier:
        _check_resumable(earlier, model, rule, kernel, particles, source)
    if outer_steps < done:
        advice = "outer_steps counts them in all."
        raise InputError(f"at least the {done} outer steps already done", str(outer_steps), advice)
    row = source.at(max(done, 1))[0].x[0]
    model.check_prior(row, rule.smallest_gamma)
    settings = kept.settings if kept else earlier.settings if earlier else None
    budget = _budget(memory, settings)
    source.blocks = _blocks(budget, model, row, particles, source, None if memory else settings)
    examples = source.at(max(done, 1))[0]
    run = Run(
        key=key,
        model=model,
        source=source,
        rule=rule,
        kernels=tuning.plan(kernel, outer_steps),
        start=start,
        inner_steps=schedules.values(inner_steps, outer_steps, "inner_steps", whole=True),
        record=record,
        sites=record.kept_sites(model.structure(row)),
        metrics=_checked_metrics(metrics, rule),
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
            "memory": budget,
            "block_rows": source.blocks.rows,
        },
        ends=list(dict.fromkeys([*(kept.ends if kept else ()), outer_steps])),
        mesh=mesh,
    )
    if kept:
        checkpoints.check_same(kept.identity, run.identity, kept.folder)
        source.check_drawn_again(done)
        earlier = kept.fit(model, examples, run.kernels[max(done, 1) - 1], rule, start)
    if earlier:
        run.go_on_from(earlier)
    else:
        run.begin(start_key, particles)

    status, failure = Status.FINISHED, None
    with signals.heeded() as received:
        if checkpoint:  # from when its folder is there, a run ends with word of where it can be resumed
            run.keep_in(checkpoint, kept)
        bar = tqdm(total=outer_steps, initial=run.place.t, disable=silent, desc="mfpda", unit="step")
        try:
            received.heed(noted=several_processes())
            with Agreement(received) as agreement:
                agreement.check()
                run.make_up()
                while not agreement.reached(run.reached) and run.place.t < outer_steps:
                    if not run.step(agreement):
                        status = Status.DIVERGED
                        break
                    bar.set_postfix(run.shown(), refresh=False)
                    bar.update()
                else:
                    status = Status.CERTIFIED if agreement.reached(run.reached) else Status.FINISHED
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except Exception as error:
            if several_processes() and is_lost(error):
                raise  # in what the processes compute together: there is nobody to gather a fit with
            status, failure = Status.FAILED, error
        finally:
            received.noted = True  # what is left is short, and is not to be interrupted
            bar.close()
        run.back_to(-agreed(-run.place.t))
        result, failure = run.end(status, failure)

    if stop_at_gap is not None and status is Status.FINISHED and not silent:
        bounds = [row.stats.get("gap_upper", np.nan) for row in result.rows]
        best = f"at most {bounds[-1]:.3g}" if bounds and np.isfinite(bounds[-1]) else "not known"
        advice = "Take more outer_steps or particles."
        print(f"mfpda: the gap is {best}, and stop_at_gap {stop_at_gap:g} was not reached. {advice}", file=sys.stderr)
    if received.terminated:
        where = f", in {str(result.folder)!r}, from where it can be resumed" if result.folder else ""
        print(f"mfpda: SIGTERM ended the run after outer step {result.outer_steps}{where}.", file=sys.stderr)
        raise Terminated(result)
    if failure is not None and throw:
        raise RunError(result, f", at which {type(failure).__name__} was raised: {failure}") from failure
    if status is Status.DIVERGED and throw:
        finite = bool(jnp.all(jnp.isfinite(result.predict(result.examples.x))))
        raise RunError(result, "" if finite else ": h(theta, x) is not finite at the particles it began with")
    return result


def _checked_plugs(rule: Any, kernel: Any, start: Any, inner_steps: Any) -> tuple[Rule, Kernel, Start, Any]:
    """The plugs by name or as they are; what was not named as it suits the rule."""
    rule = RULES.resolve(rule)
    if not isinstance(rule, Rule):
        raise InputError("a rule with init, grow, update and dual", repr(rule), f"Use one of {listed(RULES)}.")
    default = suited(rule)
    kernel = KERNELS.resolve(default["kernel"] if kernel is None else kernel)
    start = STARTS.resolve(default["start"] if start is None else start)
    if not isinstance(start, Start):
        raise InputError("a start, callable on an ensemble", repr(start), f"Use one of {listed(STARTS)}.")
    for plug in (rule, start):
        tuning.check_pytree(plug)
    return rule, kernel, start, default["inner_steps"] if inner_steps is None else inner_steps


def suited(rule: Rule) -> dict[str, Any]:
    """The kernel, the start and the inner steps of a run with this rule, where the user names none."""
    return {"kernel": ULA(), "start": Warm(), "inner_steps": 20} | getattr(rule, "suited", {})


def _picked(model: Model, source: DataSet | StreamFeed, particles: int, silent: bool) -> Rule:
    """The rule that suits the problem; what it is and why is said where a progress bar is shown."""
    x = source.at(1)[0].x
    predictions = (len(x), *model.structure(x[0]).output)
    has_init = bool(model.declaration.init)
    rule, why = picked(source.is_stream, source.batch_size, predictions, particles, has_init)
    if not silent:
        tqdm.write(f'mfpda: rule="auto" is {rule}: {why}.', file=sys.stderr)
    return rule


def _check_batches(rule: Rule, source: DataSet | StreamFeed) -> None:
    """Refuse batches where a rule needs all examples at once."""
    name = type(rule).__name__
    if source.is_stream and getattr(rule, "data_set", False):
        advice = 'Draw a data set first, or use rule="dual_averaging".'
        raise InputError(f"a data set (x, y) for {name}, which comes back to its examples", "a stream", advice)
    if source.batch_size is None or not getattr(rule, "full_batch", False):
        return
    expected = f"all examples at every step for {name}, which needs how the outputs at every two of them vary"
    raise InputError(expected, f"batches of {source.batch_size}", 'Leave batch_size out, or use rule="dual_averaging".')


def _checked_folders(checkpoint: Any, resume: Any) -> tuple[Fit | None, Kept | None, Checkpoint | None]:
    """The fit or the checkpoint to go on from, and the checkpoint to write: a resumed one is written on."""
    if isinstance(checkpoint, (str, os.PathLike)):
        checkpoint = Checkpoint(checkpoint)
    if not isinstance(checkpoint, Checkpoint | None):
        raise InputError("the name of a folder, or a Checkpoint", repr(checkpoint), 'Give checkpoint="run/", say.')
    if not isinstance(resume, Fit | str | os.PathLike | None):
        advice = "Load a saved one with mfpda.load(path, model), or give the folder of a checkpoint."
        raise InputError("a Fit to resume", type(resume).__name__, advice)
    earlier = resume if isinstance(resume, Fit) else None
    kept = Kept.read(resume) if isinstance(resume, str | os.PathLike) else None
    if kept and checkpoint is None:
        checkpoint = Checkpoint(kept.folder)
    if checkpoint and not (kept and checkpoint.holds(kept.folder)):
        path = checkpoint.path
        in_first_process(lambda: checkpoints.check_new(path))
    return earlier, kept, checkpoint


def _budget(memory: float | None, earlier: dict[str, Any] | None) -> float:
    """What intermediate results may take, in GiB: as asked for, as in the earlier run, or the least default of all
    processes. It is fixed for the whole run, so that its bits do not depend on what is free later."""
    if memory is not None:
        return memory
    known = earlier.get("memory") if earlier else None
    return -agreed(-int(1024 * blocks.default_budget())) / 1024 if known is None else known


def _blocks(
    memory: float,
    model: Model,
    row: Array,
    particles: int,
    source: DataSet | StreamFeed,
    earlier: dict[str, Any] | None,
) -> Blocks:
    """Those of the earlier run, of these settings, or as memory (GiB) allows: in a stream whatever t is, so that bits
    do not depend on where a run was stopped."""
    if earlier is not None:
        return Blocks(earlier.get("block_rows"))
    blocks.check_budget(memory, model, row, particles)
    chosen = blocks.within(memory, model, row, particles)
    return chosen if source.is_stream else chosen.over(len(source.at(1)[0].x))


def _checked_certifying(every: Any, stop_at_gap: Any) -> tuple[int, float | None]:
    if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or every < 0:
        raise InputError("a whole number as certify_every", repr(every), "Give 10, say, or 0 for never.")
    if stop_at_gap is None:
        return int(every), None
    return int(every) or CERTIFY_EVERY, positive(stop_at_gap, "stop_at_gap")


def _checked_metrics(metrics: Metrics | None, rule: Any) -> Metrics:
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, dict):
        raise InputError(
            "metrics as a dict of functions of predict", type(metrics).__name__, 'Give {"name": function}.'
        )
    odd = [name for name in metrics if not isinstance(name, str) or "/" in name]
    if odd:
        raise InputError("names of metrics that are strings without '/'", listed(odd), "Netcdf has no other names.")
    own = rule.stats(rule.init(1, ())) if hasattr(rule, "stats") else {}
    recorded = history.OUTER_STATS + history.CERTIFICATE_STATS + tuple(own)
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
    source: DataSet | StreamFeed,
) -> None:
    """Refuse to go on with another model, other plugs, another number of particles or other data than the run had."""
    same = {
        "kind of data": ("a stream" if earlier.is_stream else "(x, y)", "a stream" if source.is_stream else "(x, y)"),
        "rule": (repr(earlier.rule), repr(rule)),
        "kernel": (KERNELS.name_of(earlier.kernel), KERNELS.name_of(kernel)),
        "particles": (earlier.settings["particles"], particles),
        "batch_size": (earlier.batch_size, source.batch_size),
    }
    for what, (before, now) in same.items():
        if before != now:
            raise InputError(f"the {what} of the run that is resumed, {before}", str(now), f"Pass its {what} again.")
    examples = source.at(earlier.outer_steps or 1)[0]
    for name, ours, theirs in zip(("x", "y"), examples[:2], earlier.examples[:2], strict=True):
        if ours is not None and not np.array_equal(np.asarray(ours), np.asarray(theirs)):
            raise InputError("the data of the run that is resumed", f"another {name}", "Pass the same data.")
    fingerprint.check_names(model, examples.x[0], fingerprint.names(earlier.model, examples.x[0]))
    values = fingerprint.values(earlier.model, earlier.thetas, examples)
    fingerprint.check_values(model, earlier.thetas, examples, values)
