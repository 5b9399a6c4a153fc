"""The best dual as far as the particles can tell: a step that several rules take."""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem.outputs import Deviations
from mfpda.rules.base import Problem, over_outputs

NEWTON_STEPS = 30  # one is enough for the squared loss, a few where l'' varies slowly
HALVINGS = 30
TOLERANCE = 1e-3  # of the conjugate gradients, and of what is left to win: Monte Carlo error is larger than either
MOST_PRODUCTS = 100


def predicted(deviations: Deviations, g: Array, weights: Array, problem: Problem) -> Array:
    """The predictions u whose l'(u) maximises the dual D, with D's log-normaliser to second order around g.

    With z and C the mean and covariance of the outputs under q_g, w the examples' weights (1/n), and d = w (g' - g),
    the maximum over g' of

        -sum_i w_i l*(g'_i) + z . d - d^T C d / (2 T)

    is at g' = l'(u), u = z - C d / T. One Newton step towards it from g = l'(u0) is Newton's for D itself,

        (I + C diag(w l''(u0)) / T) du = z - u0.

    Solved whole it leads upwards in D from any g, also from one that is no l'(u), as 0 is none for most losses: it has
    D's gradient at g, and is concave.

    Its own dual has one unknown a particle. With C = B^T B and u = z - B^T b it is the minimum over b of

        P(b) = sum_i w_i [ l(u_i) - g_i . (u_i - z_i) ] + (T / 2) |b|^2,

    strongly convex, with the symmetric Hessian T I + B diag(w l''(u)) B^T: Newton's method with conjugate gradients and
    a line search, each product one with H and one with its transpose, and no matrix over anchors or over particles.
    """
    z, temperature, (loss, y) = deviations.z, problem.temperature, (problem.loss, problem.y)
    shares = over_outputs(weights, z)

    def rise(length, b, ahead, u, moved):
        """P(b + length ahead) - P(b), example by example: P itself is so much larger that rounding would hide it."""
        new = u + length * moved
        losses = loss.over_rows(loss.value, new, y) - loss.over_rows(loss.value, u, y)
        penalty = temperature * length * (b @ ahead + length / 2 * ahead @ ahead)
        return weights @ losses - length * jnp.sum(shares * g * moved) + penalty

    def improve(carry):
        step, b, u, _ = carry
        ascent = deviations.matvec(shares * (problem.derivative(u, None) - g)) / temperature - b
        hessian = lambda v: v + deviations.curved(loss, weights, u, y, v) / temperature  # noqa: E731
        ahead, _ = jax.scipy.sparse.linalg.cg(hessian, ascent, tol=TOLERANCE, maxiter=MOST_PRODUCTS)
        moved, decrement = -deviations.rmatvec(ahead), ascent @ ahead
        lengths = 0.5 ** jnp.arange(HALVINGS, dtype=z.dtype)
        rises = jax.vmap(rise, in_axes=(0, None, None, None, None))(lengths, b, ahead, u, moved)
        rounding = 4 * jnp.finfo(z.dtype).eps * (weights @ jnp.abs(loss.over_rows(loss.value, u, y)))
        lower = rises <= rounding - 1e-4 * lengths * temperature * decrement
        length = jnp.where(jnp.any(lower), lengths[jnp.argmax(lower)], 0)
        return step + 1, b + length * ahead, u + length * moved, jnp.where(length > 0, decrement, 0)

    def unfinished(carry):
        step, _, _, decrement = carry
        return (step < NEWTON_STEPS) & (decrement > TOLERANCE)

    begun = (jnp.zeros((), int), jnp.zeros(deviations.mass.shape, z.dtype), z, jnp.full((), jnp.inf, z.dtype))
    return jax.lax.while_loop(unfinished, improve, begun)[2]
