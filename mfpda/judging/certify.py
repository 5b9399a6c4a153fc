"""How a fit is certified: an upper bound on its distance to the global optimum, by the duality gap of its density.

A dual g has the density q_g proportional to p0 exp(-(1/T) sum_i w_i g_i . h(theta, x_i)). The weights w_i are 1/n, or
a stream's shares. With the predictions z_i = E_{q_g} h(theta, x_i),

    L(q_g) - D(g) = sum_i w_i [ loss(z_i, y_i) + loss*(g_i, y_i) - g_i . z_i ]                                      (FY)

bounds L(q_g) - L* from above, and needs neither an entropy nor a normalising constant. For any q,

    L(q) - D(g) = T KL(q || q_g) + (FY) at q's own predictions.

So the gap is at least T [ KL(q_g || q*) + KL(q* || q_g) ]. By Pinsker's inequality, used twice, it bounds how much
predictions can still change.

z must be an expectation under q_g itself. A run's particles sample q_g only as well as their kernel mixes. So the
certificate draws its own replicates, each tempered from the prior with an adjusted kernel. A pilot fixes temperatures
and moves. Then the normaliser of a replicate times its mean is unbiased, and replicates weighted by their normalisers
have a bias of O(1/(R M)) only. A certificate cannot see a mode that all replicates miss.

A certificate spends what it needs. If the replicates disagree, a new pilot takes more moves and more temperatures. If
the bound is not decided, the number of replicates doubles. Both end when a budget of replicates is spent, or if a run
asks only whether the gap is small and it is clearly not. Each look at the bound takes its part of the error: look j may
err with probability (1 - level) / (j (j + 1)). A tenth of that is for the bound on what could be won.
"""

from dataclasses import replace
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
from mfpda.judging.certificate import BUDGET, Certificate
from mfpda.judging.replicates import Replicates, drawn, moments
from mfpda.problem import Problem, over_outputs, runs_away, seen_convex
from mfpda.sampling import FEWEST_TEMPERED, Tempering, draw_prior

FEWEST_REPLICATES = 4
FEWEST_PARTICLES = 200  # of a replicate
MOST_EFFORT = 3  # pilots that take twice the moves and temperatures of the pilot before
DECIDED = 0.2  # the bound is decided if noise is at most this share of it
NOTHING_TO_WIN = 0.005  # times T: then KL(q_g || q*) is at most this
HEAVIEST = 0.1  # the largest share of one particle in a variance; above it, the mean is far from normal


class Target(NamedTuple):
    """The bound that is small enough: a number, or a share of what could be won over the prior.

    With ``only_whether`` it is enough to know whether the gap is above or below it.
    """

    tolerance: float = 0.01
    gap: float | None = None
    only_whether: bool = False

    def bound(self, winnable: float, temperature: float) -> float:
        """Return the largest bound that is small enough, if at least ``winnable`` could be won.

        A bound of 0.005 T is always small enough: it means KL(q_g || q*) <= 0.005.
        """
        if self.gap is not None:
            return self.gap
        return float(np.fmax(self.tolerance * winnable, NOTHING_TO_WIN * temperature))


