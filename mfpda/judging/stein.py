"""A test of whether particles follow their Gibbs density. It needs no normalising constant.

Assumption (A3) of the paper requires KL(q^(t+1) || q_*^(t+1)) <= 1/t^2: particles sample each Gibbs density well. KL
cannot be computed from particles, but the kernel Stein discrepancy can.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import as_key, positive
from mfpda.errors import InputError
from mfpda.problem import GibbsPotential

MOST_PARTICLES = 1000  # the cost is quadratic in their number
BOOTSTRAPS = 1000
SCALES = (1.0, 0.1, 0.01)  # c^2 / (mean squared distance of two particles): from the whole law to one of its modes


class SteinTest(NamedTuple):
    """How unlikely particles are under exp(-V).

    ``statistic`` is the largest standardised discrepancy over the scales. ``p_value`` is the chance that independent
    draws give one as large. ``excess`` is E[(theta - mean) . grad V] / p - 1, which is 0 under exp(-V) in every
    dimension. For a Gaussian it is the relative excess of the particles' variance.
    """

    statistic: float
    p_value: float
    level: float
    excess: float
    excess_stderr: float

    @property
    def rejected(self) -> bool:
        return self.p_value < self.level

    def __repr__(self) -> str:
        verdict, excess = (
            "rejected" if self.rejected else "not rejected",
            f"{self.excess:.3f} +- {self.excess_stderr:.3f}",
        )
        return f"SteinTest({verdict} at level {self.level:g}: p = {self.p_value:.2g}, excess {excess})"


def stein_test(key: Array, thetas: Array, potential: GibbsPotential, level: float = 0.01) -> SteinTest:
    """Test the kernel Stein discrepancy of particles from their Gibbs potential at ``level``.

    With scores s = -grad V and the kernel k(a, b) = (1 + |a - b|^2 / c^2)^(-1/2),

        u(a, b) = s(a) . s(b) k + s(a) . grad_b k + s(b) . grad_a k + div_a grad_b k

    has expectation 0 over independent a, b of exp(-V) (Gorham and Mackey 2017). The discrepancy is the mean of u over
    pairs of different particles, and the statistic is the largest one over three scales c. Random signs simulate its
    null distribution (Chwialkowski, Strathmann and Gretton 2016). Each coordinate is divided by the particles' spread.
    The test is local: it does not notice wrong proportions between modes.

    It assumes independent particles. Those of a run are independent, except that they share V.
    """
    if not 0 < positive(level, "level") < 1:
        raise InputError("a level between 0 and 1", repr(level), "Give 0.01, for example.")
    if not hasattr(thetas, "shape") or len(thetas.shape) != 2:
        advice = "Pass fit.thetas: flat vectors in unconstrained space."
        raise InputError("particles as an array of shape (M, p)", type(thetas).__name__, advice)
    if len(thetas) < 3:
        raise InputError("at least 3 particles", str(len(thetas)), "Run with more of them.")
    statistic, p_value = map(float, _tested(as_key(key), thetas[:MOST_PARTICLES], potential))
    return SteinTest(statistic, p_value, level, *map(float, _excess(thetas, potential)))


@jax.jit
def _tested(key: Array, thetas: Array, potential: GibbsPotential) -> tuple[Array, Array]:
    spread = jnp.std(thetas, axis=0)
    spread = jnp.where(spread > 0, spread, 1)
    scores = -jax.vmap(jax.grad(potential))(thetas) * spread
    signs = jax.random.rademacher(key, (BOOTSTRAPS, len(thetas)), thetas.dtype)
    at_scales = []
    for scale in SCALES:
        u = _stein_kernel(thetas / spread, scores, scale)
        u = jnp.where(jnp.eye(len(u), dtype=bool), 0, u)
        by_chance = jnp.sum((signs @ u) * signs, axis=1)
        at_scales.append(jnp.append(by_chance, jnp.sum(u)) / jnp.std(by_chance))
    largest = jnp.max(jnp.stack(at_scales), axis=0)
    statistic, p_value = largest[-1], jnp.mean(largest >= largest[-1])  # the particles' own signs count as a draw
    return statistic, jnp.where(jnp.isnan(statistic), jnp.nan, p_value)


def _stein_kernel(points: Array, scores: Array, scale: float) -> Array:
    """Compute u at every pair of points."""
    p = points.shape[1]
    centred = points - jnp.mean(points, axis=0)
    squares = jnp.sum(jnp.square(centred), axis=1)
    distances = jnp.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0)
    c2 = scale * 2 * jnp.mean(squares)  # the mean squared distance of two points is twice the mean square
    q = 1 + distances / c2
    along = jnp.sum(scores * centred, axis=1)
    drift = along[:, None] + along - scores @ centred.T - centred @ scores.T  # (s(a) - s(b)) . (a - b)
    return (scores @ scores.T) * q**-0.5 + (drift + p) / c2 * q**-1.5 - 3 * distances / c2**2 * q**-2.5


@jax.jit
def _excess(thetas: Array, potential: GibbsPotential) -> tuple[Array, Array]:
    """Estimate E[(theta - mean) . grad V] / p - 1 and its standard error. V may have kinks: one derivative is used."""
    gradients = jax.vmap(jax.grad(potential))(thetas)
    products = jnp.sum((thetas - jnp.mean(thetas, axis=0)) * gradients, axis=1) / thetas.shape[1]
    return jnp.mean(products) - 1, jnp.std(products) / jnp.sqrt(len(thetas))
