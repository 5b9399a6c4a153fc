"""What to make of a run: tables and verdicts that a person can read.

Between independent runs R-hat and ESS judge the particles; within a run, ``fit.trace`` lets them judge the kernel, the
Stein test judges the particles' law against its potential, and the certificate judges the fitted density. ``verdict``
asks all of them and answers in words.
"""

import dataclasses
import enum
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from mfpda import sampling
from mfpda.core.keys import as_key
from mfpda.core.schedules import positive
from mfpda.errors import CertificateStatus, InputError, Status
from mfpda.judging import certificate
from mfpda.judging.certificate import Certificate
from mfpda.judging.stein import SteinTest, stein_test
from mfpda.kernels import AUTO, GradientDescent
from mfpda.kernels.base import is_adjusted
from mfpda.problem.losses import weighted
from mfpda.results import arviz_data
from mfpda.results.fit import Fit, predict
from mfpda.rules import DualAveraging
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Reweight, Temper

COARSE = 0.2  # an excess of the Stein test that matters; "auto" step sizes aim at 0.05
UNLIKELY = 3.3  # times the Monte Carlo error: at most one run in 1000 predicts that far off by chance


class Mixing(NamedTuple):
    """R-hat and bulk ESS of every coordinate, and the worst of each."""

    r_hat: xr.Dataset
    ess: xr.Dataset
    worst_r_hat: float
    smallest_ess: float


class KernelReport(NamedTuple):
    """How a kernel does at a fixed potential, from its trace."""

    mixing: Mixing
    acceptance: float
    diverging: float  # the share of steps that diverged
    ess_per_gradient: float  # of the slowest coordinate


def between_runs(inference_data: Any) -> Mixing:
    """R-hat and ESS per site on ``posterior``: independent runs as chains, particles as draws.

    R-hat near 1 says that the runs ended in the same law; ESS counts particles.
    """
    posterior = arviz_data.groups_of(inference_data)["posterior"]
    if posterior.sizes["chain"] < 2:
        raise InputError("two runs or more", "one", "Stack runs of other keys: to_inference_data(fit1, fit2).")
    return _mixing(posterior)


def kernel_report(trace: xr.Dataset) -> KernelReport:
    """Acceptance, divergences, R-hat between particles and ESS per gradient, from what ``fit.trace`` returned."""
    if not isinstance(trace, xr.Dataset) or "gradients_per_draw" not in trace.attrs:
        raise InputError("a trace of a kernel", type(trace).__name__, "Call fit.trace(key) and pass what it returns.")
    mixing, attributes = _mixing(trace), trace.attrs
    spent = trace.sizes["chain"] * trace.sizes["draw"] * attributes["gradients_per_draw"]
    return KernelReport(
        mixing,
        attributes["acceptance_rate"],
        attributes["diverging"],
        mixing.smallest_ess / spent if spent else np.inf,
    )


def _mixing(dataset: xr.Dataset) -> Mixing:
    r_hat, ess = arviz_data.r_hat(dataset), arviz_data.effective_sample_size(dataset)
    return Mixing(
        r_hat,
        ess,
        max(float(r_hat[name].max()) for name in r_hat.data_vars),
        min(float(ess[name].min()) for name in ess.data_vars),
    )


