"""The certificate: how far a fit is from the global optimum, estimated by the duality gap of its own density.

A dual g has the density q_g proportional to p0 exp(-(1/T) sum_i w_i g_i . h(theta, x_i)). The weights w_i are 1/n, or
a stream's shares. With the predictions z_i = E_{q_g} h(theta, x_i),

    L(q_g) - D(g) = sum_i w_i [ loss(z_i, y_i) + loss*(g_i, y_i) - g_i . z_i ]                                      (FY)

bounds L(q_g) - L* from above, and needs neither an entropy nor a normalising constant. For any q,

    L(q) - D(g) = T KL(q || q_g) + (FY) at q's own predictions.

So the gap is at least T [ KL(q_g || q*) + KL(q* || q_g) ]. By Pinsker's inequality, used twice, it bounds how much
predictions can still change.

z must be an expectation under q_g itself. A run's particles sample q_g only as well as their kernel mixes. So the
certificate draws its own replicates, each tempered from the prior with an adjusted kernel. It cannot see a mode that
all of them miss.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array
from jax.scipy.special import logsumexp

from mfpda.core import positive, positive_count
from mfpda.errors import CertificateStatus, InputError
from mfpda.problem import GibbsPotential, Problem, over_outputs, seen_convex
from mfpda.sampling import FEWEST_TEMPERED, Tempering, TemperingStats

FEWEST_REPLICATES = 4
FEWEST_PARTICLES = 200  # of a replicate
LARGEST_R_HAT = 1.1  # between replicates; above it, some prediction of each is worth fewer than 5 independent draws
HEAVIEST = 0.1  # the largest share of one particle in a variance; above it, the mean is far from normal


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
    level: float
    temperature: float  # T
    risk: float
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
    stiffness: float  # at q_g; a run records it at its particles
    effective_sample_size: float  # the number of independent draws of q_g that would predict as precisely
    r_hat: float  # the largest over the anchors, between replicates
    replicates: int
    particles: int  # of each replicate
    temperatures: float
    acceptance: float
    gradients: float  # evaluations of grad V by all particles of all replicates

    def __repr__(self) -> str:
        if self.status is not CertificateStatus.CERTIFIED:
            return f"Certificate({self.status.value})"
        return f"Certificate(gap={self.gap:.3g}, stderr={self.stderr:.2g}, upper={self.upper:.3g})"

    def __str__(self) -> str:
        size = f"{self.replicates} replicates of {self.particles} particles"
        cost = f"{self.temperatures:.0f} temperatures, {self.gradients:.3g} gradients, acceptance {self.acceptance:.2f}"
        quality = f"effective sample size {self.effective_sample_size:.0f}, R-hat {self.r_hat:.3f}"
        sampled = f"Judged by {size} of its own: {cost}, {quality}."
        if self.status is not CertificateStatus.CERTIFIED:
            return f"No certificate: {self.status.value}. {self.status.advice}\n{sampled}"
        gap, dual = f"gap {self.gap:.3g} +- {self.stderr:.2g}", f"{self.dual_value:.4g} +- {self.dual_stderr:.1g}"
        lines = [
            f"L(q_g) - L* is at most {self.upper:.3g} at level {self.level:g} ({gap}).",
            f"L(q_g) is {self.objective:.4g} +- {self.objective_stderr:.1g}: risk {self.risk:.4g} + T KL, with "
            f"KL(q_g || prior) {self.kl:.4g}. The dual value, at most L*, is {dual}.",
        ]
        if self.prediction_rms_bound is not None:
            lines.append(f"Predictions are within {self.prediction_rms_bound:.3g} of the optimum's (root mean square).")
        if self.prediction_bound is not None:
            lines.append(f"At any input predictions are within {self.prediction_bound:.3g} of the optimum's.")
        lines.append(
            f"The run's particles predict {self.particle_distance:.3g} away from q_g (root mean square; independent "
            f"draws of it would be off by {self.particle_noise:.2g}). Stiffness at q_g {self.stiffness:.3g}."
        )
        return "\n".join([*lines, sampled])

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that a run records."""
        return {
            "certified": float(self.status is CertificateStatus.CERTIFIED),
            "gap": self.gap,
            "gap_stderr": self.stderr,
            "gap_upper": self.upper if np.isfinite(self.upper) else np.nan,
            "objective": self.objective,
            "objective_stderr": self.objective_stderr,
            "dual_value": self.dual_value,
        }


