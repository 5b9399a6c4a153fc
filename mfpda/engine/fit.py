"""``fit``, the one entry function: plan, begin or resume, drive, report."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import Schedule
from mfpda.engine.drive import Outcome, drive
from mfpda.engine.plan import Folder, Metrics, make_plan
from mfpda.engine.run import Run
from mfpda.errors import EarlierWasBetterWarning, NotCertifiedWarning, RunError, Status, Terminated
from mfpda.kernels import Kernel
from mfpda.persistence import Checkpoint
from mfpda.problem import Model, centred
from mfpda.progress import Record
from mfpda.results import Fit
from mfpda.rules import Rule
from mfpda.starts import Start


def fit(
    key: Array,
    model: Model,
    data: Any = None,
    *,
    rule: Rule | str = "auto",
    kernel: Kernel | str | None = None,
    start: Start | str | None = None,
    particles: int = 1000,
    outer_steps: int | None = None,
    tolerance: float | None = None,
    inner_steps: int | Schedule | None = None,
    batch_size: int | None = None,
    record: Record = Record(),
    metrics: Metrics | None = None,
    certify_every: int | None = None,
    stop_at_gap: float | None = None,
    memory: float | None = None,
    checkpoint: Checkpoint | Folder | None = None,
    resume: Fit | Folder | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Fit:
    """Find the distribution over theta that minimises the regularised risk, and certify that it is the optimum.

    This function is long because its docstring is the reference of all arguments.

    Args:
        key: a JAX random key. The same key gives the same bits, whether a run is whole or stopped and resumed.
        model: the declared neuron, loss and temperature.
        data: ``(x, y)``, or ``Stream(draw)`` for one pass over a data distribution. A memory-mapped x of the type that
            JAX computes in (``np.load(path, mmap_mode="r")`` of float32, for example) is read from disk where it lies,
            and must not change while its fit is in use. Other arrays are copied once.
        rule: how linearisations are combined: an object or a registered name. "auto" takes ``DualNewton()`` where it
            can, else ``DualAveraging()``, and says why.
        kernel: how the Gibbs density is sampled: an object or a registered name. By default the rule's own choice:
            ``ULA()``, ``HMC()`` for ``DualNewton``, ``MALA()`` for ``DualCoordinateAscent``.
        start: where particles begin each outer step: an object or a registered name. By default the rule's own choice:
            ``Warm()``, ``Temper()`` for ``DualNewton``, ``Reweight()`` for ``DualCoordinateAscent``.
        particles: M, the number of particles.
        outer_steps: the number of outer steps in all. A resumed run takes those that are missing. By default the run
            continues until it is certified, for at most 640 outer steps: see ``tolerance``. (Streams and losses that
            are not convex cannot be certified to a tolerance: they take 60.)
        tolerance: end the run when the certificate's upper bound on L(q_g) - L* is at most this share of what could be
            won over the prior, L(p0) - D(g). A bound of 0.005 T is always enough: it means KL(q_g || q*) <= 0.005. By
            default 0.05, or none if ``outer_steps`` or ``stop_at_gap`` is given.
        inner_steps: kernel steps per outer step, or a schedule of t. By default 20; 1 for ``DualNewton``, 10 for
            ``DualCoordinateAscent``.
        batch_size: None for the full batch, else the size of the batches of a shuffled epoch. Streams: 50 by default.
        record: which outer steps, sites and particles are recorded.
        metrics: functions of ``predict``, evaluated at recorded steps and recorded in ``outer_stats``.
        certify_every: the number of outer steps between certificates. The last step also gets one. Their gaps are
            recorded in ``outer_stats``, and the last is ``fit.certificate``. By default there are certificates at steps
            5, 10, 15, 20, 30, 40, 60, ... if the run ends when it is certified, else none. 0 means none.
        stop_at_gap: end the run when the upper bound on the gap is at most this number, in place of ``tolerance``.
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
    >>> mfpda.fit(jax.random.key(0), model, (x, jnp.sin(x)), progress=False)
    Fit(1000 particles, 5 outer steps, risk 0.0..., gap <= ..., certified)
    """
    plan = make_plan(
        key, model, data, rule=rule, kernel=kernel, start=start, particles=particles, outer_steps=outer_steps,
        tolerance=tolerance, inner_steps=inner_steps, batch_size=batch_size, record=record, metrics=metrics,
        certify_every=certify_every, stop_at_gap=stop_at_gap, memory=memory, checkpoint=checkpoint, resume=resume,
        devices=devices, progress=progress,
    )  # fmt: skip
    run = Run.begin(plan)
    outcome = drive(run)
    return report(run, outcome, throw)


def report(run: Run, outcome: Outcome, throw: bool) -> Fit:
    """The fit of a run that has ended. Raises if the run failed, diverged or was terminated."""
    fit = Fit(run.best_result if outcome.status.returns_best else run.progress, outcome.status, run.store)
    if outcome.status.returns_best:
        last, returned = run.progress.t, fit.outer_steps
        where = f" Of {last} outer steps, the state after step {returned} is returned: its bound is the smallest."
        warning = f"{fit!r}. {outcome.status.advice}{where if returned < last else ''}"
        warnings.warn(warning, NotCertifiedWarning, stacklevel=3)
    if outcome.status is Status.FINISHED and (better := run.better_before) is not None:
        bound = f"had a bound of {better.certificate.upper:.2g}" if better.certificate else ""
        warning = f"{fit!r}. The state after outer step {better.t} {bound}: outer_steps={better.t} returns it."
        warnings.warn(warning, EarlierWasBetterWarning, stacklevel=3)
    if outcome.terminated:
        where = f" It can be resumed from {str(fit.folder)!r}." if fit.folder else ""
        _say(f"SIGTERM ended the run after outer step {fit.outer_steps}.{where}")
        raise Terminated(fit)
    if outcome.failure is not None and throw:
        failure = outcome.failure
        raise RunError(fit, f", at which {type(failure).__name__} was raised: {failure}") from failure
    if outcome.status is Status.IMPROPER and throw:
        raise RunError(fit)
    if outcome.status is Status.DIVERGED and throw:
        finite = bool(jnp.all(jnp.isfinite(fit.predict(fit.problem.x))))
        reason = "" if finite else ": h(theta, x) is not finite at the particles it began with"
        raise RunError(fit, reason, _advice_for_a_funnel(run) if finite else "")
    return fit


def _advice_for_a_funnel(run: Run) -> str:
    """What to do if the prior of one site depends on another and the kernel is unadjusted. Empty if that is not so."""
    sites = None if run.plan.kernels[0].adjusted else centred(run.progress.problem.neuron)
    if sites is None:
        return ""
    site, scale = sites
    return (
        f"Particles or predictions became infinite or NaN; this is the last finite state. The prior of {site!r} "
        f"depends on {scale!r}: a funnel, whose narrow part is too steep for an unadjusted kernel. Use the default "
        f'rule and kernel, or kernel="mala". Or non-centre the prior, with the shape of {site!r}: '
        f'`{site} = {scale} * numpyro.sample("{site}", dist.Normal(0, 1))`, if {scale!r} is its standard deviation.'
    )


def _say(message: str) -> None:
    print(f"mfpda: {message}", file=sys.stderr)