class Finding(enum.Enum):
    """What a verdict finds. ``advice`` says what to do about it."""

    CONVERGED = "converged"
    TOO_COARSE = "kernel too coarse"
    TOO_SLOW = "kernel too slow"
    NO_NOISE = "kernel without noise"
    STUCK = "stuck in modes"
    STOPPED_EARLY = "stopped before its stiffness"
    STILL_MOVING = "still moving"
    UNDECIDED = "undecided"
    BROKEN_OFF = "broken off"

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Finding.CONVERGED: "Use fit.sample for fresh particles of the fitted density.",
    Finding.TOO_COARSE: 'Make its step_size smaller (or "auto"), or use an adjusted kernel such as MALA.',
    Finding.TOO_SLOW: 'Take more inner_steps, or longer ones (step_size="auto"), or start="temper".',
    Finding.NO_NOISE: "It minimises V and samples nothing: to optimise over distributions, use ULA or MALA.",
    Finding.STUCK: (
        "Use start=Temper(), which draws the particles of every outer step anew, in all modes; and an adjusted kernel, "
        "since a small bias is enough to shift mass between modes."
    ),
    Finding.STOPPED_EARLY: (
        "Until t has passed the stiffness dual averaging overshoots, however good the kernel: take more outer_steps "
        "(or a higher temperature, another problem)."
    ),
    Finding.STILL_MOVING: (
        "Take more outer_steps: fit(..., resume=this_fit). If the gap no longer falls, its floor is the noise of the "
        "particles times the stiffness: take more particles. With batches, g may also be a poor dual of a good density."
    ),
    Finding.UNDECIDED: "verdict and certify take particles= and temper=.",
    Finding.BROKEN_OFF: "Mend what broke it off, then judge again.",
}


@dataclass(frozen=True, repr=False, eq=False)
class Verdict:
    """A run judged: the findings, the first of them the main one, and what they rest on. It prints as words.

    ``share`` is the upper bound on the gap over what could be won, L(p0) - D(g). ``distance`` and ``noise`` are how far
    the particles predict from fresh samples of the same potential, and how far they would by chance.
    """

    findings: tuple[Finding, ...]
    certificate: Certificate
    stein: SteinTest
    share: float
    distance: float
    noise: float
    stiffness: float
    outer_steps: int
    status: Status

    def __repr__(self) -> str:
        return "\n".join(f"{finding.value.capitalize()}. {self._evidence(finding)}" for finding in self.findings)

    def _evidence(self, finding: Finding) -> str:
        judged = self.certificate
        share = f"{self.share:.1%} of what" if self.share < 1 else "more than all that"
        gap = f"L(q_g) is at most {judged.upper:.2g} above the optimum, {share} could be won"
        apart = f"they predict {self.distance:.2g} away from fresh samples of it (chance: {self.noise:.1g})"
        stein = f"the Stein test of their law has p = {self.stein.p_value:.2g}"
        ratio = f"{1 + self.stein.excess:.2f} +- {self.stein.excess_stderr:.2f}"
        off = f"The particles do not have the law of their own potential V: {stein}, E[(theta - mean) . grad V] / p is "
        off += f"{ratio} (1 is right)" + (f", and {apart}." if np.isfinite(self.noise) else ".")
        refused = f"No certificate: {judged.status.value}. {judged.status.advice}"
        noisy = f"The gap is {judged.gap:.2g} +- {judged.stderr:.1g}, and its upper bound too far above it to say."
        evidence = {
            Finding.CONVERGED: (
                f"{gap}. The run's own particles predict {judged.particle_distance:.2g} away from q_g (chance: "
                f"{judged.particle_noise:.1g})."
            ),
            Finding.TOO_COARSE: off,
            Finding.TOO_SLOW: f"{off} The step size is not too long, so the steps are too few or too short.",
            Finding.NO_NOISE: off,
            Finding.STUCK: (
                f"The particles have the right law nearby ({stein}) but in wrong proportions between modes of their "
                f"potential: {apart}."
            ),
            Finding.STOPPED_EARLY: f"{gap}, at outer step {self.outer_steps} of a stiffness of {self.stiffness:.3g}.",
            Finding.STILL_MOVING: f"{gap}, and the particles follow their potential.",
            Finding.UNDECIDED: noisy if judged.status is CertificateStatus.CERTIFIED else refused,
            Finding.BROKEN_OFF: f"It {self.status.value} after outer step {self.outer_steps}. {self.status.advice}",
        }
        return f"{evidence[finding]} {finding.advice}"


