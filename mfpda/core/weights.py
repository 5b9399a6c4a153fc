"""Importance weights of particles: effective sample size, the largest step that keeps it, and resampling."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

BISECTIONS = 40


def ess_fraction(log_weights: Array, mass: Array | None = None) -> Array:
    """Return (E w)^2 / E w^2, the effective sample size (sum w)^2 / sum w^2 divided by the number of particles M.

    E averages over particles, or over grid points with this ``mass``. The fraction is 1 if all weights are equal.
    """
    mass = jnp.full(log_weights.shape, 1 / len(log_weights), log_weights.dtype) if mass is None else mass
    log_weights = log_weights - jnp.max(jnp.where(mass > 0, log_weights, -jnp.inf))
    return jnp.exp(2 * logsumexp(log_weights, b=mass) - logsumexp(2 * log_weights, b=mass))


def largest_step(rise: Array, most: Array, share: Array | float, mass: Array | None = None) -> Array:
    """Find, by bisection, the largest s <= ``most`` at which weights exp(-s ``rise``) have ess_fraction >= ``share``.

    A particle with an infinite rise has weight 0 at every s.
    """

    def enough(step):
        return ess_fraction(jnp.where(jnp.isinf(rise), -jnp.inf, -step * rise), mass) >= share

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        keep = enough(middle)
        return jnp.where(keep, middle, low), jnp.where(keep, high, middle)

    _, high = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.zeros_like(most), most))
    return jnp.where(enough(most), most, high)


def systematic(key: Array, log_weights: Array, particles: int | None = None) -> Array:
    """Draw ``particles`` indices (by default one per weight) in proportion to the weights, by systematic resampling."""
    particles = len(log_weights) if particles is None else particles
    weights = jax.nn.softmax(log_weights)
    cumulative = jnp.cumsum(weights)
    points = (jax.random.uniform(key, dtype=cumulative.dtype) + jnp.arange(particles)) / particles
    last = jnp.max(jnp.where(weights > 0, jnp.arange(len(weights)), 0))  # rounding may put a point past the end
    return jnp.minimum(jnp.searchsorted(cumulative / cumulative[-1], points, side="right"), last)
