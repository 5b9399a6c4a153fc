"""Checks of the random key that every entry function requires."""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError


def as_key(key: object) -> Array:
    """Return a typed key, given one from ``jax.random.key(0)`` or a raw one from ``jax.random.PRNGKey(0)``."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.ndim == 1:
            return jax.random.wrap_key_data(key)
    found = "an array of keys" if isinstance(key, jax.Array) else type(key).__name__
    found = f"the int {key}" if isinstance(key, int) else found
    raise InputError("a JAX random key as the first argument", found, "Pass jax.random.key(0), for example.")
