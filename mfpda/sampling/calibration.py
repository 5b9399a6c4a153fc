"""Calibration: particles moved a little, so that they predict as the fitted density does."""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem import Problem

MOST_ROUNDS = 20
CLOSE = 1e-2  # of the first distance
LENGTHS = (1.0, 0.4, 0.1)  # of a move; the best is taken
MOST_PRODUCTS = 30
RIDGE = 1e-3  # of the largest response that is seen, so that directions which hardly respond stay as they are


@jax.jit
def calibrated(problem: Problem, thetas: Array, target: Array) -> Array:
    """Move the particles so that their mean outputs at the anchors approach ``target``.

    M independent draws of a density predict with an error of order 1/sqrt(M), which their dual does not have. With J_r
    the derivative of the outputs of particle r, and S^2 the particles' variances, Newton's method for the mean is

        theta_r <- theta_r - S^2 J_r^T a,      (K + ridge) a = z - target,      K = (1/M) sum_r J_r S^2 J_r^T.

    Particles move by about 1/sqrt(M) of their spread, so their law hardly changes. Outputs are not linear in theta, so
    shorter moves are tried too. The rounds end when the distance is 1/100 of what it was, or no longer falls.
    """
    variance = jnp.var(thetas, axis=0)

    def improve(carry):
        rounds, thetas, _, first = carry
        off = problem.predict(thetas) - target

        def moves(a):
            energy = problem.potential(a * problem.temperature).data_energy
            return -variance * jax.vmap(jax.grad(energy))(thetas)

        def response(a):
            return -jax.jvp(problem.predict, (thetas,), (moves(a),))[1]

        ridge = RIDGE * jnp.linalg.norm(response(off)) / jnp.maximum(jnp.linalg.norm(off), 1e-30)
        a, _ = jax.scipy.sparse.linalg.cg(lambda a: response(a) + ridge * a, off, tol=1e-3, maxiter=MOST_PRODUCTS)
        ahead = moves(a)

        def distance(length):
            found = jnp.sum(jnp.square(problem.predict(thetas + length * ahead) - target))
            return jnp.where(jnp.isfinite(found), found, jnp.inf)

        lengths = jnp.asarray([0.0, *LENGTHS], thetas.dtype)
        distances = jax.lax.map(distance, lengths)
        best = jnp.argmin(distances)
        thetas = jnp.where(best > 0, thetas + lengths[best] * ahead, thetas)
        first = jnp.where(rounds == 0, distances[0], first)
        close = (distances[best] <= CLOSE**2 * first) | (best == 0)
        return rounds + 1, thetas, close, first

    unfinished = lambda carry: (carry[0] < MOST_ROUNDS) & ~carry[2]  # noqa: E731
    begun = jnp.zeros((), int), thetas, jnp.zeros((), bool), jnp.zeros((), thetas.dtype)
    return jax.lax.while_loop(unfinished, improve, begun)[1]
