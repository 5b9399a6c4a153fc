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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array
from jax.scipy.special import logsumexp

from mfpda import tempering
from mfpda.data import Examples
from mfpda.errors import CertificateStatus, InputError
from mfpda.losses import CONVEX, seen_convex
from mfpda.model import Model
from mfpda.outputs import outputs_at, predictions, stiffness
from mfpda.potential import GibbsPotential
from mfpda.rules.protocol import over_outputs
from mfpda.schedules import positive, positive_count
from mfpda.starts import Temper

FEWEST_REPLICATES = 4
LARGEST_R_HAT = 1.1  # between replicates; above it each is worth fewer than 5 independent draws somewhere
SMALLEST_SHARE = 0.1  # of the particles that a temperature may leave effective


@dataclass(frozen=True, repr=False)
class Certificate:
    """What a certificate says. Numbers are of q_g, the fitted density; ``print`` shows them in words.

    ``gap`` estimates (FY), which is at least L(q_g) - L*; ``stderr`` is its standard error and ``upper`` a one-sided
    bound on it at ``level``. Where ``status`` is not "certified" there is no number: gap is NaN and upper infinite.
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
    dual_value: float  # D(g), which is at most L*
    log_normaliser: float  # log E_p0 exp(-(1/T) sum_i w_i g_i . h), which the three above rest on
    log_normaliser_stderr: float
    predictions: np.ndarray  # of q_g at the anchors
    prediction_rms_bound: float | None  # on the root mean square of z - z*, where the loss is strongly convex
    prediction_bound: float | None  # on |z(x) - z*(x)| at any x, where a bound on |h| was given
    particle_distance: float  # root mean square over the anchors between the run's predictions and q_g's
    particle_noise: float  # what it would be if the run's particles were independent draws of q_g
    particle_gap: float  # (FY) with the run's own predictions: it may look small while the density is far off
    stiffness: float
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
            f"L(q_g) is {self.objective:.4g}, risk {self.risk:.4g} + T KL, with KL(q_g || prior) {self.kl:.4g}; "
            f"the dual's lower bound on L* is {self.dual_value:.4g}.",
        ]
        if self.prediction_rms_bound is not None:
            lines.append(f"Predictions are within {self.prediction_rms_bound:.3g} of the optimum's (root mean square).")
        if self.prediction_bound is not None:
            lines.append(f"At any input they are within {self.prediction_bound:.3g} of the optimum's.")
        lines.append(
            f"The run's particles predict {self.particle_distance:.3g} away from q_g (root mean square; independent "
            f"draws of it would by {self.particle_noise:.2g}). Stiffness {self.stiffness:.3g}."
        )
        return "\n".join([*lines, sampled])

    @property
    def numbers(self) -> dict[str, float]:
        """What a run records of it."""
        return {
            "gap": self.gap,
            "gap_stderr": self.stderr,
            "gap_upper": self.upper if np.isfinite(self.upper) else np.nan,
            "objective": self.objective,
            "objective_stderr": float(np.hypot(self.stderr, self.temperature * self.log_normaliser_stderr)),
            "dual_value": self.dual_value,
        }


class Moments(NamedTuple):
    """Mean and variance of h over the particles, per anchor and output."""

    mean: Array
    variance: Array


def certify(
    key: Array,
    model: Model,
    examples: Examples,
    weights: Array,
    dual: Array,
    thetas: Array,
    temper: Temper,
    replicates: int = 8,
    particles: int = 1000,
    level: float = 0.99,
    bound: float | None = None,
) -> Certificate:
    """The certificate of q_g, for the dual g and the particles ``thetas`` of a run, sampled as ``temper`` says.

    The mean z of the replicates' predictions goes into (FY). It is convex in z, so noise in z makes it too large: the
    jackknife takes that off (for the squared loss exactly; it is then the product across replicates) for ``gap``, and
    nothing is taken off for ``upper``, which adds Student's quantile of the standard error. That error is the one
    between replicates (jackknife), never below what M independent draws would have, and has a second part,
    kappa T / (sqrt(2) R M_eff), for the square of the noise, which is all there is when g is optimal.
    """
    if positive_count(replicates, "replicates") < FEWEST_REPLICATES:
        advice = "The error is measured between them."
        raise InputError(f"at least {FEWEST_REPLICATES} replicates", str(replicates), advice)
    positive_count(particles, "particles")
    if not 0.5 <= positive(level, "level") < 1:
        raise InputError("a level between 0.5 and 1", repr(level), "Give 0.99, say.")
    potential = GibbsPotential(model, examples.x, over_outputs(weights, dual) * dual, jnp.ones(()))
    sampled, stats = tempering.replicated(
        key, potential, particles, temper.kernel, temper.moves, temper.share, replicates
    )
    z, variances = moments(model, sampled, examples.x)
    between, within = jnp.var(z, axis=0, ddof=1), jnp.mean(variances, axis=0)
    r_hat = _r_hat(between, within, particles)
    status = _status(model, examples, z, variances, float(jnp.min(stats.effective_sample_size)) / particles, r_hat)
    mean, others = jnp.mean(z, axis=0), (jnp.sum(z, axis=0) - z) / (replicates - 1)
    own = predictions(model, thetas, examples.x)
    at = jnp.concatenate([jnp.stack([mean, own]), others])
    rows = np.asarray(_fenchel_young(model, examples.y, weights, dual, at), float)
    (plain, of_particles), left_out = rows[:2], rows[2:]
    if not np.isfinite(plain) and status is CertificateStatus.CERTIFIED:
        status = CertificateStatus.INFEASIBLE
    shares = over_outputs(weights, mean)

    # errors: between replicates, floored by what independent draws would have, and the square of the noise
    with np.errstate(invalid="ignore"):  # an infeasible dual has no finite number anyway
        pseudo = replicates * plain - (replicates - 1) * left_out
    inflation = max(1.0, float(particles * jnp.sum(shares * between) / jnp.sum(shares * within)))
    kappa = float(_stiffness(model, sampled, examples, weights))
    along = np.asarray(_along(potential, _slope(model, examples.y, weights, dual, mean), sampled), float)
    independent = along.var(axis=1, ddof=1).mean() / particles
    linear = max(pseudo.var(ddof=1), independent) / replicates
    squared = 0.5 * (kappa * float(model.temperature) * inflation / (replicates * particles)) ** 2
    stderr = float(np.sqrt(linear + squared))
    certified = status is CertificateStatus.CERTIFIED
    gap = float(max(pseudo.mean(), 0.0)) if certified else np.nan
    upper = float(plain + scipy.stats.t.ppf(level, replicates - 1) * stderr) if certified else np.inf

    temperature = float(model.temperature)
    log_normalisers = np.asarray(stats.log_normaliser, float)
    log_normaliser = float(logsumexp(log_normalisers) - np.log(replicates))
    risk, linear_part, conjugate = map(float, _parts(model, examples.y, weights, dual, mean))
    dual_value = -conjugate - temperature * log_normaliser
    largest = np.inf if bound is None else positive(bound, "bound")
    strength = model.loss.strong_convexity(largest)
    noise = jnp.sum(shares * (within / len(thetas) + between / replicates))
    return Certificate(
        status=status,
        gap=gap,
        stderr=stderr if certified else np.nan,
        upper=upper,
        level=level,
        temperature=temperature,
        risk=risk,
        kl=-linear_part / temperature - log_normaliser,
        objective=dual_value + gap,
        dual_value=dual_value,
        log_normaliser=log_normaliser,
        log_normaliser_stderr=float(log_normalisers.std(ddof=1) / np.sqrt(replicates)),
        predictions=np.asarray(mean),
        prediction_rms_bound=min(float(np.sqrt(2 * upper / strength)), 2 * largest) if strength > 0 else None,
        prediction_bound=None if bound is None else min(float(bound * np.sqrt(upper / temperature)), 2 * bound),
        particle_distance=float(jnp.sqrt(jnp.sum(shares * jnp.square(own - mean)))),
        particle_noise=float(jnp.sqrt(noise)),
        particle_gap=float(of_particles),
        stiffness=kappa,
        effective_sample_size=replicates * particles / inflation,
        r_hat=r_hat,
        replicates=replicates,
        particles=particles,
        temperatures=float(jnp.mean(stats.temperatures)),
        acceptance=float(jnp.mean(stats.acceptance)),
        gradients=float(jnp.sum(stats.gradients) * particles),
    )


def _status(
    model: Model, examples: Examples, z: Array, variances: Array, effective: float, r_hat: float
) -> CertificateStatus:
    """``effective`` is the smallest share of its particles that any temperature of any replicate left effective."""
    if type(model.loss) not in CONVEX and not seen_convex(model.loss, examples.y, z.shape[2:]):
        return CertificateStatus.NOT_CONVEX
    if effective < SMALLEST_SHARE or not bool(jnp.all(jnp.isfinite(z)) & jnp.all(jnp.isfinite(variances))):
        return CertificateStatus.DEGENERATE
    return CertificateStatus.DISAGREEMENT if r_hat > LARGEST_R_HAT else CertificateStatus.CERTIFIED


def _r_hat(between: Array, within: Array, particles: int) -> float:
    """sqrt((M - 1) / M + B / W), B and W the variances between and within replicates: the largest over the anchors."""
    ratio = jnp.max(jnp.where(within > 0, between / jnp.where(within > 0, within, 1), 0))
    return float(jnp.sqrt((particles - 1) / particles + ratio))


@jax.jit
def moments(model: Model, thetas: Array, x: Array) -> Moments:
    """Of every replicate, first axis of thetas, at every row of x."""

    def of_one(thetas):
        outputs = outputs_at(model, thetas, x)
        return Moments(jnp.mean(outputs, axis=0), jnp.var(outputs, axis=0, ddof=1))

    return jax.lax.map(of_one, thetas)


@jax.jit
def _stiffness(model: Model, thetas: Array, examples: Examples, weights: Array) -> Array:
    """The mean over replicates."""
    of_one = lambda thetas: stiffness(model, outputs_at(model, thetas, examples.x), examples.y, weights)  # noqa: E731
    return jnp.mean(jax.lax.map(of_one, thetas))


@jax.jit
def _fenchel_young(model: Model, y: Any, weights: Array, g: Array, z: Array) -> Array:
    """(FY) at every row of z, of shape (rows, anchors, outputs), summed from terms that are never negative."""
    loss = model.loss
    conjugate = loss.over_rows(loss.conjugate, g, y)

    def at(z):
        terms = loss.over_rows(loss.value, z, y) + conjugate - _inner(g, z)
        return jnp.sum(jnp.where(weights > 0, weights * jnp.maximum(terms, 0), 0))

    return jax.vmap(at)(z)


@jax.jit
def _parts(model: Model, y: Any, weights: Array, g: Array, z: Array) -> tuple[Array, Array, Array]:
    """The weighted means of the loss, of g . z and of the conjugate."""
    loss = model.loss
    parts = loss.over_rows(loss.value, z, y), _inner(g, z), loss.over_rows(loss.conjugate, g, y)
    risk, product, conjugate = (jnp.sum(jnp.where(weights > 0, weights * part, 0)) for part in parts)
    return risk, product, conjugate


@jax.jit
def _slope(model: Model, y: Any, weights: Array, g: Array, z: Array) -> Array:
    """The derivative of (FY) in z: w_i (l'(z_i) - g_i)."""
    return over_outputs(weights, g) * (model.loss.over_rows(model.loss.derivative, z, y) - g)


@jax.jit
def _along(potential: GibbsPotential, direction: Array, thetas: Array) -> Array:
    """sum_i direction_i . h(theta, x_i) for every particle of every replicate."""
    at = lambda theta: jnp.sum(direction * outputs_at(potential.model, theta[None], potential.anchors)[0])  # noqa: E731
    return jax.lax.map(jax.vmap(at), thetas)


def _inner(g: Array, z: Array) -> Array:
    return jnp.sum((g * z).reshape(len(z), -1), axis=1)
