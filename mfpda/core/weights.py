"""Importance weights of particles: what they leave of a sample, how far one may go, and resampling by them."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

BISECTIONS = 40


def share_left(log_weights: Array, mass: Array | None = None) -> Array:
    """(E w)^2 / E w^2, expectations over the particles (or over nodes that have this mass): 1 if all weights agree.

    Times M it is the effective sample size, (sum w)^2 / sum w^2.
    """
    mass = jnp.full(log_weights.shape, 1 / len(log_weights), log_weights.dtype) if mass is None else mass
    log_weights = log_weights - jnp.max(jnp.where(mass > 0, log_weights, -jnp.inf))
    return jnp.exp(2 * logsumexp(log_weights, b=mass) - logsumexp(2 * log_weights, b=mass))


def reach(rise: Array, most: Array, share: Array | float, mass: Array | None = None) -> Array:
    """The largest step s, up to ``most``, at which the weights exp(-s rise) leave this share of a sample.

    By bisection; a particle whose rise is infinite has weight 0 at any s.
    """

    def enough(ahead):
        return share_left(jnp.where(jnp.isinf(rise), -jnp.inf, -ahead * rise), mass) >= share

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        keep = enough(middle)
        return jnp.where(keep, middle, low), jnp.where(keep, high, middle)

    _, high = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.zeros_like(most), most))
    return jnp.where(enough(most), most, high)


def systematic(key: Array, log_weights: Array, particles: int | None = None) -> Array:
    """Indices drawn in proportion to the weights, as many as there are weights or ``particles``: one uniform number,
    equally spaced points from it."""
    particles = len(log_weights) if particles is None else particles
    weights = jax.nn.softmax(log_weights)
    cumulative = jnp.cumsum(weights)
    points = (jax.random.uniform(key, dtype=cumulative.dtype) + jnp.arange(particles)) / particles
    last = jnp.max(jnp.where(weights > 0, jnp.arange(len(weights)), 0))  # rounding may take the last point past its end
    return jnp.minimum(jnp.searchsorted(cumulative / cumulative[-1], points, side="right"), last)
