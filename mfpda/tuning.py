"""``step_size="auto"`` and schedules: from what the user wrote to the numbers of one outer step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda import schedules
from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.kernels.protocol import Auto
from mfpda.potential import GibbsPotential

PROBES = 8  # particles at which the curvature is measured
POWER_ITERATIONS = 6


def plan(kernel: Kernel, outer_steps: int) -> list[Kernel]:
    """The kernel of every outer step: schedules evaluated and checked, numbers as arrays, "auto" marked as such."""
    if not (dataclasses.is_dataclass(kernel) and isinstance(kernel, Kernel)):
        advice = "See help(mfpda.kernels.Kernel) for an example, or give a name such as 'ula'."
        raise InputError("a kernel: a frozen dataclass with init, refresh and step", repr(kernel), advice)
    fields = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel) if field.init}
    numbers: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, str) and value == "auto":
            if not hasattr(kernel, "tuned"):
                raise InputError(
                    f"a number as {name} of {type(kernel).__name__}", "'auto'", "It has no way to tune itself."
                )
            numbers[name] = [Auto()] * outer_steps
        elif callable(value) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            numbers[name] = list(schedules.values(value, outer_steps, name).astype(jnp.result_type(float)))
    replace = dataclasses.replace
    return [replace(kernel, **{name: row[t] for name, row in numbers.items()}) for t in range(outer_steps)]


def tuned(key: Array, kernel: Any, potential: GibbsPotential, thetas: Array) -> Any:
    """The kernel with its "auto" step size replaced by one that fits the curvature of V at the particles."""
    if isinstance(getattr(kernel, "step_size", None), Auto):
        return kernel.tuned(curvature(key, potential, thetas))
    return kernel


def curvature(key: Array, potential: GibbsPotential, thetas: Array) -> Array:
    """The largest absolute eigenvalue of V's Hessian, by power iteration, averaged over a few particles.

    An average and not the largest: under an l_p prior the curvature is unbounded near 0.
    """
    probes = thetas[:: max(1, len(thetas) // PROBES)][:PROBES]

    def largest(key, theta):
        product = lambda v: jax.jvp(jax.grad(potential), (theta,), (v,))[1]  # noqa: E731

        def iterate(_, carry):
            v, _ = carry
            image = product(v)
            size = jnp.linalg.norm(image)
            return image / jnp.maximum(size, jnp.finfo(size.dtype).tiny), size

        v = jax.random.normal(key, theta.shape, theta.dtype)
        return jax.lax.fori_loop(0, POWER_ITERATIONS, iterate, (v / jnp.linalg.norm(v), jnp.zeros((), theta.dtype)))[1]

    sizes = jax.vmap(largest)(jax.random.split(key, len(probes)), probes)
    return jnp.maximum(jnp.mean(sizes), np.finfo(np.float32).tiny)
