"""Whether a run has reached the global optimum, and if not, why: an answer in words."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import as_key, html_table, positive
from mfpda.errors import Advised, CertificateStatus, InputError, Status
from mfpda.judging import Certificate, SteinTest, Target, drawn, stein_test
from mfpda.kernels import AUTO, step_size_of, with_step_size
from mfpda.problem import predictions
from mfpda.results.fit import Fit, as_tempering
from mfpda.sampling import Tempering, tuning

COARSE = 0.2  # an excess of the Stein test that matters; "auto" step sizes aim at 0.05
UNLIKELY = 3.3  # times the Monte Carlo error: at most one run in 1000 predicts that far off by chance


class Finding(Advised):
    """What a verdict finds."""

    CONVERGED = "converged", "Use fit.sample for fresh particles of the fitted density."
    TOO_COARSE = "kernel too coarse", 'Make its step_size smaller (or "auto"), or use an adjusted kernel such as MALA.'
    TOO_SLOW = "kernel too slow", 'Take more inner_steps or longer steps (step_size="auto"), or use start="temper".'
    NO_NOISE = "kernel without noise", "It minimises V and samples nothing. Use a kernel such as ULA or MALA."
    STUCK = (
        "stuck in modes",
        "Use start=Temper(), which draws fresh particles in all modes at every outer step. Use an adjusted kernel too: "
        "a small bias is enough to shift mass between modes.",
    )
    STOPPED_EARLY = (
        "stopped before its stiffness",
        "Dual averaging overshoots with any kernel until t has passed the stiffness. Take more outer_steps, or change "
        "the problem to a higher temperature.",
    )
    STILL_MOVING = (
        "still moving",
        "Take more outer_steps: fit(..., resume=this_fit). If the gap no longer falls, its floor is the particles' "
        "noise times the stiffness: take more particles. With batches, even a good density may have a poor dual.",
    )
    UNDECIDED = "undecided", "Give verdict or certify more particles=."
    BROKEN_OFF = "broken off", "Remove the cause, then judge again."


@dataclass(frozen=True, repr=False, eq=False)
class Verdict:
    """The findings on a run, the main one first, and the numbers behind them. It prints as words.

    ``share`` is the upper bound on the gap divided by L(p0) - D(g), all that could be won. ``distance`` is between
    predictions of the particles and of fresh samples of the same potential. ``noise`` is what chance alone would give.
    """

    findings: tuple[Finding, ...]
    certificate: Certificate
    stein: SteinTest
    share: float
    distance: float
    noise: float
    outer_steps: int
    status: Status

    def __repr__(self) -> str:
        return "\n".join(
            f"{finding.value.capitalize()}. {self._evidence(finding)} {finding.advice}" for finding in self.findings
        )

    def _repr_html_(self) -> str:
        return html_table("Verdict", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return labels and texts, in the order in which to show them."""
        of_certificate = self.certificate._facts()
        return {
            **{finding.value: self._evidence(finding) for finding in self.findings},
            "gap": of_certificate["gap"],
            "stiffness": of_certificate["stiffness"],
            "next": " ".join(finding.advice for finding in self.findings),
        }

    def _evidence(self, finding: Finding) -> str:
        judged, stein = self.certificate, self.stein
        share = f"{self.share:.1%} of what" if self.share < 1 else "more than all that"
        gap = f"L(q_g) is at most {judged.upper:.2g} above the optimum, {share} could be won"
        apart = f"their predictions are {self.distance:.2g} away from those of fresh samples (chance: {self.noise:.1g})"
        test = f"the Stein test of their law has p-value {stein.p_value:.2g}"
        off = f"The particles do not have the law of their own potential V: {test}, E[(theta - mean) . grad V] / p is "
        off += f"{1 + stein.excess:.2f} +- {stein.excess_stderr:.2f} (1 is right)"
        off += f", and {apart}." if np.isfinite(self.noise) else "."
        stuck = f"The particles have the right law within each mode ({test}), but wrong proportions between modes"
        undecided = f"No certificate: {judged.status.value}. {judged.status.advice}"
        if judged.status is CertificateStatus.CERTIFIED:
            undecided = f"The gap is {judged.gap:.2g} +- {judged.stderr:.1g}, but its upper bound is too far above it."
        own = f"{judged.particle_distance:.2g} away from q_g (chance: {judged.particle_noise:.1g})"
        evidence = {
            Finding.CONVERGED: f"{gap}. The run's own particles predict {own}.",
            Finding.TOO_COARSE: off,
            Finding.TOO_SLOW: f"{off} The step size is not too long, so the steps are too few or too short.",
            Finding.NO_NOISE: off,
            Finding.STUCK: f"{stuck}: {apart}.",
            Finding.STOPPED_EARLY: f"{gap}, at step {self.outer_steps}, below the stiffness of {judged.stiffness:.3g}.",
            Finding.STILL_MOVING: f"{gap}, and the particles follow their potential.",
            Finding.UNDECIDED: undecided,
            Finding.BROKEN_OFF: f"It {self.status.value} after outer step {self.outer_steps}. {self.status.advice}",
        }
        return evidence[finding]


