"""``fit``, the one entry function: plan, begin or resume, drive, report."""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import Schedule
from mfpda.engine.drive import Outcome, drive
from mfpda.engine.plan import Folder, Metrics, make_plan
from mfpda.engine.run import Run
from mfpda.errors import RunError, Status, Terminated
from mfpda.kernels import Kernel
from mfpda.persistence import Checkpoint
from mfpda.problem import Model
from mfpda.progress import Record
from mfpda.results import Fit
from mfpda.rules import DualAveraging, Rule
from mfpda.starts import Start


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
    checkpoint: Checkpoint | Folder | None = None,
    resume: Fit | Folder | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Fit:
    """Find the distribution over theta that minimises the regularised risk, by particle dual averaging.

    This function is long because its docstring is the reference of all arguments.

    Args:
        key: a JAX random key. The same key gives the same bits, whether a run is whole or stopped and resumed.
        model: the declared neuron, loss and temperature.
        data: ``(x, y)``, or ``Stream(draw)`` for one pass over a data distribution. A memory-mapped x of the type that
            JAX computes in (``np.load(path, mmap_mode="r")`` of float32, for example) is read from disk where it lies,
            and must not change while its fit is in use. Other arrays are copied once.
        rule: how linearisations are combined: an object or a registered name. "auto" chooses by the problem, and says
            what it chose and why.
        kernel: how the Gibbs density is sampled: an object or a registered name. By default the rule's own choice:
            ``ULA()``, or ``MALA()`` for ``DualNewton`` and ``DualCoordinateAscent``.
        start: where particles begin each outer step: an object or a registered name. By default the rule's own choice:
            ``Warm()``, or ``Reweight()`` for ``DualNewton`` and ``DualCoordinateAscent``.
        particles: M, the number of particles.
        outer_steps: the number of outer steps in all. A resumed run takes those that are missing.
        inner_steps: kernel steps per outer step, or a schedule of t. By default 20, or 10 for the two rules just named.
        batch_size: None for the full batch, else the size of the batches of a shuffled epoch. Streams: 50 by default.
        record: which outer steps, sites and particles are recorded.
        metrics: functions of ``predict``, evaluated at recorded steps and recorded in ``outer_stats``.
        certify_every: the number of outer steps between certificates. The last step also gets one. Their gaps are
            recorded in ``outer_stats``. 0 means never.
        stop_at_gap: stop when the upper bound on the gap is below this number, in two independent certificates of one
            step. Without ``certify_every`` there is a certificate every 10 outer steps. If averaging cannot reach this
            gap, ``DualNewton`` doubles the particles at each certificate, up to 32-fold. The new particles are tempered
            from the prior. ``outer_stats`` records their number; the particle history keeps the first M.
        memory: the budget in GiB for intermediate results. By default a quarter of the free memory. If all examples
            need more, they are evaluated in blocks. The results are the same within rounding, and have the same bits if
            the blocks are the same (``fit.settings.block_rows``).
        checkpoint: a new folder. After every outer step the run writes there all that the next one needs, and its
            history. ``Checkpoint(folder, every=10)`` or ``Checkpoint(folder, seconds=60)`` writes less often.
        resume: a fit, or the folder of a checkpoint. A run resumed from a folder keeps writing to that folder and ends
            bit for bit as if it had never been interrupted. All other arguments must be as before, except
            ``outer_steps``. (A model is code, so only a few of its outputs are compared.) The run keeps its blocks
            unless ``memory`` is given.
        devices: the devices that share the particles equally, such as ``jax.devices()``. By default JAX's default
            device alone, or all devices of all processes if ``jax.distributed`` is initialised. The arrays of the fit
            are on one device.
        progress: show a progress bar. With several processes only process 0 shows one.
        throw: raise an error when the run fails, with the fit so far as ``.fit``. Otherwise return that fit.

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mfpda
    >>> def neuron(x):
    ...     return 2 * jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)))
    >>> model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature=0.01)
    >>> x = jnp.linspace(-2, 2, 50)
    >>> mfpda.fit(jax.random.key(0), model, (x, jnp.sin(x)), particles=100, outer_steps=10, progress=False)
    Fit(100 particles, 10 outer steps, risk 0.0..., finished)
    """
    plan = make_plan(
        key, model, data, rule=rule, kernel=kernel, start=start, particles=particles, outer_steps=outer_steps,
        inner_steps=inner_steps, batch_size=batch_size, record=record, metrics=metrics, certify_every=certify_every,
        stop_at_gap=stop_at_gap, memory=memory, checkpoint=checkpoint, resume=resume, devices=devices,
        progress=progress,
    )  # fmt: skip
    run = Run.begin(plan)
    outcome = drive(run)
    return report(run, outcome, throw)


def report(run: Run, outcome: Outcome, throw: bool) -> Fit:
    """The fit of a run that has ended. Raises if the run failed, diverged or was terminated."""
    fit = Fit(run.progress, outcome.status, run.store)
    if run.plan.stop_at_gap is not None and outcome.status is Status.FINISHED and not run.plan.silent:
        _say(_missed_gap(fit, run.plan.stop_at_gap))
    if outcome.terminated:
        where = f" It can be resumed from {str(fit.folder)!r}." if fit.folder else ""
        _say(f"SIGTERM ended the run after outer step {fit.outer_steps}.{where}")
        raise Terminated(fit)
    if outcome.failure is not None and throw:
        failure = outcome.failure
        raise RunError(fit, f", at which {type(failure).__name__} was raised: {failure}") from failure
    if outcome.status is Status.DIVERGED and throw:
        finite = bool(jnp.all(jnp.isfinite(fit.predict(fit.problem.x))))
        raise RunError(fit, "" if finite else ": h(theta, x) is not finite at the particles it began with")
    return fit


def _missed_gap(fit: Fit, stop_at_gap: float) -> str:
    upper = fit.rows[-1].stats.get("gap_upper", np.nan) if fit.rows else np.nan
    best = f"at most {upper:.3g}" if np.isfinite(upper) else "not known"
    return f"the gap is {best}, and stop_at_gap {stop_at_gap:g} was not reached. Take more outer_steps or particles."


def _say(message: str) -> None:
    print(f"mfpda: {message}", file=sys.stderr)