class Sample(NamedTuple):
    """Replicates of a Gibbs density (the first axis), and their predictions z with means and variances."""

    thetas: Array
    stats: TemperingStats
    z: Array
    mean: Array
    between: Array  # the variance of z over replicates
    within: Array  # the variance of h over the particles of a replicate, on average

    @property
    def r_hat(self) -> float:
        """The largest sqrt((M - 1) / M + B / W) over the anchors, B and W the variances between and within."""
        count = self.thetas.shape[1]
        flat = jnp.where(self.between > 0, jnp.inf, 0)  # if particles agree within replicates but not between them
        ratio = jnp.where(self.within > 0, self.between / jnp.where(self.within > 0, self.within, 1), flat)
        return float(jnp.sqrt((count - 1) / count + jnp.max(ratio)))

    @property
    def status(self) -> CertificateStatus:
        """Whether the sample can be trusted."""
        finite = jnp.all(jnp.isfinite(self.between)) & jnp.all(jnp.isfinite(self.within))
        if not (finite and jnp.all(self.stats.sound(self.thetas.shape[1]))):
            return CertificateStatus.DEGENERATE
        return CertificateStatus.DISAGREEMENT if self.r_hat > LARGEST_R_HAT else CertificateStatus.CERTIFIED

    def inflation(self, shares: Array) -> float:
        """Return the ratio of a replicate's variance to that of M independent draws, at least 1."""
        within = float(jnp.sum(shares * self.within))
        return max(1.0, float(self.thetas.shape[1] * jnp.sum(shares * self.between)) / within) if within > 0 else 1.0


def sampled(key: Array, potential: GibbsPotential, tempering: Tempering, replicates: int, particles: int) -> Sample:
    """Temper replicates of exp(-V) from the prior, and predict at its anchors."""
    thetas, stats = tempering.replicates(key, potential, particles, replicates)
    z, variances = moments(potential.problem, thetas)
    between, within = jnp.var(z, axis=0, ddof=1), jnp.mean(variances, axis=0)
    return Sample(thetas, stats, z, jnp.mean(z, axis=0), between, within)


class _Gap(NamedTuple):
    """(FY) at the mean prediction, with its error and its parts, and at the run's own predictions."""

    plain: float
    corrected: float  # without the bias that noise in z gives
    stderr: float
    at_particles: float
    heaviest: float  # the largest share of one particle in the variance of the linear part
    risk: float
    product: float  # sum_i w_i g_i . z_i
    conjugate: float
    linearised: np.ndarray  # risk - product of every replicate


