"""The best dual by the particles' estimate: a step that several rules share."""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem import Deviations, Problem, over_outputs

NEWTON_STEPS = 30  # one is enough for the squared loss, and a few if l'' varies slowly
HALVINGS = 30
TOLERANCE = 1e-3  # of the conjugate gradients, and of the Newton decrement: Monte Carlo error is larger than either
MOST_PRODUCTS = 100


def predicted(deviations: Deviations, g: Array, problem: Problem) -> Array:
    """Return the predictions u whose l'(u) maximises the dual D, with D's log-normaliser to second order around g.

    With z and C the mean and covariance of the outputs under q_g, w the examples' weights (1/n), and d = w (g' - g),
    the maximum over g' of

        -sum_i w_i l*(g'_i) + z . d - d^T C d / (2 T)

    is at g' = l'(u), u = z - C d / T. From g = l'(u0), one Newton step towards it is also the Newton step for D itself,

        (I + C diag(w l''(u0)) / T) du = z - u0.

    The full solution increases D from any g, because this model of D is concave and has D's gradient at g. The dual of
    this quadratic problem has M unknowns. With C = B^T B and u = z - B^T b, minimise

        P(b) = sum_i w_i [ l(u_i) - g_i . (u_i - z_i) ] + (T / 2) |b|^2.

    P is strongly convex with Hessian T I + B diag(w l''(u)) B^T. Newton's method with conjugate gradients and a line
    search needs products with H and its transpose only, and no matrix over anchors or particles.
    """
    z, temperature, weights = deviations.z, problem.temperature, problem.weights
    shares = over_outputs(weights, z)
    losses_at = lambda u: problem.per_example(problem.loss.value, u)  # noqa: E731

    def rise(length, b, ahead, u, moved):
        """P(b + length * ahead) - P(b), summed example by example to avoid rounding errors."""
        new = u + length * moved
        losses = losses_at(new) - losses_at(u)
        penalty = temperature * length * (b @ ahead + length / 2 * ahead @ ahead)
        return weights @ losses - length * jnp.sum(shares * g * moved) + penalty

    def improve(carry):
        step, b, u, _ = carry
        ascent = deviations.matvec(shares * (problem.derivative(u) - g)) / temperature - b
        hessian = lambda v: v + deviations.curved(problem, u, v) / temperature  # noqa: E731
        ahead, _ = jax.scipy.sparse.linalg.cg(hessian, ascent, tol=TOLERANCE, maxiter=MOST_PRODUCTS)
        moved, decrement = -deviations.rmatvec(ahead), ascent @ ahead
        lengths = 0.5 ** jnp.arange(HALVINGS, dtype=z.dtype)
        rises = jax.vmap(rise, in_axes=(0, None, None, None, None))(lengths, b, ahead, u, moved)
        rounding = 4 * jnp.finfo(z.dtype).eps * (weights @ jnp.abs(losses_at(u)))
        lower = rises <= rounding - 1e-4 * lengths * temperature * decrement
        length = jnp.where(jnp.any(lower), lengths[jnp.argmax(lower)], 0)
        return step + 1, b + length * ahead, u + length * moved, jnp.where(length > 0, decrement, 0)

    unfinished = lambda carry: (carry[0] < NEWTON_STEPS) & (carry[-1] > TOLERANCE)  # noqa: E731
    begun = (jnp.zeros((), int), jnp.zeros(deviations.mass.shape, z.dtype), z, jnp.full((), jnp.inf, z.dtype))
    return jax.lax.while_loop(unfinished, improve, begun)[2]
