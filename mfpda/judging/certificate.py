"""How far a fit is from the global optimum: the duality gap of its own density, with an error that cannot flatter.

With weights w_i of the examples (1/n, or a stream's shares), a dual g and the density q_g proportional to
p0 exp(-(1/T) sum_i w_i g_i . h(theta, x_i)), whose predictions are z_i = E_{q_g} h(theta, x_i),

    L(q_g) - D(g) = sum_i w_i [ loss(z_i, y_i) + loss*(g_i, y_i) - g_i . z_i ]                                      (FY)

bounds L(q_g) - L* from above, and needs neither an entropy nor a normalising constant. For any q, L(q) - D(g) is (FY)
with q's own predictions plus T KL(q || q_g), so the gap is at least T [ KL(q_g || q*) + KL(q* || q_g) ]: that bounds
what predictions can still change (Pinsker's inequality, for both terms).

z must be an expectation under q_g itself. A run's particles are samples of it only as far as their kernel mixed, so
the certificate draws its own: replicates, each tempered from the prior with an adjusted kernel. Only what all of them
miss (a mode that no draw of the prior leads to) stays unseen.
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

from mfpda.core.schedules import positive, positive_count
from mfpda.errors import CertificateStatus, InputError
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import Examples
from mfpda.problem.losses import CONVEX, seen_convex, weighted
from mfpda.problem.model import Model
from mfpda.problem.outputs import outputs_at, projections, stiffness
from mfpda.problem.potential import GibbsPotential
from mfpda.rules.base import over_outputs
from mfpda.sampling import tempering
from mfpda.starts import Temper

FEWEST_REPLICATES = 4
FEWEST_PARTICLES = 200  # of a replicate
LARGEST_R_HAT = 1.1  # between replicates; above it each is worth fewer than 5 independent draws somewhere
HEAVIEST = 0.1  # share of one particle in the variance of what is averaged: its mean is then far from normal


@dataclass(frozen=True, repr=False, eq=False)
class Certificate:
    """What a certificate says. Numbers are of q_g, the fitted density; ``print`` shows them in words.

    ``gap`` estimates (FY), which is at least L(q_g) - L*; ``stderr`` is its standard error and ``upper`` a one-sided
    bound on it at ``level``, by Student's quantile: means of a replicate's particles are supposed to be near normal, as
    those of bounded outputs are. Where ``status`` is not "certified" there is no number: NaN, and upper infinite.
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
    log_normaliser: float  # log E_p0 exp(-(1/T) sum_i w_i g_i . h), which kl, objective and dual_value rest on
    log_normaliser_stderr: float
    predictions: np.ndarray  # of q_g at the anchors
    prediction_rms_bound: float | None  # on the root mean square of z - z*, where the loss is strongly convex
    prediction_bound: float | None  # on |z(x) - z*(x)| at any x, where a bound on |h| was given
    particle_distance: float  # root mean square over the anchors between the run's predictions and q_g's
    particle_noise: float  # what it would be if the run's particles were independent draws of q_g
    particle_gap: float  # (FY) with the run's own predictions: it may look small while the density is far off
    stiffness: float  # at q_g; a run records it at its particles
    effective_sample_size: float  # as many independent draws of q_g would predict as precisely
    r_hat: float  # the largest over the anchors, between replicates
    replicates: int
    particles: int  # of each replicate
    temperatures: float
    acceptance: float
    gradients: float  # evaluations of grad V, over all replicates and their particles

    def __repr__(self) -> str:
        if self.status is not CertificateStatus.CERTIFIED:
            return f"Certificate({self.status.value})"
        return f"Certificate(gap={self.gap:.3g}, stderr={self.stderr:.2g}, upper={self.upper:.3g})"

    def __str__(self) -> str:
        size = f"{self.replicates} replicates of {self.particles} particles"
        cost = f"{self.temperatures:.0f} temperatures, {self.gradients:.3g} gradients, acceptance {self.acceptance:.2f}"
        sampled = f"Judged by {size} of its own: {cost}, effective sample size {self.effective_sample_size:.0f}, "
        sampled += f"R-hat {self.r_hat:.3f}."
        if self.status is not CertificateStatus.CERTIFIED:
            return f"No certificate: {self.status.value}. {self.status.advice}\n{sampled}"
        lines = [
            f"L(q_g) - L* is at most {self.upper:.3g} at level {self.level:g} "
            f"(gap {self.gap:.3g} +- {self.stderr:.2g}).",
            f"L(q_g) is {self.objective:.4g} +- {self.objective_stderr:.1g}: risk {self.risk:.4g} + T KL, with "
            f"KL(q_g || prior) {self.kl:.4g}. The dual value, at most L*, is {self.dual_value:.4g} "
            f"+- {self.dual_stderr:.1g}.",
        ]
        if self.prediction_rms_bound is not None:
            lines.append(f"Predictions are within {self.prediction_rms_bound:.3g} of the optimum's (root mean square).")
        if self.prediction_bound is not None:
            lines.append(f"At any input predictions are within {self.prediction_bound:.3g} of the optimum's.")
        lines.append(
            f"The run's particles predict {self.particle_distance:.3g} away from q_g (root mean square; independent "
            f"draws of it would by {self.particle_noise:.2g}). Stiffness at q_g {self.stiffness:.3g}."
        )
        return "\n".join([*lines, sampled])

    @property
    def numbers(self) -> dict[str, float]:
        """What a run records of it."""
        return {
            "certified": float(self.status is CertificateStatus.CERTIFIED),
            "gap": self.gap,
            "gap_stderr": self.stderr,
            "gap_upper": self.upper if np.isfinite(self.upper) else np.nan,
            "objective": self.objective,
            "objective_stderr": self.objective_stderr,
            "dual_value": self.dual_value,
        }


