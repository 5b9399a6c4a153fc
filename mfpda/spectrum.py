"""The largest eigenvalue of an operator that is known by its products alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


def largest_eigenvalue(product: Callable[[Array], Array], start: Array, iterations: int) -> Array:
    """The largest absolute eigenvalue, by power iteration from ``start``: v <- A v / |A v|, and |A v| at the last.

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
