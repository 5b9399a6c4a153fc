"""Random keys: explicit, required, of either of JAX's two kinds."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError


def as_key(key: Any) -> Array:
    """A typed key from ``jax.random.key(0)`` or a raw one from ``jax.random.PRNGKey(0)``, as a typed key."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.ndim == 1:
            return jax.random.wrap_key_data(key)
    found = (
        f"the int {key}"
        if isinstance(key, int)
        else "an array of keys"
        if isinstance(key, jax.Array)
        else type(key).__name__
    )
    raise InputError("a JAX random key as the first argument", found, "Pass jax.random.key(0), for example.")