def certify(
    key: Array,
    problem: Problem,
    dual: Array,
    thetas: Array,
    tempering: Tempering = Tempering(),
    replicates: int = 8,
    particles: int | None = None,
    level: float = 0.99,
    bound: float | None = None,
) -> Certificate:
    """Certify q_g, for the dual g and the particles ``thetas`` of a run. ``Fit.certify`` documents the other arguments.

    This function is long because it fills in every number of the certificate, one per line.
    """
    particles = default_particles(thetas) if particles is None else particles
    largest = _check(replicates, particles, level, bound)
    g, feasible = _project(problem, dual)
    potential = problem.potential(over_outputs(problem.weights, g) * g)
    sample = sampled(key, potential, tempering, replicates, particles)
    _check_bound(sample, largest)
    shares, temperature = over_outputs(problem.weights, sample.mean), float(problem.temperature)
    inflation, kappa = sample.inflation(shares), float(_stiffness(problem, sample.thetas, sample.z))
    own = moments(problem, thetas[None])[0][0]
    found = _gap(problem, g, sample, own, kappa * temperature * inflation)
    status = _status(problem, sample, found, feasible)
    certified = status is CertificateStatus.CERTIFIED
    known = 1.0 if certified else np.nan  # a factor
    upper = found.plain + float(scipy.stats.t.ppf(level, replicates - 1)) * found.stderr if certified else np.inf

    stats, log_normalisers = sample.stats, np.asarray(sample.stats.log_normaliser, float)
    log_normaliser = float(logsumexp(log_normalisers) - np.log(replicates))
    kl = -found.product / temperature - log_normaliser
    strength = problem.loss.strong_convexity(largest)
    noise = jnp.sum(shares * (sample.within / len(thetas) + sample.between / replicates))
    return Certificate(
        status=status,
        gap=known * max(found.corrected, 0.0),
        stderr=known * found.stderr,
        upper=upper,
        level=level,
        temperature=temperature,
        risk=known * found.risk,
        kl=known * kl,
        objective=known * (found.risk + temperature * kl),
        objective_stderr=known * _stderr(found.linearised - temperature * log_normalisers),
        dual_value=known * (-found.conjugate - temperature * log_normaliser),
        dual_stderr=known * temperature * _stderr(log_normalisers),
        log_normaliser=known * log_normaliser,
        log_normaliser_stderr=known * _stderr(log_normalisers),
        predictions=np.asarray(sample.mean),
        prediction_rms_bound=min(float(np.sqrt(2 * upper / strength)), 2 * largest) if strength > 0 else None,
        prediction_bound=None if bound is None else min(float(bound * np.sqrt(upper / temperature)), 2 * bound),
        particle_distance=known * float(jnp.sqrt(jnp.sum(shares * jnp.square(own - sample.mean)))),
        particle_noise=known * float(jnp.sqrt(noise)),
        particle_gap=known * found.at_particles,
        stiffness=kappa,
        effective_sample_size=replicates * particles / inflation,
        r_hat=sample.r_hat,
        replicates=replicates,
        particles=particles,
        temperatures=float(jnp.mean(stats.temperatures)),
        acceptance=float(jnp.mean(stats.acceptance)),
        gradients=float(jnp.sum(stats.gradients) * particles),
    )


def default_particles(thetas: Array) -> int:
    """Return the default size of a replicate: the particles of the run, and at least 1000."""
    return max(len(thetas), FEWEST_TEMPERED)


def _check(replicates: int, particles: int, level: float, bound: float | None) -> float:
    """Refuse arguments that cannot give a certificate. Return the bound on |h|, infinite if none is known."""
    if positive_count(replicates, "replicates") < FEWEST_REPLICATES:
        expected = f"at least {FEWEST_REPLICATES} replicates"
        raise InputError(expected, str(replicates), "The error is measured between them.")
    if positive_count(particles, "particles") < FEWEST_PARTICLES:
        advice = "Small replicates all have the same bias, which no comparison between them can show."
        raise InputError(f"at least {FEWEST_PARTICLES} particles a replicate", str(particles), advice)
    if not 0.5 <= positive(level, "level") < 1:
        raise InputError("a level between 0.5 and 1", repr(level), "Give 0.99, for example.")
    return np.inf if bound is None else positive(bound, "bound")


def _check_bound(sample: Sample, largest: float) -> None:
    """Refuse a bound on |h| that is below a root mean square of h in the sample."""
    squares = jnp.square(sample.mean) + sample.within
    seen = float(jnp.sqrt(jnp.max(jnp.sum(squares.reshape(len(squares), -1), axis=1))))
    if seen > 1.01 * largest:
        found = f"{largest:g}, where |h| has a root mean square of {seen:.3g}"
        raise InputError("a bound on |h(theta, x)|", found, "Give a larger one, or none.")


def _project(problem: Problem, g: Array) -> tuple[Array, bool]:
    """Move a dual that left the conjugate's domain by rounding back into it. Return it and whether it is feasible."""
    conjugates = problem.per_example(problem.loss.conjugate, g)
    feasible = bool(jnp.all(jnp.isfinite(conjugates) | (problem.weights == 0)))
    return (problem.per_example(problem.loss.projected, g) if feasible else g), feasible


