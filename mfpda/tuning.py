"""``step_size="auto"`` and schedules: from what the user wrote to the numbers of one outer step.

An unadjusted kernel takes its step size from the curvature of V at the particles, anew for every potential: the bias of
its stationary law depends on their product. An adjusted kernel has no bias; its step size follows its acceptance,
pooled over all particles, from one inner step to the next, and is carried from one outer step to the next.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda import schedules
from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.kernels.protocol import Auto, is_adjusted
from mfpda.potential import GibbsPotential

PROBES = 16  # particles at which the curvature is measured
POWER_ITERATIONS = 6


def plan(kernel: Kernel, outer_steps: int) -> list[Kernel]:
    """The kernel of every outer step: its step size a number, from a schedule if it was one, or still "auto"."""
    if not (dataclasses.is_dataclass(kernel) and isinstance(kernel, Kernel)):
        advice = "See help(mfpda.kernels.Kernel) for an example, or give a name such as 'ula'."
        raise InputError("a kernel: a frozen dataclass with init, refresh and step", repr(kernel), advice)
    check_pytree(kernel)
    step_size = getattr(kernel, "step_size", None)
    if step_size is None:
        return [kernel] * outer_steps
    if isinstance(step_size, str):
        needed = "target_acceptance" if is_adjusted(kernel) else "tuned"
        if not hasattr(kernel, needed):
            advice = f"It has no {needed} to tune itself by."
            raise InputError(f"a number as step_size of {type(kernel).__name__}", repr(step_size), advice)
        return [dataclasses.replace(kernel, step_size=Auto(step_size))] * outer_steps
    sizes = schedules.values(step_size, outer_steps, "step_size").astype(jnp.result_type(float))
    return [dataclasses.replace(kernel, step_size=size) for size in sizes]


def check_pytree(plug: Any) -> None:
    """Refuse a plug that cannot enter a compiled step as an argument."""
    if jax.tree_util.all_leaves([plug]):
        advice = "Put @jax.tree_util.register_dataclass above @dataclass(frozen=True)."
        raise InputError("plugs that are registered as pytrees", f"{type(plug).__name__}, which is not", advice)


def follows_acceptance(kernel: Any) -> bool:
    """Whether the step size of this kernel is "auto" and is to be tuned on its acceptance."""
    return is_adjusted(kernel) and isinstance(getattr(kernel, "step_size", None), Auto)


def tuned(key: Array, kernel: Any, potential: GibbsPotential, thetas: Array, carried: Array | float = jnp.nan) -> Any:
    """The kernel with numbers in place of "auto". ``carried`` is where acceptance has led its step size so far."""
    if not any(isinstance(getattr(kernel, field.name), Auto) for field in dataclasses.fields(kernel)):
        return kernel
    if not follows_acceptance(kernel):
        return kernel.tuned(curvature(key, potential, thetas))

    def first() -> Array:
        stiffest = curvature(key, potential, thetas)
        return kernel.tuned(stiffest).step_size if hasattr(kernel, "tuned") else 1 / jnp.sqrt(stiffest)

    carried = jnp.asarray(carried, thetas.dtype)
    step_size = jax.lax.cond(jnp.isnan(carried), first, lambda: carried)
    return dataclasses.replace(kernel, step_size=step_size)


def towards_target(kernel: Any, acceptance: Array) -> Any:
    """log(step size) += acceptance - target, for the acceptance of one step averaged over all particles."""
    return dataclasses.replace(kernel, step_size=kernel.step_size * jnp.exp(acceptance - kernel.target_acceptance))


def curvature(key: Array, potential: GibbsPotential, thetas: Array) -> Array:
    """The largest absolute eigenvalue of V's Hessian, by power iteration: its 3/4 quantile over a few particles.

    A quantile and not the largest: under an l_p prior the curvature is unbounded near 0. Where V is all but flat, the
    particles' own spread bounds the length of a step.
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
    return jnp.maximum(jnp.quantile(sizes, 0.75), 1 / jnp.mean(jnp.square(thetas)))