class Moments(NamedTuple):
    """Mean and variance of h over the particles, per anchor and output."""

    mean: Array
    variance: Array


class Sample(NamedTuple):
    """Replicates of a Gibbs density, first axis over them, and their predictions z with mean and variances."""

    thetas: Array
    stats: tempering.TemperingStats
    z: Array
    mean: Array
    between: Array  # the variance of z over replicates
    within: Array  # that of h over the particles of one

    @property
    def r_hat(self) -> float:
        """sqrt((M - 1) / M + B / W), B and W the variances between and within: the largest over the anchors."""
        count = self.thetas.shape[1]
        flat = jnp.where(self.between > 0, jnp.inf, 0)  # particles that agree within a replicate, and not with others
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
        """How much noisier the predictions of a replicate are than those of as many independent draws; 1 at least."""
        within = float(jnp.sum(shares * self.within))
        return max(1.0, float(self.thetas.shape[1] * jnp.sum(shares * self.between)) / within) if within > 0 else 1.0


def sampled(key: Array, potential: GibbsPotential, temper: Temper, replicates: int, particles: int) -> Sample:
    """Tempered replicates of exp(-V), and what they predict at its anchors."""
    thetas, stats = temper.replicated(key, potential, particles, replicates)
    z, variances = moments(potential.model, thetas, potential.anchors, potential.blocks)
    between, within = jnp.var(z, axis=0, ddof=1), jnp.mean(variances, axis=0)
    return Sample(thetas, stats, z, jnp.mean(z, axis=0), between, within)


class _Problem(NamedTuple):
    """What (FY) is a function of, besides z."""

    model: Model
    examples: Examples
    weights: Array
    dual: Array

    @property
    def potential(self) -> GibbsPotential:
        """That of q_g."""
        coefficients = over_outputs(self.weights, self.dual) * self.dual
        return GibbsPotential(self.model, self.examples.x, coefficients, jnp.ones(()), self.examples.blocks)


class _Gap(NamedTuple):
    """(FY) at the mean prediction: as it is, with its bias taken off, its standard error; and elsewhere."""

    plain: float
    corrected: float
    stderr: float
    elsewhere: float
    heaviest: float  # the largest share of one particle in the variance of its linear part