def _gap(problem: Problem, g: Array, sample: Sample, own: Array, noise: float) -> _Gap:
    """Compute (FY) at the mean z of the R replicates' predictions, and at the run's own.

    (FY) is convex in z, so noise in z makes it too large. The jackknife removes this bias in ``corrected``, exactly for
    the squared loss. The upper bound keeps it. The error has two parts. One is linear in the noise: the jackknife's
    error between replicates, but at least that of R M independent draws. The other is quadratic, and is all of the
    error if g is optimal: the largest eigenvalue of the noise's covariance in the metric of l'', ``noise`` / (R M),
    divided by sqrt(2).
    """
    replicates, particles = sample.thetas.shape[:2]
    others = (jnp.sum(sample.z, axis=0) - sample.z) / (replicates - 1)
    at = jnp.concatenate([jnp.stack([sample.mean, own]), others, sample.z])
    gaps, risks, products, conjugates = (np.asarray(part, float) for part in _fenchel_young(problem, g, at))
    (plain, at_particles), left_out = map(float, gaps[:2]), gaps[2 : 2 + replicates]
    risk, product, conjugate = (float(part[0]) for part in (risks, products, conjugates))
    with np.errstate(invalid="ignore"):  # an infeasible dual has no finite number
        pseudo = replicates * plain - (replicates - 1) * left_out
    along = np.asarray(_linear_parts(problem, g, sample.mean, sample.thetas), float)
    independent = along.var(axis=1, ddof=1).mean() / particles
    linear = max(pseudo.var(ddof=1), independent) / replicates
    square = 0.5 * (noise / (replicates * particles)) ** 2
    deviations = (along - along.mean()) ** 2
    heaviest = float(deviations.max() / deviations.sum()) if deviations.sum() > 0 else 0.0
    corrected, stderr, linearised = float(pseudo.mean()), float(np.sqrt(linear + square)), risks - products
    return _Gap(plain, corrected, stderr, at_particles, heaviest, risk, product, conjugate, linearised[-replicates:])


def _status(problem: Problem, sample: Sample, found: _Gap, feasible: bool) -> CertificateStatus:
    loss, reach = problem.loss, max(10.0, 2 * float(jnp.max(jnp.abs(jnp.nan_to_num(sample.z)))))
    if not loss.convex and not seen_convex(loss, problem.y, sample.mean.shape[1:], reach):
        return CertificateStatus.NOT_CONVEX
    if not feasible:
        return CertificateStatus.INFEASIBLE
    if sample.status is not CertificateStatus.CERTIFIED:
        return sample.status
    if not np.isfinite(found.plain + found.stderr):
        return CertificateStatus.DEGENERATE
    matters = found.stderr > 0.05 * found.plain  # one particle with a bounded output hardly moves a large gap
    return CertificateStatus.HEAVY_TAILED if found.heaviest > HEAVIEST and matters else CertificateStatus.CERTIFIED


def _stderr(values: np.ndarray) -> float:
    """Return the standard error of the mean of these numbers, one per replicate."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


@jax.jit
def moments(problem: Problem, thetas: Array) -> tuple[Array, Array]:
    """Compute mean and variance of h over the particles of every replicate, per example and output."""

    def of_block(thetas, x):
        outputs = problem.outputs_at(thetas, x)
        return jnp.mean(outputs, axis=0), jnp.var(outputs, axis=0, ddof=1)

    return jax.lax.map(lambda each: problem.blocks.mapped(partial(of_block, each), problem.x), thetas)


@jax.jit
def _stiffness(problem: Problem, thetas: Array, z: Array) -> Array:
    """Average the stiffness over replicates, whose predictions are z."""
    return jnp.mean(jax.lax.map(lambda each: problem.stiffness(*each), (thetas, z)))


@jax.jit
def _fenchel_young(problem: Problem, g: Array, z: Array) -> tuple[Array, ...]:
    """Compute (FY) from terms that are never negative, and the means of loss, g . z and conjugate, at each row of z.

    z has shape (rows, anchors, outputs).
    """
    conjugate = problem.per_example(problem.loss.conjugate, g)

    def at(z):
        value, product = problem.per_example(problem.loss.value, z), jnp.sum((g * z).reshape(len(z), -1), axis=1)
        terms = (jnp.maximum(value + conjugate - product, 0), value, product, conjugate)
        return tuple(map(problem.weighted, terms))

    return jax.vmap(at)(z)


@jax.jit
def _linear_parts(problem: Problem, g: Array, z: Array, thetas: Array) -> Array:
    """Compute sum_i w_i (l'(z_i) - g_i) . h(theta, x_i), from the derivative of (FY) in z, for every particle."""
    slope = over_outputs(problem.weights, g) * (problem.derivative(z) - g)
    return jax.lax.map(lambda each: problem.projections(each, slope), thetas)
