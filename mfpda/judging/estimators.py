"""Numbers of a law that is known by its particles: entropy, KL to the prior, the objective.

Two ways to the entropy term. Nearest neighbours need only the particles, and only work in few dimensions: measured
against Gaussians they are off by nats from p = 6 on. Tempering gives KL(q || p0) of a Gibbs density in any dimension,
from its log-normaliser, and speaks of the density, not of the particles.
"""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.spatial import cKDTree
from scipy.special import digamma, gammaln

from mfpda.core.keys import as_key
from mfpda.core.schedules import positive, positive_count
from mfpda.errors import HighDimensionWarning, InputError
from mfpda.problem.losses import weighted
from mfpda.problem.model import Model
from mfpda.problem.outputs import projections
from mfpda.problem.potential import GibbsPotential
from mfpda.rules.base import over_outputs
from mfpda.sampling.tempering import FEWEST_TEMPERED
from mfpda.starts import Temper

MOST_DIMENSIONS = 5  # for nearest neighbours
REPLICATES = 8  # for tempering, between which its error is measured


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    stderr: float


class Objective(NamedTuple):
    """L(q) = risk + T KL(q || p0), and which way KL was found: "nearest neighbours" or "tempering"."""

    value: float
    stderr: float
    risk: float
    kl: float
    method: str


def entropy(points: Any, k: int = 10) -> Estimate:
    """-E log q of the law that these points, shape (M, p), were drawn from, by k nearest neighbours.

    With r_i the distance from point i to its k-th neighbour and c_p the volume of the unit ball,

        H = psi(M) - psi(k) + log c_p + (p / M) sum_i log r_i

    (Kozachenko and Leonenko 1987; the paper's estimator, with its k = 10). Points that coincide count once: a density
    has none. Above p = 5 a warning says that the number is not to be trusted.

    >>> points = np.random.default_rng(0).normal(size=(4000, 2))
    >>> H = entropy(points)
    >>> abs(H.value - math.log(2 * math.pi * math.e)) < 4 * H.stderr
    True
    """
    terms, _ = _entropy_terms(points, k)
    return Estimate(float(terms.mean()), float(terms.std(ddof=1) / math.sqrt(len(terms))))


def _entropy_terms(points: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The terms whose mean is the entropy, one per distinct point, and which points those are."""
    points = np.asarray(points, float) if hasattr(points, "shape") else np.empty(0).reshape(0, 0, 0)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not np.isfinite(points).all():
        raise InputError("finite points as an array of shape (M, p)", "something else", "Pass fit.thetas, say.")
    distinct, which = np.unique(points, axis=0, return_index=True)
    count, p = distinct.shape
    if positive_count(k, "k") >= count:
        found = f"{count} distinct of {len(points)}"
        raise InputError(f"more than k = {k} distinct points", found, "Use more particles, or a smaller k.")
    if p > MOST_DIMENSIONS:
        warnings.warn(
            f"Nearest neighbours in {p} dimensions are nats away from the entropy (10 at p = 51, 226 at p = 785). "
            "Use the KL of a certificate, or estimators.kl_to_prior: they temper instead.",
            HighDimensionWarning,
            stacklevel=3,
        )
    reach = cKDTree(distinct).query(distinct, k + 1)[0][:, -1]
    log_ball = 0.5 * p * math.log(math.pi) - gammaln(0.5 * p + 1)
    return digamma(count) - digamma(k) + log_ball + p * np.log(reach), which


def kl_to_prior(
    key: Array, potential: GibbsPotential, particles: int = FEWEST_TEMPERED, temper: Temper = Temper()
) -> Estimate:
    """KL(q || p0) of the Gibbs density q = exp(-V) / Z, from replicates tempered from the prior.

    KL = E_q[-V - log p0] - log Z. The error is the one between replicates.
    """
    thetas, stats = temper.replicated(as_key(key), potential, positive_count(particles, "particles"), REPLICATES)
    each = np.asarray(_excess(potential, thetas), float) - np.asarray(stats.log_normaliser, float)
    return Estimate(float(each.mean()), float(each.std(ddof=1) / math.sqrt(REPLICATES)))


def objective(key: Array, fit: Any, k: int = 10) -> Objective:
    """L(q) of the law of a fit's particles, in unconstrained space: KL does not depend on coordinates.

    With at most 5 parameters, KL = -H(q) - E_q log p0 from the particles, by nearest neighbours. With more, KL of the
    Gibbs density that they last sampled, by tempering, next to the particles' own risk. (``fit.certify`` gives L(q_g).)
    """
    thetas, model, (x, y, blocks) = fit.thetas, fit.model, fit.examples
    temperature, z = float(model.temperature), fit.predict(x)
    risk = float(weighted(fit.weights, model.loss.over_rows(model.loss.value, z, y)))
    slope = over_outputs(fit.weights, z) * model.loss.over_rows(model.loss.derivative, z, y)
    linear = np.asarray(
        projections(model, thetas, x, slope, blocks), float
    )  # what each particle adds to the risk, to 1st order
    if thetas.shape[1] <= MOST_DIMENSIONS:
        terms, which = _entropy_terms(thetas, k)
        each = -terms - np.asarray(_log_priors(model, thetas, x[0]), float)[which]
        spread = np.std(linear[which] + temperature * each, ddof=1) / math.sqrt(len(each))
        kl, method = float(each.mean()), "nearest neighbours"
    else:
        tempered = kl_to_prior(key, fit.last_potential, max(len(thetas), FEWEST_TEMPERED))
        spread = math.hypot(np.std(linear, ddof=1) / math.sqrt(len(linear)), temperature * tempered.stderr)
        kl, method = tempered.value, "tempering"
    return Objective(risk + temperature * kl, float(spread), risk, kl, method)


def in_paper_form(objective: float, p: int, lambda1: float, lambda2: float) -> float:
    """The paper's risk + lambda1 E|theta|^2 + lambda2 E log q, from L(q) with the prior that ``penalty`` gives.

    L_paper = L - (p lambda2 / 2) log(pi lambda2 / lambda1), p the number of parameters.

    >>> print(f"{in_paper_form(0.5, p=2, lambda1=1e-2, lambda2=1e-3):.6f}")
    0.501158
    """
    lambda1, lambda2 = positive(lambda1, "lambda1"), positive(lambda2, "lambda2")
    return objective - 0.5 * positive_count(p, "p") * lambda2 * math.log(math.pi * lambda2 / lambda1)


@jax.jit
def _excess(potential: GibbsPotential, thetas: Array) -> Array:
    """E[-V - log p0] over the particles of every replicate."""
    of_one = lambda theta: -potential(theta) - potential.model.log_prior(theta, potential.anchors[0])  # noqa: E731
    return jax.lax.map(lambda thetas: jnp.mean(jax.vmap(of_one)(thetas)), thetas)


@jax.jit
def _log_priors(model: Model, thetas: Array, x: Array) -> Array:
    return jax.vmap(model.log_prior, in_axes=(0, None))(thetas, x)