def certify(
    key: Array,
    model: Model,
    examples: Examples,
    weights: Array,
    dual: Array,
    thetas: Array,
    temper: Temper,
    replicates: int,
    particles: int,
    level: float,
    bound: float | None,
) -> Certificate:
    """The certificate of q_g, for the dual g and the particles ``thetas`` of a run, sampled as ``temper`` says."""
    largest = _checked(replicates, particles, level, bound)
    problem, feasible = _projected(_Problem(model, examples, weights, dual))
    sample = sampled(key, problem.potential, temper, replicates, particles)
    _check_bound(sample, largest)
    shares, temperature = over_outputs(weights, sample.mean), float(model.temperature)
    inflation, kappa = sample.inflation(shares), float(_stiffness(problem, sample.thetas, sample.z))
    own = moments(model, thetas[None], examples.x, examples.blocks).mean[0]
    found = _gap(problem, sample, own, kappa * temperature * inflation)
    status = _status(problem, sample, found, feasible)
    certified = status is CertificateStatus.CERTIFIED
    known = lambda number: float(number) if certified else np.nan  # noqa: E731
    upper = found.plain + float(scipy.stats.t.ppf(level, replicates - 1)) * found.stderr if certified else np.inf

    stats, log_normalisers = sample.stats, np.asarray(sample.stats.log_normaliser, float)
    log_normaliser = float(logsumexp(log_normalisers) - np.log(replicates))
    risk, linear, conjugate = (float(part[0]) for part in _parts(problem, sample.mean[None]))
    risks, linears, _ = (np.asarray(part, float) for part in _parts(problem, sample.z))
    kl = -linear / temperature - log_normaliser
    strength = model.loss.strong_convexity(largest)
    noise = jnp.sum(shares * (sample.within / len(thetas) + sample.between / replicates))
    return Certificate(
        status=status,
        gap=known(max(found.corrected, 0.0)),
        stderr=known(found.stderr),
        upper=upper,
        level=level,
        temperature=temperature,
        risk=known(risk),
        kl=known(kl),
        objective=known(risk + temperature * kl),
        objective_stderr=known(_stderr(risks - linears - temperature * log_normalisers)),
        dual_value=known(-conjugate - temperature * log_normaliser),
        dual_stderr=known(temperature * _stderr(log_normalisers)),
        log_normaliser=known(log_normaliser),
        log_normaliser_stderr=known(_stderr(log_normalisers)),
        predictions=np.asarray(sample.mean),
        prediction_rms_bound=min(float(np.sqrt(2 * upper / strength)), 2 * largest) if strength > 0 else None,
        prediction_bound=None if bound is None else min(float(bound * np.sqrt(upper / temperature)), 2 * bound),
        particle_distance=known(jnp.sqrt(jnp.sum(shares * jnp.square(own - sample.mean)))),
        particle_noise=known(jnp.sqrt(noise)),
        particle_gap=known(found.elsewhere),
        stiffness=kappa,
        effective_sample_size=replicates * particles / inflation,
        r_hat=sample.r_hat,
        replicates=replicates,
        particles=particles,
        temperatures=float(jnp.mean(stats.temperatures)),
        acceptance=float(jnp.mean(stats.acceptance)),
        gradients=float(jnp.sum(stats.gradients) * particles),
    )


def _checked(replicates: int, particles: int, level: float, bound: float | None) -> float:
    """Refuse what no certificate can be made from; the bound on |h|, infinite where none is known."""
    if positive_count(replicates, "replicates") < FEWEST_REPLICATES:
        advice = "The error is measured between them."
        raise InputError(f"at least {FEWEST_REPLICATES} replicates", str(replicates), advice)
    if positive_count(particles, "particles") < FEWEST_PARTICLES:
        advice = "Tempering few of them has a bias that all replicates share, and no number of replicates shows."
        raise InputError(f"at least {FEWEST_PARTICLES} particles a replicate", str(particles), advice)
    if not 0.5 <= positive(level, "level") < 1:
        raise InputError("a level between 0.5 and 1", repr(level), "Give 0.99, say.")
    return np.inf if bound is None else positive(bound, "bound")


def _check_bound(sample: Sample, largest: float) -> None:
    """Refuse a bound on |h| that the sample refutes: no root mean square exceeds it."""
    squares = jnp.square(sample.mean) + sample.within
    seen = float(jnp.sqrt(jnp.max(jnp.sum(squares.reshape(len(squares), -1), axis=1))))
    if seen > 1.01 * largest:
        found = f"{largest:g}, where |h| has a root mean square of {seen:.3g}"
        raise InputError("a bound on |h(theta, x)|", found, "Give a larger one, or none.")


def _projected(problem: _Problem) -> tuple[_Problem, bool]:
    """The problem with its dual moved into the conjugate's domain, from which rounding may have taken it; and whether
    it was there but for rounding."""
    model, (_, y, _), weights, g = problem
    conjugates = model.loss.over_rows(model.loss.conjugate, g, y)
    feasible = bool(jnp.all(jnp.isfinite(conjugates) | (weights == 0)))
    return (problem._replace(dual=model.loss.over_rows(model.loss.projected, g, y)) if feasible else problem), feasible


