"""The certificate of a fit: its numbers, in words and as a table. ``mfpda.judging.certify`` makes it."""

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mfpda.core import html_table
from mfpda.errors import CertificateStatus

BUDGET = 160  # replicates of one certificate, pilots included; more if they are smaller than the run, or than 1000


@dataclass(frozen=True, repr=False, eq=False)
class Certificate:
    """The numbers of a certificate. They belong to q_g, the fitted density. ``print`` shows them in words.

    ``gap`` estimates (FY), which is at least L(q_g) - L*. ``stderr`` is its standard error. ``upper`` is a
    one-sided bound at ``level``, by Student's quantile. It assumes that means over a replicate are nearly normal, as
    they are for bounded outputs. If ``status`` is not "certified", the numbers are NaN and ``upper`` is infinite.
    """

    status: CertificateStatus
    gap: float
    stderr: float
    upper: float
    level: float  # of ``upper``
    asked: float  # the bound that would be small enough
    decided: bool  # whether ``upper`` is clearly above or below ``asked``, or its noise at most a fifth of it
    winnable: float  # L(p0) - D(g), an estimate of all that could be won over the prior
    winnable_lower: float  # a one-sided bound on it
    temperature: float  # T
    risk: float
    prior_risk: float  # L(p0)
    prior_stderr: float
    kl: float  # KL(q_g || p0)
    objective: float  # L(q_g), risk + T KL(q_g || p0)
    objective_stderr: float
    dual_value: float  # an estimate of D(g), which is at most L*
    dual_stderr: float
    log_normaliser: float  # log E_p0 exp(-(1/T) sum_i w_i g_i . h), a part of kl, objective and dual_value
    log_normaliser_stderr: float
    predictions: np.ndarray  # of q_g at the anchors
    prediction_rms_bound: float | None  # on the root mean square of z - z*, if the loss is strongly convex
    prediction_bound: float | None  # on |z(x) - z*(x)| at any x, if a bound on |h| was given
    particle_distance: float  # root mean square over the anchors between the run's predictions and q_g's
    particle_noise: float  # the same if the run's particles were independent draws of q_g
    particle_gap: float  # (FY) with the run's own predictions: it may look small while the density is far off
    stiffness: float  # of the run, the largest that it recorded; that of q_g if there is no run
    effective_sample_size: float  # the number of independent draws of q_g that would predict as precisely
    r_hat: float  # the largest over the anchors, between replicates
    replicates: int
    particles: int  # of each replicate
    temperatures: float
    acceptance: float
    gradients: float  # evaluations of grad V by all particles of all replicates and pilots

    def __repr__(self) -> str:
        if self.status is not CertificateStatus.CERTIFIED:
            return f"Certificate({self.status.value})"
        share = f", {self.share:.2g} of what could be won" if np.isfinite(self.share) else ""
        return f"Certificate(gap={self.gap:.3g}, stderr={self.stderr:.2g}, upper={self.upper:.3g}{share})"

    def to_json(self) -> str:
        """Return everything but the predictions."""
        facts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "predictions"}
        return json.dumps(facts | {"status": self.status.value})

    @classmethod
    def from_json(cls, text: str, predictions: np.ndarray) -> "Certificate":
        facts = {"prior_stderr": np.nan} | json.loads(text)  # earlier versions did not write it
        return cls(**facts | {"status": CertificateStatus(facts["status"]), "predictions": predictions})

    @classmethod
    def without_sample(
        cls, status: CertificateStatus, predictions: np.ndarray, temperature: float, level: float
    ) -> "Certificate":
        """Return a certificate without numbers, for a density that was not sampled."""
        unknown: dict[str, Any] = {each.name: np.nan for each in fields(cls)}
        none = {"decided": False, "prediction_rms_bound": None, "prediction_bound": None, "predictions": predictions}
        known = {"status": status, "upper": np.inf, "level": level, "temperature": temperature}
        return cls(**unknown | none | known | {"replicates": 0, "particles": 0})

    @property
    def share(self) -> float:
        """``upper`` divided by ``winnable_lower``, infinite if nothing could be won."""
        return self.upper / self.winnable_lower if self.winnable_lower > 0 else np.inf

    @property
    def worse_than_prior(self) -> bool:
        """Whether L(q_g) is above L(p0) beyond chance: the fit lost what the prior had."""
        worse = self.objective - self.prior_risk
        return worse > 3 * float(np.hypot(self.objective_stderr, np.nan_to_num(self.prior_stderr)))

    def __str__(self) -> str:
        size = f"{self.replicates} replicates of {self.particles} particles"
        cost = f"{self.temperatures:.0f} temperatures, {self.gradients:.3g} gradients, acceptance {self.acceptance:.2f}"
        quality = f"effective sample size {self.effective_sample_size:.0f}, R-hat {self.r_hat:.3f}"
        sampled = f"Judged by {size} of its own: {cost}, {quality}."
        if self.status is not CertificateStatus.CERTIFIED:
            refused = f"No certificate: {self.status.value}. {self.status.advice}"
            return f"{refused}\n{sampled}" if np.isfinite(self.temperatures) else refused
        gap, dual = f"gap {self.gap:.3g} +- {self.stderr:.2g}", f"{self.dual_value:.4g} +- {self.dual_stderr:.1g}"
        lines = [
            f"L(q_g) - L* is at most {self.upper:.3g} at level {self.level:g} ({gap}). {self._in_proportion}",
            f"L(q_g) is {self.objective:.4g} +- {self.objective_stderr:.1g}: risk {self.risk:.4g} + T KL, with "
            f"KL(q_g || prior) {self.kl:.4g}. The dual value, at most L*, is {dual}.",
        ]
        if self.prediction_rms_bound is not None:
            lines.append(f"Predictions are within {self.prediction_rms_bound:.3g} of the optimum's (root mean square).")
        if self.prediction_bound is not None:
            lines.append(f"At any input predictions are within {self.prediction_bound:.3g} of the optimum's.")
        lines.append(
            f"The run's particles predict {self.particle_distance:.3g} away from q_g (root mean square; independent "
            f"draws of it would be off by {self.particle_noise:.2g}). Stiffness {self.stiffness:.3g}."
        )
        return "\n".join([*lines, sampled])

    def _repr_html_(self) -> str:
        return html_table("Certificate", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return labels and texts, in the order in which to show them."""
        certified = self.status is CertificateStatus.CERTIFIED
        found = {
            "gap": f"{self.gap:.3g} +- {self.stderr:.2g}",
            "L(q_g) - L*": f"at most {self.upper:.3g} at level {self.level:g}. {self._in_proportion}",
            "L(q_g)": f"{self.objective:.4g} +- {self.objective_stderr:.1g}",
            "dual value, at most L*": f"{self.dual_value:.4g} +- {self.dual_stderr:.1g}",
            "risk": f"{self.risk:.4g}",
            "KL(q_g || prior)": f"{self.kl:.4g}",
        }
        samples = f"{self.replicates} replicates of {self.particles} particles, effective sample size "
        samples += f"{self.effective_sample_size:.0f}, R-hat {self.r_hat:.3f}"
        return {
            "status": self.status.value,
            **(found if certified else {"gap": "unknown"}),
            "stiffness": f"{self.stiffness:.3g}",
            "samples": samples,
            "next": self.status.advice,
        }

    @property
    def _in_proportion(self) -> str:
        """Compare the bound with what could be won over the prior. Say if the budget ended before it was decided."""
        won = f"This is {self.share:.2g} of what could be won over the prior, at least {self.winnable_lower:.3g}."
        if self.share >= 1:
            won = f"This is more than all that could be won over the prior, at least {self.winnable_lower:.3g}."
        if self.winnable_lower <= 0:
            won = "It is not known whether anything could be won over the prior."
        if self.worse_than_prior:
            won = f"This is worse than the prior, whose L is {self.prior_risk:.4g}."
        loose = "The budget was spent before its noise fell to a fifth of it."
        return won if self.decided else f"{won} {loose}"

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that a run records."""
        return {
            "certified": float(self.status is CertificateStatus.CERTIFIED),
            "gap": self.gap,
            "gap_stderr": self.stderr,
            "gap_upper": self.upper if np.isfinite(self.upper) else np.nan,
            "gap_asked": self.asked,
            "objective": self.objective,
            "objective_stderr": self.objective_stderr,
            "dual_value": self.dual_value,
        }
