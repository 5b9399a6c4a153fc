"""The largest eigenvalue of a linear operator, found from matrix-vector products only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def largest_eigenvalue(product: Callable[[Array], Array], start: Array, iterations: int) -> Array:
    """Estimate the largest absolute eigenvalue by power iteration from ``start``, v <- A v / |A v|. Return |A v|.

    >>> float(largest_eigenvalue(lambda v: jnp.asarray([-3.0, 1.0]) * v, jnp.ones(2), iterations=20))
    3.0
    """

    def iterate(_, carry):
        v, _ = carry
        image = product(v)
        size = jnp.linalg.norm(image)
        return image / jnp.maximum(size, jnp.finfo(size.dtype).tiny), size

    begun = (start / jnp.linalg.norm(start), jnp.zeros((), start.dtype))
    return jax.lax.fori_loop(0, iterations, iterate, begun)[1]


def largest_of_symmetric(product: Callable[[Array], Array], start: Array, iterations: int) -> Array:
    """Estimate the largest eigenvalue of a positive semi-definite operator A by Lanczos's method.

    Q is an orthonormal basis of start, A start, ... The estimate is the largest eigenvalue of Q^T A Q. It never exceeds
    that of A. After a few products it is far more accurate than power iteration.

    >>> float(largest_of_symmetric(lambda v: jnp.asarray([3.0, 2.9, 1.0]) * v, jnp.ones(3), iterations=3))
    3.0
    """
    smallest = 100 * jnp.finfo(start.dtype).eps

    def extend(k, carry):
        basis, images, v = carry
        rest = v - basis.T @ (basis @ v)
        rest = rest - basis.T @ (basis @ rest)  # a second pass removes rounding errors
        size = jnp.linalg.norm(rest)
        unit = rest / jnp.where(size > 0, size, 1)
        new = jnp.where(size > smallest * jnp.linalg.norm(v), unit, 0)  # 0 if there is no new direction
        image = product(new)
        return basis.at[k].set(new), images.at[k].set(image), image

    empty = jnp.zeros((iterations, len(start)), start.dtype)
    basis, images, _ = jax.lax.fori_loop(0, iterations, extend, (empty, empty, start))
    projected = basis @ images.T
    return jnp.linalg.eigvalsh((projected + projected.T) / 2)[-1]
