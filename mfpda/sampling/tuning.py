"""``step_size="auto"`` and schedules: from what the user wrote to the numbers of one outer step.

An unadjusted kernel takes its step size from the curvature of V at the particles, anew for every potential: the bias of
its stationary law depends on their product. An adjusted kernel has no bias; its step size is what that curvature
suggests, times a factor that follows its acceptance, pooled over all particles, and is carried from one outer step to
the next. (What the particles' past tells the step size bends their law by O(1/M): for few particles it follows more
slowly.)

Where one potential is all there is (tempering, ``fit.trace``) it follows from one inner step to the next. In a fit it
is fixed during the inner loop, where particles of different devices have nothing to tell each other, and follows once
after it, from the mean over all inner steps, with a gain of 2: the acceptance 2 Phi(-x), x proportional to eta^(3/2)
for MALA and to the square of the step for HMC, falls by 0.57 per unit of log(step size) at 0.574 and at 0.7, their
targets, so that 1 - 2 * 0.57 = -0.15 of an error is left.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import schedules
from mfpda.core.spectrum import largest_eigenvalue
from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.kernels.base import Auto, is_adjusted
from mfpda.problem.potential import GibbsPotential
from mfpda.sampling import Retuned

PROBES = 16  # particles at which the curvature is measured
POWER_ITERATIONS = 6
GAIN_OF_A_LOOP = 2.0  # of the acceptance of a whole inner loop; that of one step has a gain of 1


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
        advice = "Put @mfpda.plug above @dataclass(frozen=True)."
        raise InputError("plugs that are registered as pytrees", f"{type(plug).__name__}, which is not", advice)


def step_size_of(kernel: Any) -> Array:
    """The step size that is recorded: NaN for a kernel that has none."""
    step_size = getattr(kernel, "step_size", None)
    return jnp.asarray(jnp.nan if step_size is None else step_size, float)


def tuned(
    key: Array, kernel: Any, potential: GibbsPotential, thetas: Array, carried: Array | float = 1.0
) -> tuple[Any, Retuned | None]:
    """The kernel with numbers in place of "auto", and how each step is to change them: None for not at all.

    ``carried`` is the factor that acceptance has put on its step size so far.
    """
    if not any(isinstance(getattr(kernel, field.name), Auto) for field in dataclasses.fields(kernel)):
        return kernel, None
    if hasattr(kernel, "thinning"):  # what costs little to sample should cost little to tune
        key, thinning_key = jax.random.split(key)
        potential = kernel.thinning(potential)(thinning_key)
    if not (is_adjusted(kernel) and isinstance(getattr(kernel, "step_size", None), Auto)):
        return kernel.tuned(curvature(key, potential, thetas)), None

    stiffest = curvature(key, potential, thetas)
    step_size = kernel.tuned(stiffest).step_size if hasattr(kernel, "tuned") else 1 / jnp.sqrt(stiffest)
    return dataclasses.replace(kernel, step_size=carried * step_size), towards_target


def towards_target(kernel: Any, acceptance: Array, thetas: Array, gain: float = 1.0) -> Any:
    """log(step size) += gain min(1, M / 50) (acceptance - target), the acceptance averaged over M particles.

    Within twelve orders of magnitude: on a flat V every step is accepted, and an infinite one could not shrink again.
    And no longer than the kernel says is of use, given the particles' largest standard deviation along a coordinate.
    """
    gain *= min(1.0, len(acceptance) / 50)
    rise = gain * (jnp.mean(jnp.nan_to_num(acceptance)) - kernel.target_acceptance)
    step_size = kernel.step_size * jnp.exp(rise)
    if hasattr(kernel, "longest_step"):
        step_size = jnp.minimum(step_size, kernel.longest_step(jnp.sqrt(jnp.max(jnp.var(thetas, axis=0)))))
    return dataclasses.replace(kernel, step_size=jnp.clip(step_size, 1e-12, 1e12))


def curvature(key: Array, potential: GibbsPotential, thetas: Array) -> Array:
    """The largest absolute eigenvalue of V's Hessian, by power iteration: its 3/4 quantile over a few particles.

    A quantile and not the largest: under an l_p prior the curvature is unbounded near 0. Where V is all but flat, the
    particles' own spread bounds the length of a step; particles at which V is not a number are passed over.
    """
    probes = thetas[:: max(1, len(thetas) // PROBES)][:PROBES]

    def largest(key, theta):
        hessian_product = lambda v: jax.jvp(jax.grad(potential), (theta,), (v,))[1]  # noqa: E731
        return largest_eigenvalue(hessian_product, jax.random.normal(key, theta.shape, theta.dtype), POWER_ITERATIONS)

    sizes = jax.vmap(largest)(jax.random.split(key, len(probes)), probes)
    measured = jnp.nan_to_num(jnp.nanquantile(jnp.where(jnp.isfinite(sizes), sizes, jnp.nan), 0.75))
    spread = jnp.mean(jnp.var(thetas, axis=0))
    flattest = jnp.where(spread > 0, 0.01 / jnp.where(spread > 0, spread, 1), 0)
    curvature = jnp.maximum(measured, flattest)
    return jnp.where(curvature > 0, curvature, 1)