def _gap(problem: _Problem, sample: Sample, own: Array, noise: float) -> _Gap:
    """(FY) at the mean z of the R replicates' predictions, and at the run's own.

    It is convex in z, so noise in z makes it too large. The jackknife takes that off for ``corrected`` (for the squared
    loss exactly: what is left is the product across replicates); an upper bound leaves it in. The error has two parts.
    One is linear in the noise: that of the jackknife, between replicates, never below what as many independent draws
    would have. The other is its square, all there is when g is optimal: the largest eigenvalue of its covariance in
    the metric of l'', ``noise`` / (R M), over sqrt(2).
    """
    replicates, particles = sample.thetas.shape[:2]
    others = (jnp.sum(sample.z, axis=0) - sample.z) / (replicates - 1)
    at = jnp.concatenate([jnp.stack([sample.mean, own]), others])
    values = np.asarray(_fenchel_young(problem, at), float)
    (plain, elsewhere), left_out = values[:2], values[2:]
    with np.errstate(invalid="ignore"):  # an infeasible dual has no finite number
        pseudo = replicates * plain - (replicates - 1) * left_out
    along = np.asarray(_along(problem, _slope(problem, sample.mean), sample.thetas), float)
    independent = along.var(axis=1, ddof=1).mean() / particles
    linear = max(pseudo.var(ddof=1), independent) / replicates
    square = 0.5 * (noise / (replicates * particles)) ** 2
    deviations = (along - along.mean()) ** 2
    heaviest = deviations.max() / deviations.sum() if deviations.sum() > 0 else 0.0
    return _Gap(float(plain), float(pseudo.mean()), float(np.sqrt(linear + square)), float(elsewhere), float(heaviest))


def _status(problem: _Problem, sample: Sample, found: _Gap, feasible: bool) -> CertificateStatus:
    loss, reach = problem.model.loss, max(10.0, 2 * float(jnp.max(jnp.abs(jnp.nan_to_num(sample.z)))))
    if type(loss) not in CONVEX and not seen_convex(loss, problem.examples.y, sample.mean.shape[1:], reach):
        return CertificateStatus.NOT_CONVEX
    if not feasible:
        return CertificateStatus.INFEASIBLE
    if sample.status is not CertificateStatus.CERTIFIED:
        return sample.status
    if not np.isfinite(found.plain + found.stderr):
        return CertificateStatus.DEGENERATE
    matters = found.stderr > 0.05 * found.plain  # a lone particle of bounded output hardly moves a large gap
    return CertificateStatus.HEAVY_TAILED if found.heaviest > HEAVIEST and matters else CertificateStatus.CERTIFIED


def _stderr(values: np.ndarray) -> float:
    """Of the mean of these numbers, one per replicate."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


@jax.jit
def moments(model: Model, thetas: Array, x: Array, blocks: Blocks = Blocks()) -> Moments:
    """Of every replicate, first axis of thetas, at every row of x."""

    def of_block(thetas, x):
        outputs = outputs_at(model, thetas, x)
        return Moments(jnp.mean(outputs, axis=0), jnp.var(outputs, axis=0, ddof=1))

    return jax.lax.map(lambda each: blocks.mapped(partial(of_block, each), x), thetas)


@jax.jit
def _stiffness(problem: _Problem, thetas: Array, z: Array) -> Array:
    """The mean over replicates, whose predictions are z."""
    model, examples, weights, _ = problem
    return jnp.mean(jax.lax.map(lambda each: stiffness(model, each[0], examples, each[1], weights), (thetas, z)))


@jax.jit
def _fenchel_young(problem: _Problem, z: Array) -> Array:
    """(FY) at every row of z, of shape (rows, anchors, outputs), summed from terms that are never negative."""
    model, (_, y, _), weights, g = problem
    conjugate = model.loss.over_rows(model.loss.conjugate, g, y)

    def at(z):
        terms = model.loss.over_rows(model.loss.value, z, y) + conjugate - _inner(g, z)
        return weighted(weights, jnp.maximum(terms, 0))

    return jax.vmap(at)(z)


@jax.jit
def _parts(problem: _Problem, z: Array) -> tuple[Array, Array, Array]:
    """The weighted means of the loss, of g . z and of the conjugate, at every row of z."""
    (loss, (_, y, _), weights, g), rows = (problem.model.loss, *problem[1:]), len(z)
    losses = jax.vmap(lambda z: weighted(weights, loss.over_rows(loss.value, z, y)))(z)
    products = jax.vmap(lambda z: weighted(weights, _inner(g, z)))(z)
    return losses, products, jnp.full(rows, weighted(weights, loss.over_rows(loss.conjugate, g, y)))


@jax.jit
def _slope(problem: _Problem, z: Array) -> Array:
    """The derivative of (FY) in z: w_i (l'(z_i) - g_i)."""
    model, (_, y, _), weights, g = problem
    return over_outputs(weights, g) * (model.loss.over_rows(model.loss.derivative, z, y) - g)


@jax.jit
def _along(problem: _Problem, direction: Array, thetas: Array) -> Array:
    """sum_i direction_i . h(theta, x_i) for every particle of every replicate."""
    model, (x, _, blocks), *_ = problem
    return jax.lax.map(lambda each: projections(model, each, x, direction, blocks), thetas)


def _inner(g: Array, z: Array) -> Array:
    return jnp.sum((g * z).reshape(len(z), -1), axis=1)