def verdict(key: Array, fit: Fit, tolerance: float = 0.05, **certifying: Any) -> Verdict:
    """Is this run at the global optimum, and if not, why not and what to do? Printed, it answers in words.

    Converged: the upper bound of ``fit.certify`` is at most ``tolerance`` of L(p0) - D(g), all that could be won over
    the prior; undecided: the gap is, and its upper bound is not. Then the particles are compared with their own last
    potential. If the Stein test rejects their law, or its excess is large, the kernel is too coarse if its step is
    longer than "auto" would make it, and else too slow. If not, but they predict further from fresh tempered samples
    than chance allows, they are stuck in modes. And whatever the kernel, dual averaging that stopped before t passed
    its stiffness, not converged, has stopped early. ``certifying`` are arguments of ``fit.certify``.
    """
    if not isinstance(fit, Fit):
        raise InputError("a Fit", type(fit).__name__, "Pass what fit or load returned: its model is needed.")
    certify_key, stein_key, temper_key, prior_key, tune_key = jax.random.split(as_key(key), 5)
    positive(tolerance, "tolerance")
    judged = fit.certify(certify_key, **certifying)
    model = fit.model
    potential = dataclasses.replace(fit.last_potential, blocks=fit.blocks_for(judged.particles))
    stein = stein_test(stein_key, fit.thetas, potential)
    particles, replicates = judged.particles, judged.replicates
    temper = STARTS.resolve(certifying.get("temper") or Temper())
    fresh = certificate.sampled(temper_key, potential, temper, replicates, particles)
    own = predict(model, fit.thetas, potential.anchors, potential.blocks)
    distance = float(jnp.sqrt(jnp.mean(jnp.square(own - fresh.mean))))
    kin = isinstance(fit.start, Temper | Reweight)  # particles that share ancestors, as noisy as one of the replicates
    own_noise = (fresh.between * particles if kin else fresh.within) / len(fit.thetas)
    noise = float(jnp.sqrt(jnp.mean(own_noise + fresh.between / replicates)))

    draws = sampling.draw_prior(prior_key, particles, potential)
    prior = predict(model, draws, fit.examples.x, potential.blocks)
    losses = model.loss.over_rows(model.loss.value, prior, fit.examples.y)
    to_win = float(weighted(fit.weights, losses)) - judged.dual_value
    share, gap_share = ((number / to_win if to_win > 0 else np.inf) for number in (judged.upper, judged.gap))
    stiffness = max([judged.stiffness, *(row.stats["stiffness"] for row in fit.rows[-1:])])

    converged, certified = share <= tolerance, judged.status is CertificateStatus.CERTIFIED
    undecided = not certified or (gap_share <= tolerance and not converged)
    wrong = stein.rejected or abs(stein.excess) > max(COARSE, UNLIKELY * stein.excess_stderr)
    trusted = fresh.status is CertificateStatus.CERTIFIED
    found = {
        Finding.BROKEN_OFF: fit.status in (Status.DIVERGED, Status.FAILED),
        Finding.UNDECIDED: undecided,
        Finding.CONVERGED: converged,
        (_why_wrong(tune_key, fit) if wrong else Finding.TOO_SLOW): wrong,
        Finding.STUCK: trusted and not wrong and distance > UNLIKELY * noise,
        Finding.STOPPED_EARLY: isinstance(fit.rule, DualAveraging)
        and fit.outer_steps < stiffness
        and not (converged or undecided),
    }
    findings = [finding for finding, seen in found.items() if seen] or [Finding.STILL_MOVING]
    if findings[0] is Finding.BROKEN_OFF:
        findings = findings[:1]
    return Verdict(tuple(findings), judged, stein, share, distance, noise, stiffness, fit.outer_steps, fit.status)