def verdict(key: Array, fit: Fit, tolerance: float = 0.05, **certifying: Any) -> Verdict:
    """Judge whether a run has reached the global optimum, and if not, say why and what to do. It prints as words.

    A run has converged if the upper bound of ``fit.certify`` is at most ``tolerance`` times L(p0) - D(g), all that
    could be won over the prior. It is undecided if the gap is that small but the bound is not. Particles are compared
    with their last potential. If the Stein test rejects their law, or its excess is large, the fault is the kernel's
    (the test needs independent particles, so it does not judge those that share ancestors, only their excess):
    too coarse if its step is far above that of "auto", else too slow. If they pass but their predictions differ from
    tempered samples' beyond chance, they are stuck in modes. Dual averaging has stopped early if it has not converged
    and t is still below the stiffness. ``certifying`` are arguments of ``fit.certify``.
    """
    if not isinstance(fit, Fit):
        raise InputError("a Fit", type(fit).__name__, "Pass what fit or load returned: its model is needed.")
    certify_key, stein_key, temper_key, tune_key = jax.random.split(as_key(key), 4)
    positive(tolerance, "tolerance")
    judged = fit.certify(certify_key, **certifying)
    problem = fit.problem.in_blocks(fit.progress.blocks_for(judged.particles))
    potential = fit.last_potential.in_blocks(problem.blocks)
    sampled = fit.state.ensemble.theta  # before calibration, which moves particles away from their law a little
    stein = stein_test(stein_key, sampled, potential)
    broken_off = fit.status in (Status.DIVERGED, Status.IMPROPER, Status.FAILED)
    if judged.replicates == 0:  # the density is improper, and cannot be sampled
        only = Finding.BROKEN_OFF if broken_off else Finding.UNDECIDED
        return Verdict((only,), judged, stein, judged.share, np.nan, np.nan, fit.outer_steps, fit.status)
    particles, replicates = judged.particles, judged.replicates
    tempering = as_tempering(certifying.get("temper") or Tempering())
    fresh = drawn(temper_key, potential, tempering, replicates, particles, draws=1)
    own = predictions(potential.problem, sampled)
    distance = float(jnp.sqrt(jnp.mean(jnp.square(own - fresh.mean))))
    # particles that share ancestors are as noisy as one of the replicates
    own_noise = (fresh.between * particles if fit.start.resamples else fresh.within) / len(fit.thetas)
    noise = float(jnp.sqrt(jnp.mean(own_noise + fresh.between / replicates)))

    share, asked = judged.share, Target(tolerance).bound(judged.winnable_lower, judged.temperature)
    converged, certified = judged.upper <= asked, judged.status is CertificateStatus.CERTIFIED
    undecided = not certified or (judged.gap <= asked and not converged)
    rejected = stein.rejected and not fit.start.resamples  # the test needs independent particles
    wrong = rejected or abs(stein.excess) > max(COARSE, UNLIKELY * stein.excess_stderr)
    trusted = fresh.status is CertificateStatus.CERTIFIED
    found = {
        Finding.UNDECIDED: undecided,
        Finding.CONVERGED: converged,
        (_why_wrong(tune_key, fit) if wrong else Finding.TOO_SLOW): wrong,
        Finding.STUCK: trusted and not wrong and distance > UNLIKELY * noise,
        Finding.STOPPED_EARLY: fit.rule.overshoots
        and fit.outer_steps < judged.stiffness
        and not (converged or undecided),
    }
    findings = [finding for finding, seen in found.items() if seen] or [Finding.STILL_MOVING]
    findings = [Finding.BROKEN_OFF] if broken_off else findings
    return Verdict(tuple(findings), judged, stein, share, distance, noise, fit.outer_steps, fit.status)


def _why_wrong(key: Array, fit: Fit) -> Finding:
    """Find why particles do not have the law of their potential: steps too long, and so biased, or too slow."""
    kernel = fit.kernel
    if not kernel.samples:
        return Finding.NO_NOISE
    if kernel.adjusted:
        return Finding.TOO_SLOW
    curvature = tuning.curvature(key, fit.last_potential, fit.thetas)
    try:
        chosen = step_size_of(with_step_size(kernel, AUTO).tuned(curvature))
    except (InputError, TypeError):  # the kernel cannot choose a step size, so there is none to compare with
        return Finding.TOO_COARSE
    used = fit.rows[-1].stats["step_size"] if fit.rows else np.nan
    return Finding.TOO_COARSE if used > 2 * float(chosen) else Finding.TOO_SLOW
