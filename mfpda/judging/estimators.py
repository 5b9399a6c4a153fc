"""Entropy, KL to the prior and the objective of a law, estimated from its particles.

Nearest neighbours need only the particles, but work only in few dimensions: on Gaussians they err by whole nats from
p = 6 on. Tempering gives KL(q || p0) of a Gibbs density in any dimension, from its log-normaliser. It describes the
density, not the particles.
"""

import math
import warnings
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from scipy.spatial import cKDTree
from scipy.special import digamma, gammaln

from mfpda.core import as_key, positive, positive_count
from mfpda.errors import HighDimensionWarning, InputError
from mfpda.problem import GibbsPotential, Problem, over_outputs, predictions
from mfpda.sampling import FEWEST_TEMPERED, Tempering

MOST_DIMENSIONS = 5  # for nearest neighbours
REPLICATES = 8  # of tempering: the error is measured between them


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    stderr: float


class Objective(NamedTuple):
    """L(q) = risk + T KL(q || p0), and the method for KL: "nearest neighbours" or "tempering"."""

    value: float
    stderr: float
    risk: float
    kl: float
    method: str


def entropy(points: ArrayLike, k: int = 10) -> Estimate:
    """Estimate the entropy -E log q from draws of q, an array of shape (M, p), by k nearest neighbours.

    With r_i the distance from point i to its k-th neighbour and c_p the volume of the unit ball,

        H = psi(M) - psi(k) + log c_p + (p / M) sum_i log r_i

    (Kozachenko and Leonenko 1987; the paper's estimator, with its k = 10). Points that coincide count once, because
    draws of a density never coincide. Above p = 5 the number is not reliable, and a warning says so.

    >>> points = np.random.default_rng(0).normal(size=(4000, 2))
    >>> H = entropy(points)
    >>> abs(H.value - math.log(2 * math.pi * math.e)) < 4 * H.stderr
    True
    """
    terms, _ = _entropy_terms(points, k)
    return Estimate(float(terms.mean()), float(terms.std(ddof=1) / math.sqrt(len(terms))))


def _entropy_terms(points: ArrayLike, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the terms whose mean is the entropy, one per distinct point, and the indices of these points."""
    points = np.asarray(points, float) if hasattr(points, "shape") else np.empty((0, 0, 0))
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not np.isfinite(points).all():
        raise InputError("finite points as an array of shape (M, p)", "something else", "Pass fit.thetas.")
    distinct, which = np.unique(points, axis=0, return_index=True)
    count, p = distinct.shape
    if positive_count(k, "k") >= count:
        expected, found = f"more than k = {k} distinct points", f"{count} distinct of {len(points)}"
        raise InputError(expected, found, "Use more particles, or a smaller k.")
    if p > MOST_DIMENSIONS:
        warning = f"In {p} dimensions nearest neighbours miss the entropy by whole nats (10 at p = 51, 226 at p = 785)."
        advice = "Use the KL of a certificate, or estimators.kl_to_prior: they temper instead."
        warnings.warn(f"{warning} {advice}", HighDimensionWarning, stacklevel=3)
    reach = cKDTree(distinct).query(distinct, k + 1)[0][:, -1]
    log_ball = 0.5 * p * math.log(math.pi) - gammaln(0.5 * p + 1)
    return digamma(count) - digamma(k) + log_ball + p * np.log(reach), which


def kl_to_prior(
    key: Array, potential: GibbsPotential, particles: int = FEWEST_TEMPERED, temper: Tempering = Tempering()
) -> Estimate:
    """Estimate KL(q || p0) = E_q[-V - log p0] - log Z of the Gibbs density q = exp(-V) / Z.

    Replicates are tempered from the prior, and the error is measured between them.
    """
    drawn = temper.replicates(as_key(key), potential, positive_count(particles, "particles"), REPLICATES)
    each = np.asarray(_excess(potential, drawn.thetas), float) - np.asarray(drawn.stats.log_normaliser, float)
    return Estimate(float(each.mean()), float(each.std(ddof=1) / math.sqrt(REPLICATES)))


class Fitted(Protocol):
    """The parts of a fit that ``objective`` uses."""

    @property
    def problem(self) -> Problem: ...
    @property
    def thetas(self) -> Array: ...
    @property
    def last_potential(self) -> GibbsPotential: ...


def objective(key: Array, fit: Fitted, k: int = 10) -> Objective:
    """Estimate L(q) of the law of a fit's particles in unconstrained space. KL does not depend on coordinates.

    With at most 5 parameters, KL = -H(q) - E_q log p0 comes from the particles, by nearest neighbours. With more, it is
    the KL of the Gibbs density that they last sampled, by tempering. (``fit.certify`` gives L(q_g).)
    """
    problem, thetas = fit.problem, fit.thetas
    temperature, z = float(problem.temperature), predictions(problem, thetas)
    risk, slope = float(problem.risk(z)), over_outputs(problem.weights, z) * problem.derivative(z)
    linear = np.asarray(problem.projections(thetas, slope), float)  # each particle's part of the risk, to first order
    if thetas.shape[1] <= MOST_DIMENSIONS:
        terms, which = _entropy_terms(thetas, k)
        each = -terms - np.asarray(_log_priors(problem, thetas), float)[which]
        spread = np.std(linear[which] + temperature * each, ddof=1) / math.sqrt(len(each))
        kl, method = float(each.mean()), "nearest neighbours"
    else:
        tempered = kl_to_prior(key, fit.last_potential, max(len(thetas), FEWEST_TEMPERED))
        spread = math.hypot(np.std(linear, ddof=1) / math.sqrt(len(linear)), temperature * tempered.stderr)
        kl, method = tempered.value, "tempering"
    return Objective(risk + temperature * kl, float(spread), risk, kl, method)


def in_paper_form(objective: float, p: int, lambda1: float, lambda2: float) -> float:
    """For the prior of ``penalty``, convert L(q) to the paper's risk + lambda1 E|theta|^2 + lambda2 E log q.

    L_paper = L - (p lambda2 / 2) log(pi lambda2 / lambda1) for p parameters.

    >>> print(f"{in_paper_form(0.5, p=2, lambda1=1e-2, lambda2=1e-3):.6f}")
    0.501158
    """
    lambda1, lambda2 = positive(lambda1, "lambda1"), positive(lambda2, "lambda2")
    return objective - 0.5 * positive_count(p, "p") * lambda2 * math.log(math.pi * lambda2 / lambda1)


_log_priors = jax.jit(lambda problem, thetas: jax.vmap(problem.log_prior)(thetas))


@jax.jit
def _excess(potential: GibbsPotential, thetas: Array) -> Array:
    """Average -V - log p0 over the particles of every replicate."""
    values = jax.vmap(lambda theta: -potential(theta) - potential.problem.log_prior(theta))
    return jax.lax.map(lambda thetas: jnp.mean(values(thetas)), thetas)