def _why_wrong(key: Array, fit: Fit) -> Finding:
    """Why particles do not have the law of their potential: steps that are too long to have no bias, or too slow."""
    kernel: Any = fit.kernel
    if isinstance(kernel, GradientDescent):
        return Finding.NO_NOISE
    if is_adjusted(kernel) or not hasattr(kernel, "tuned"):
        return Finding.TOO_SLOW if is_adjusted(kernel) else Finding.TOO_COARSE
    curvature = tuning.curvature(key, fit.last_potential, fit.thetas)
    chosen = dataclasses.replace(kernel, step_size=AUTO).tuned(curvature).step_size
    used = fit.rows[-1].stats["step_size"] if fit.rows else np.nan
    return Finding.TOO_COARSE if used > 2 * float(chosen) else Finding.TOO_SLOW


def summary(inference_data: Any) -> str:
    """A run, or several stacked as chains, in words and numbers.

    R-hat and ESS compare independent runs, so they are given from two runs on.
    """
    groups = arviz_data.groups_of(inference_data)
    posterior, stats = groups["posterior"], groups["outer_stats"]
    attributes = posterior.attrs
    runs, particles = posterior.sizes["chain"], posterior.sizes["draw"]
    settings = json.loads(attributes["settings"])
    status = Status(attributes["status"])
    lines = [
        str(attributes["model"]),
        f"{settings['rule']}, {settings['kernel']}, {settings['start']}",
        f"{runs} run{'s' if runs > 1 else ''} of {particles} particles: {status.value}. {status.advice}",
    ]
    if stats.sizes["outer_step"]:
        lines += _unsettled(stats, settings["rule"])
        lines += _uncertified(stats)
        lines += ["", *_outer_table(stats)]
    lines += ["", *_site_table(posterior, runs)]
    return "\n".join(lines)


def _unsettled(stats: Any, rule: str) -> list[str]:
    """A warning when dual averaging stopped while it may still overshoot."""
    stiffness, last = float(stats["stiffness"].max()), int(stats["outer_step"][-1])
    if not rule.startswith("DualAveraging") or last >= stiffness:
        return []
    return [
        f"Stopped at outer step {last}, before its stiffness of {stiffness:.0f}: particles may predict well while the "
        "fitted density is far off. Take more outer steps or a higher temperature."
    ]


def _uncertified(stats: Any) -> list[str]:
    """A word on certificates that were asked for and refused."""
    asked = stats["certified"].notnull() if "certified" in stats else np.zeros(0)
    refused = int(asked.sum()) - int(stats["certified"].sum()) if asked.sum() else 0
    if not refused:
        return []
    return [f"{refused} of {int(asked.sum())} certificates had no number: fit.certify says why, and what to raise."]


def _outer_table(stats: Any) -> list[str]:
    """First, middle and last recorded value of every number, averaged over runs; of certified steps, if there are."""
    steps = stats["outer_step"].values
    known = np.arange(len(steps))
    if "certified" in stats:
        known = known[stats["certified"].notnull().any("chain").values]
    shown = sorted({int(known[0]), int(known[len(known) // 2]), len(steps) - 1})
    rows = [["after outer step", *(str(steps[k]) for k in shown)]]
    for name in stats:
        values = stats[name].mean("chain").values
        if np.isfinite(values).any():
            rows.append([str(name).replace("_", " "), *(f"{values[k]:.4g}" for k in shown)])
    return _aligned(rows)


def _site_table(posterior: Any, runs: int) -> list[str]:
    table = arviz_data.summary(posterior, diagnostics=runs > 1)
    rows = [["site", "mean", "sd"] + (["R-hat", "ESS"] if runs > 1 else [])]
    most = 12
    for name, row in list(table.iterrows())[:most]:
        rows.append([str(name), f"{row['mean']:.4g}", f"{row['sd']:.4g}"])
        if runs > 1:
            rows[-1] += [f"{row['r_hat']:.3f}", f"{row['ess_bulk']:.0f}"]
    lines = _aligned(rows)
    if len(table) > most:
        lines.append(f"... and {len(table) - most} more coordinates")
    return lines


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
