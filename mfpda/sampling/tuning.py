"""``step_size="auto"`` and schedules become numbers for one outer step.

An unadjusted kernel takes its step size from the curvature of V at the particles, because its bias depends on the
product of both. An adjusted kernel multiplies that step size by a factor that follows the acceptance of all particles.
The next outer step inherits the factor.

Tempering and ``fit.trace`` update the factor after every inner step. A fit updates it once per inner loop, because
devices do not communicate inside the loop. It uses the mean acceptance and a gain of 2: near the target, the acceptance
of MALA and HMC falls by 0.57 per unit of log(step size), so an update multiplies an error by 1 - 2 * 0.57.
"""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import largest_eigenvalue, schedules
from mfpda.errors import InputError
from mfpda.kernels import Auto, Kernel, step_size_of, with_step_size
from mfpda.problem import GibbsPotential
from mfpda.sampling.ensemble import Retune

PROBES = 16  # particles at which the curvature is measured
POWER_ITERATIONS = 6
GAIN_OF_A_LOOP = 2.0  # for the mean acceptance of an inner loop; the acceptance of one step has a gain of 1


def plan(kernel: Kernel, outer_steps: int) -> list[Kernel]:
    """Return the kernels of all outer steps. Step sizes are numbers or "auto". Refuse "auto" if it cannot be tuned."""
    step_size = step_size_of(kernel)
    if isinstance(step_size, Auto):
        if not kernel.adjusted:
            kernel.tuned(jnp.ones(()))  # a kernel without a definition of its own refuses here
        elif kernel.target_acceptance is None:
            advice = f"{type(kernel).__name__} has no target_acceptance to tune to."
            raise InputError(f"a number as step_size of {type(kernel).__name__}", "'auto'", advice)
    elif step_size is not None:
        sizes = schedules.values(step_size, outer_steps, "step_size").astype(jnp.result_type(float))
        return [with_step_size(kernel, size) for size in sizes]
    return [kernel] * outer_steps


def recorded_step_size(kernel: Kernel) -> Array:
    """Return the step size for the record: NaN if the kernel has none."""
    step_size = step_size_of(kernel)
    return jnp.asarray(jnp.nan if step_size is None else step_size, float)


def tuned(
    key: Array, kernel: Kernel, potential: GibbsPotential, thetas: Array, carried: Array | float = 1.0
) -> tuple[Kernel, Retune]:
    """Return the kernel with numbers in place of "auto", and the function that changes them after each step, if any.

    ``carried`` is the current factor on the step size of an adjusted kernel.
    """
    if not any(isinstance(value, Auto) for value in kernel.settings_by_name.values()):
        return kernel, None
    kernel = kernel.around(*moments(thetas))
    curvature_key, thinning_key = jax.random.split(key)
    thinned = kernel.thinning(potential)(thinning_key)  # so tuning a thinning kernel is cheap, too
    numbers = kernel.tuned(curvature(curvature_key, thinned, thetas))
    if not (kernel.adjusted and isinstance(step_size_of(kernel), Auto)):
        return numbers, None
    return with_step_size(numbers, carried * step_size_of(numbers)), towards_target


def moments(thetas: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of the particles, coordinate by coordinate."""
    return jnp.mean(thetas, axis=0), jnp.std(thetas, axis=0)


def towards_target(kernel: Kernel, acceptance: Array, thetas: Array, gain: float = 1.0) -> Kernel:
    """log(step size) += gain min(1, M / 50) (acceptance - target), with the acceptance averaged over M particles.

    The gain is small for few particles: a step size that depends on their past changes their law by O(1/M). The step
    size stays below the kernel's ``longest_step``, and finite: on a flat V every step is accepted.
    """
    assert kernel.target_acceptance is not None
    gain *= min(1.0, len(acceptance) / 50)
    rise = gain * (jnp.mean(jnp.nan_to_num(acceptance)) - kernel.target_acceptance)
    longest = kernel.longest_step(jnp.sqrt(jnp.max(jnp.var(thetas, axis=0))))
    step_size = jnp.minimum(step_size_of(kernel) * jnp.exp(rise), longest)
    return with_step_size(kernel, jnp.clip(step_size, 1e-12, 1e12))


def curvature(key: Array, potential: GibbsPotential, thetas: Array) -> Array:
    """Return the largest absolute eigenvalue of V's Hessian, by power iteration: its 3/4 quantile over a few particles.

    The maximum is of no use: under an l_p prior the curvature is unbounded near 0. If V is nearly flat, the particles'
    own spread bounds the curvature from below. Particles at which V is NaN do not count.
    """
    probes = thetas[:: max(1, len(thetas) // PROBES)][:PROBES]

    def largest(key, theta):
        start = jax.random.normal(key, theta.shape, theta.dtype)
        return largest_eigenvalue(lambda v: jax.jvp(jax.grad(potential), (theta,), (v,))[1], start, POWER_ITERATIONS)

    sizes = jax.vmap(largest)(jax.random.split(key, len(probes)), probes)
    measured = jnp.nan_to_num(jnp.nanquantile(jnp.where(jnp.isfinite(sizes), sizes, jnp.nan), 0.75))
    spread = jnp.mean(jnp.var(thetas, axis=0))
    flattest = jnp.where(spread > 0, 0.01 / jnp.where(spread > 0, spread, 1), 0)
    curvature = jnp.maximum(measured, flattest)
    return jnp.where(curvature > 0, curvature, 1)
