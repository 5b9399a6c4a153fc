"""M particles through one kernel. Only this file knows that there are M."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels import Kernel
from mfpda.potential import GibbsPotential

Ensemble = Any  # the kernel's state with a leading axis over particles


class SampleStats(NamedTuple):
    """Per particle: mean chance of acceptance over the steps, and whether any step diverged."""

    acceptance: Array
    diverging: Array


def draw_initial(key: Array, particles: int, potential: GibbsPotential) -> Array:
    """M flat thetas, independent draws of q1."""
    return jax.vmap(potential.draw_initial)(_particle_keys(key, particles))


def begin(key: Array, thetas: Array, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """Kernel states at these thetas."""
    return jax.vmap(kernel.init, in_axes=(0, 0, None))(_particle_keys(key, len(thetas)), thetas, potential)


def refresh(ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """The same particles under a new potential."""
    return jax.vmap(kernel.refresh, in_axes=(0, None))(ensemble, potential)


def run(
    key: Array, ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel, steps: Array | int
) -> tuple[Ensemble, SampleStats]:
    """``steps`` steps of every particle; a traced loop bound, so that it can grow without compiling again."""
    particles = len(ensemble.theta)
    keys = _particle_keys(key, particles)
    every_particle = jax.vmap(kernel.step, in_axes=(0, 0, None))

    def step(k, carry):
        ensemble, acceptance, diverging = carry
        ensemble, info = every_particle(jax.vmap(jax.random.fold_in, (0, None))(keys, k), ensemble, potential)
        return ensemble, acceptance + info.acceptance, diverging | info.diverging

    nothing = (jnp.zeros(particles, ensemble.theta.dtype), jnp.zeros(particles, bool))
    ensemble, acceptance, diverging = jax.lax.fori_loop(0, steps, step, (ensemble, *nothing))
    return ensemble, SampleStats(acceptance / steps, diverging)


def _particle_keys(key: Array, particles: int) -> Array:
    """A key for each particle, the same whatever their number."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(particles))