def certify(
    key: Array,
    problem: Problem,
    dual: Array,
    thetas: Array,
    *,
    tempering: Tempering = Tempering(),
    replicates: int = 8,
    particles: int = FEWEST_TEMPERED,
    level: float = 0.99,
    bound: float | None = None,
    stiffness: float = np.nan,
    target: Target = Target(),
) -> Certificate:
    """Certify q_g, for the dual g and the particles ``thetas`` of a run. ``Fit.certify`` documents the other arguments.

    ``stiffness`` is that of the run, which the certificate repeats. Without a run it is that of q_g. The certificate is
    finished when the bound is decided or the budget is spent.
    """
    largest = _check(replicates, particles, level, bound)
    own = moments(problem, thetas)[0]
    judge = _Judge(problem, *_project(problem, dual), own, len(thetas), bound, largest, stiffness, target, level)
    potential = problem.potential(over_outputs(problem.weights, judge.g) * judge.g)
    improper = Certificate.without_sample(
        CertificateStatus.IMPROPER, np.full(own.shape, np.nan), float(problem.temperature), level
    )
    if np.any(runs_away(potential, thetas)):
        return improper
    prior_key, sample_key = jax.random.split(key)
    budget = BUDGET * max(1, max(FEWEST_TEMPERED, len(thetas)) // particles)
    effort, look, spent, gradients, sample = 0, 0, 0, 0.0, None
    while True:
        look += 1
        pilot_key, draw_key = jax.random.split(jax.random.fold_in(sample_key, look))
        if sample is None:
            pilot = tempering.sample(pilot_key, potential, particles, effort=effort)
            spent, gradients = spent + 1, gradients + particles * float(pilot.stats.gradients)
        more = drawn(draw_key, potential, tempering, replicates, particles, pilot.ladder)
        sample, spent = more if sample is None else sample.joined(more), spent + replicates
        replicates = len(sample.z)
        gradients += particles * float(jnp.sum(more.stats.gradients))
        if np.any(runs_away(potential, more.thetas.reshape(-1, more.thetas.shape[-1]))):
            return improper
        judged = judge(prior_key, sample, look, gradients)
        if judged.status in (CertificateStatus.DEGENERATE, CertificateStatus.DISAGREEMENT):
            if effort == MOST_EFFORT or spent + 1 + replicates > budget or judged.decided:
                return judged
            effort, sample = effort + 1, None  # as many replicates again, so that those that disagreed count
        elif judged.decided or judged.status is not CertificateStatus.CERTIFIED or spent + replicates > budget:
            return judged


class _Judge(NamedTuple):
    """What a certificate judges samples by."""

    problem: Problem
    g: Array
    feasible: bool
    own: Array  # the predictions of the run's particles
    independent: int  # the number of the run's particles
    bound: float | None
    largest: float  # a bound on |h|, infinite if none is known
    stiffness: float
    target: Target
    level: float

    def __call__(self, prior_key: Array, sample: Replicates, look: int, gradients: float) -> Certificate:
        """Judge this sample. The method is long because it fills in every number of the certificate, one per line."""
        _check_bound(sample, self.largest)
        problem, bound, own = self.problem, self.bound, self.own
        replicates, particles = len(sample.z), sample.thetas.shape[1]
        error = part_of_error(1 - self.level, look)
        quantile, quantile_of_prior = map(float, scipy.stats.t.isf((0.9 * error, 0.1 * error), replicates - 1))
        shares, temperature = over_outputs(problem.weights, sample.mean), float(problem.temperature)
        inflation = sample.inflation(shares)
        kappa = float(_stiffness(problem, sample.thetas[:FEWEST_REPLICATES], sample.z[:FEWEST_REPLICATES]))
        found = _gap(problem, self.g, sample, own, kappa * temperature * inflation)
        status = _status(problem, sample, found, self.feasible)
        known = 1.0 if status is CertificateStatus.CERTIFIED else np.nan  # a factor
        upper = found.plain + quantile * found.stderr if known == 1 else np.inf

        stats, log_normalisers = sample.stats, np.asarray(sample.stats.log_normaliser, float)
        log_normaliser = float(logsumexp(log_normalisers) - np.log(replicates))
        dual_value = -found.conjugate - temperature * log_normaliser
        dual_stderr = temperature * _stderr(log_normalisers)
        prior_risk, prior_stderr = _prior_risk(prior_key, problem, replicates, particles)
        winnable = prior_risk - dual_value
        winnable_lower = winnable - quantile_of_prior * float(np.hypot(prior_stderr, dual_stderr))
        asked = self.target.bound(winnable_lower, temperature)
        above = self.target.only_whether and found.corrected - quantile * found.stderr > asked
        decided = known == 1 and (upper <= asked or upper - found.corrected <= DECIDED * upper)
        decided |= above and status in (CertificateStatus.CERTIFIED, CertificateStatus.DISAGREEMENT)
        kl = -found.product / temperature - log_normaliser
        strength = problem.loss.strong_convexity(self.largest)
        noise = jnp.sum(shares * (sample.within / self.independent + sample.between / replicates))
        return Certificate(
            status=status,
            gap=known * max(found.corrected, 0.0),
            stderr=known * found.stderr,
            upper=upper,
            level=self.level,
            decided=bool(decided),
            asked=asked,
            winnable=known * winnable,
            winnable_lower=known * winnable_lower,
            temperature=temperature,
            risk=known * found.risk,
            prior_risk=prior_risk,
            prior_stderr=prior_stderr,
            kl=known * kl,
            objective=known * (found.risk + temperature * kl),
            objective_stderr=known * _stderr(found.linearised - temperature * log_normalisers),
            dual_value=known * dual_value,
            dual_stderr=known * dual_stderr,
            log_normaliser=known * log_normaliser,
            log_normaliser_stderr=known * _stderr(log_normalisers),
            predictions=np.asarray(sample.mean),
            prediction_rms_bound=min(float(np.sqrt(2 * upper / strength)), 2 * self.largest) if strength > 0 else None,
            prediction_bound=None if bound is None else min(float(bound * np.sqrt(upper / temperature)), 2 * bound),
            particle_distance=known * float(jnp.sqrt(jnp.sum(shares * jnp.square(own - sample.mean)))),
            particle_noise=known * float(jnp.sqrt(noise)),
            particle_gap=known * found.at_particles,
            stiffness=kappa if np.isnan(self.stiffness) else self.stiffness,
            effective_sample_size=replicates * sample.size / inflation,
            r_hat=sample.r_hat,
            replicates=replicates,
            particles=particles,
            temperatures=float(jnp.mean(stats.temperatures)),
            acceptance=float(jnp.mean(stats.acceptance)),
            gradients=gradients,
        )


def part_of_error(error: float, k: int) -> float:
    """Return error / (k (k + 1)): over k = 1, 2, ... these parts sum to the error."""
    return error / (k * (k + 1))


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


def _check_bound(sample: Replicates, largest: float) -> None:
    """Refuse a bound on |h| that is below a root mean square of h in the sample."""
    squares = jnp.square(sample.mean) + sample.within
    seen = float(jnp.sqrt(jnp.max(jnp.sum(squares.reshape(len(squares), -1), axis=1))))
    if seen > 1.01 * largest:
        found = f"{largest:g}, where |h| has a root mean square of {seen:.3g}"
        raise InputError("a bound on |h(theta, x)|", found, "Give a larger one, or none.")


def _project(problem: Problem, g: Array) -> tuple[Array, bool]:
    """Move a dual that left the conjugate's domain by rounding back into it. Return it and whether it is feasible."""
    conjugates = _conjugates(problem, g)
    feasible = bool(jnp.all(jnp.isfinite(conjugates) | (problem.weights == 0)))
    return (problem.per_example(problem.loss.projected, g) if feasible else g), feasible


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


def _gap(problem: Problem, g: Array, sample: Replicates, own: Array, noise: float) -> _Gap:
    """Compute (FY) at the mean z of the R replicates' predictions, and at the run's own.

    (FY) is convex in z, so noise in z makes it too large. The jackknife removes this bias in ``corrected``, exactly for
    the squared loss. The upper bound keeps it. The error has two parts. One is linear in the noise: the jackknife's
    error between replicates, but at least that of R S independent draws, with S the places of all particles of a
    replicate. The other is quadratic, and is all of the error if g is optimal: the largest eigenvalue of the noise's
    covariance in the metric of l'', ``noise`` / (R S), divided by sqrt(2).
    """
    replicates = len(sample.z)
    weights = over_outputs(sample.shares, sample.z)
    others = (sample.mean - weights * sample.z) / (1 - weights)
    pairs = [(sample.mean, own), *zip(others, sample.z, strict=True)]  # two at a time: one program for any R
    at_pairs = (np.asarray(_fenchel_young(problem, g, jnp.stack(pair)), float) for pair in pairs)
    (first, at_own), *rest = (parts.T for parts in at_pairs)
    (plain, risk, product, conjugate), at_particles = map(float, first), float(at_own[0])
    left_out, linearised = np.array([(without[0], alone[1] - alone[2]) for without, alone in rest]).T
    with np.errstate(invalid="ignore"):  # an infeasible dual has no finite number
        pseudo = replicates * plain - (replicates - 1) * left_out
    along = np.stack([_linear_parts(problem, g, sample.mean, thetas) for thetas in sample.thetas]).astype(float)
    independent = along.var(axis=1, ddof=1).mean() / sample.size
    linear = max(pseudo.var(ddof=1), independent) / replicates
    square = 0.5 * (noise / (replicates * sample.size)) ** 2
    deviations = (along - along.mean()) ** 2
    heaviest = float(deviations.max() / deviations.sum()) if deviations.sum() > 0 else 0.0
    corrected, stderr = float(pseudo.mean()), float(np.sqrt(linear + square))
    return _Gap(plain, corrected, stderr, at_particles, heaviest, risk, product, conjugate, linearised)


def _status(problem: Problem, sample: Replicates, found: _Gap, feasible: bool) -> CertificateStatus:
    loss, reach = problem.loss, max(10.0, 2 * float(jnp.max(jnp.abs(jnp.nan_to_num(sample.z)))))
    if not loss.convex and not seen_convex(loss, problem.y, sample.mean.shape[1:], reach):
        return CertificateStatus.NOT_CONVEX
    if not feasible:
        return CertificateStatus.INFEASIBLE
    if sample.status is not CertificateStatus.CERTIFIED:
        return sample.status
    if not np.isfinite(found.plain + found.stderr):
        return CertificateStatus.NOT_FINITE
    matters = found.stderr > 0.05 * found.plain  # one particle with a bounded output hardly moves a large gap
    return CertificateStatus.HEAVY_TAILED if found.heaviest > HEAVIEST and matters else CertificateStatus.CERTIFIED


def _stderr(values: np.ndarray) -> float:
    """Return the standard error of the mean of these numbers, one per replicate."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _prior_risk(key: Array, problem: Problem, replicates: int, particles: int) -> tuple[float, float]:
    """Estimate L(p0), the risk of the prior's predictions, and its error: a jackknife over fresh draws."""
    z = jnp.stack([_prior_predictions(each, problem, particles) for each in jax.random.split(key, replicates)])
    others = (jnp.sum(z, axis=0) - z) / (replicates - 1)
    whole, *parts = (float(problem.risk(each)) for each in (jnp.mean(z, axis=0), *others))
    pseudo = replicates * whole - (replicates - 1) * np.array(parts)
    return float(pseudo.mean()), _stderr(pseudo)


@partial(jax.jit, static_argnames="particles")
def _prior_predictions(key: Array, problem: Problem, particles: int) -> Array:
    return problem.predict(draw_prior(key, particles, problem))


@jax.jit
def _stiffness(problem: Problem, thetas: Array, z: Array) -> Array:
    """Average the stiffness over replicates, whose predictions are z."""
    return jnp.mean(jax.lax.map(lambda each: problem.stiffness(*each), (thetas, z)))


def _fenchel_young(problem: Problem, g: Array, z: Array) -> tuple[Array, ...]:
    """Compute (FY) from terms that are never negative, and the means of loss, g . z and conjugate, at each row of z.

    z has shape (rows, anchors, outputs). The terms nearly cancel, and the jackknife multiplies their rounding errors by
    the number of replicates. So they are computed in double precision.
    """
    rough = _conjugates(problem, g)
    with jax.enable_x64(True):
        return _fenchel_young_of(*jax.tree.map(_doubled, (replace(problem, x=problem.x[:0]), g, rough, z)))


def _doubled(part: Array | float) -> np.ndarray:
    found = np.asarray(part)
    return found.astype(float) if np.issubdtype(found.dtype, np.floating) else found


@jax.jit
def _conjugates(problem: Problem, g: Array) -> Array:
    return problem.per_example(problem.loss.conjugate, g)


@jax.jit
def _fenchel_young_of(problem: Problem, g: Array, rough: Array, z: Array) -> tuple[Array, ...]:
    """(FY) in double precision. A dual of single precision may lie outside the domain by its rounding error.

    It is moved back. If the loss cannot do that, the conjugate is ``rough``, that of single precision.
    """
    g = problem.per_example(problem.loss.projected, g)
    conjugate = problem.per_example(problem.loss.conjugate, g)
    conjugate = jnp.where(jnp.isfinite(conjugate), conjugate, rough)

    def at(z):
        value, product = problem.per_example(problem.loss.value, z), jnp.sum((g * z).reshape(len(z), -1), axis=1)
        terms = (jnp.maximum(value + conjugate - product, 0), value, product, conjugate)
        return tuple(map(problem.weighted, terms))

    return jax.vmap(at)(z)


@jax.jit
def _linear_parts(problem: Problem, g: Array, z: Array, thetas: Array) -> Array:
    """Compute sum_i w_i (l'(z_i) - g_i) . h(theta, x_i), from the derivative of (FY) in z, for every particle."""
    return problem.projections(thetas, over_outputs(problem.weights, g) * (problem.derivative(z) - g))
