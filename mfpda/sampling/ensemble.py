"""M particles through one kernel. Only this file knows that there are M."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.kernels import Kernel, KernelInfo, KernelState
from mfpda.problem import GibbsPotential, Problem

Ensemble = KernelState  # the kernel's state with a leading axis over particles
SHARED = np.uint32(2**32 - 1)  # folded into a key for numbers that all particles share; no particle has this index
Retune = Callable[[Kernel, Array, Array], Kernel] | None  # (kernel, acceptance, thetas) -> the kernel of the next step


class SampleStats(NamedTuple):
    """Per particle: the mean probability of acceptance, whether any step diverged, and the number of gradients."""

    acceptance: Array
    diverging: Array
    gradients: Array

    @classmethod
    def unmoved(cls, particles: int) -> "SampleStats":
        """Return the statistics before the first step."""
        return cls(jnp.ones(particles), jnp.zeros(particles, bool), jnp.zeros(particles))


def draw_initial(key: Array, particles: int, problem: Problem) -> Array:
    """Draw M flat thetas independently from q1."""
    return jax.vmap(problem.draw_initial)(particle_keys(key, particles))


def draw_prior(key: Array, particles: int, problem: Problem) -> Array:
    """Draw M flat thetas independently from the prior p0."""
    return jax.vmap(problem.draw_prior)(particle_keys(key, particles))


def begin(key: Array, thetas: Array, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """Return kernel states at these thetas."""
    return jax.vmap(kernel.init, in_axes=(0, 0, None))(particle_keys(key, len(thetas)), thetas, potential)


def refresh(key: Array, ensemble: Ensemble, thetas: Array, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """Move the particles to these thetas, under a new potential."""
    keys = particle_keys(key, len(thetas))
    return jax.vmap(kernel.refresh, in_axes=(0, 0, 0, None))(keys, ensemble, thetas, potential)


def run(
    key: Array, ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel, steps: Array | int, retune: Retune = None
) -> tuple[Ensemble, SampleStats, Kernel]:
    """Move every particle by ``steps`` steps. The number of steps can change without a recompilation.

    ``retune(kernel, acceptance, thetas)`` gives the kernel of the next step. Return the last kernel, too.
    """
    return run_with(particle_keys(key, len(ensemble.theta)), ensemble, key, potential, kernel, steps, retune)


def run_with(
    keys: Array,
    ensemble: Ensemble,
    key: Array,
    potential: GibbsPotential,
    kernel: Kernel,
    steps: Array | int,
    retune: Retune = None,
) -> tuple[Ensemble, SampleStats, Kernel]:
    """``run`` with a key for each particle, for the particles of one device. All devices share ``key``."""
    move_all = _step_of_all(keys, key, potential, kernel)

    def step(k, carry):
        ensemble, stats, kernel = carry
        ensemble, info = move_all(k, ensemble, kernel)
        acceptance, diverging = stats.acceptance + info.acceptance, stats.diverging | info.diverging
        stats = SampleStats(acceptance, diverging, stats.gradients + info.gradients)
        return ensemble, stats, retune(kernel, info.acceptance, ensemble.theta) if retune else kernel

    none = jnp.zeros(len(ensemble.theta), ensemble.theta.dtype)
    carry = ensemble, SampleStats(none, none.astype(bool), none), kernel
    ensemble, stats, kernel = jax.lax.fori_loop(0, steps, step, carry)
    return ensemble, stats._replace(acceptance=stats.acceptance / steps), kernel


def trace(
    key: Array, ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel, draws: int
) -> tuple[Array, SampleStats]:
    """Return the positions after each of ``draws`` steps, with axes (step, particle, theta), and their statistics."""
    move_all = _step_of_all(particle_keys(key, len(ensemble.theta)), key, potential, kernel)

    def step(ensemble, k):
        ensemble, info = move_all(k, ensemble, kernel)
        return ensemble, (ensemble.theta, SampleStats(info.acceptance, info.diverging, jnp.asarray(info.gradients)))

    return jax.lax.scan(step, ensemble, jnp.arange(draws))[1]


def particle_keys(key: Array, particles: int) -> Array:
    """Return a key for each particle. It does not depend on the number of particles."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(particles))


def _step_of_all(
    keys: Array, key: Array, potential: GibbsPotential, kernel: Kernel
) -> Callable[[Array, Ensemble, Kernel], tuple[Ensemble, KernelInfo]]:
    """Return a function that makes step k of every particle. They all see the same, possibly thinned, potential."""
    thinned, shared_key = kernel.thinning(potential), jax.random.fold_in(key, SHARED)

    def step(k, ensemble, kernel):
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, k)
        potential = thinned(jax.random.fold_in(shared_key, k))
        return jax.vmap(kernel.step, in_axes=(0, 0, None))(step_keys, ensemble, potential)

    return step
