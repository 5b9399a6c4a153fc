"""M particles through one kernel. Only this file knows that there are M."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.kernels import Kernel
from mfpda.problem.potential import GibbsPotential

Ensemble = Any  # the kernel's state with a leading axis over particles
THINNING = np.uint32(2**32 - 1)  # folded into a run's key for the anchors of its steps: the number of no particle
Retuned = Callable[[Any, Array, Array], Any]  # (kernel, acceptance, thetas) after a step -> the kernel of the next


class SampleStats(NamedTuple):
    """Per particle: mean chance of acceptance over the steps, whether any step diverged, gradients spent."""

    acceptance: Array
    diverging: Array
    gradients: Array

    @classmethod
    def unmoved(cls, particles: int) -> "SampleStats":
        """Before the first step."""
        return cls(jnp.ones(particles), jnp.zeros(particles, bool), jnp.zeros(particles))


def draw_initial(key: Array, particles: int, potential: GibbsPotential) -> Array:
    """M flat thetas, independent draws of q1."""
    return jax.vmap(potential.draw_initial)(particle_keys(key, particles))


def draw_prior(key: Array, particles: int, potential: GibbsPotential) -> Array:
    """M flat thetas, independent draws of the prior p0."""
    return jax.vmap(potential.draw_prior)(particle_keys(key, particles))


def begin(key: Array, thetas: Array, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """Kernel states at these thetas."""
    return jax.vmap(kernel.init, in_axes=(0, 0, None))(particle_keys(key, len(thetas)), thetas, potential)


def refresh(ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel) -> Ensemble:
    """The same particles under a new potential."""
    return jax.vmap(kernel.refresh, in_axes=(0, None))(ensemble, potential)


def run(
    key: Array,
    ensemble: Ensemble,
    potential: GibbsPotential,
    kernel: Kernel,
    steps: Array | int,
    retuned: Retuned | None = None,
) -> tuple[Ensemble, SampleStats, Kernel]:
    """``steps`` steps of every particle; a traced loop bound, so that it can grow without compiling again.

    ``retuned(kernel, acceptance, thetas)`` gives the kernel of the next step from the particles' acceptance in this
    one and where it left them; the kernel comes back as it was last.
    """
    return run_with(particle_keys(key, len(ensemble.theta)), ensemble, key, potential, kernel, steps, retuned)


def run_with(
    keys: Array,
    ensemble: Ensemble,
    key: Array,
    potential: GibbsPotential,
    kernel: Kernel,
    steps: Array | int,
    retuned: Retuned | None = None,
) -> tuple[Ensemble, SampleStats, Kernel]:
    """``run``, given a key for each particle: for those of one device, of all that there are. ``key`` is for what all
    particles share."""
    particles = len(ensemble.theta)
    potential_of = _potential_of_step(key, potential, kernel)

    def step(k, carry):
        ensemble, stats, kernel = carry
        ensemble, info = _every_particle(keys, k, ensemble, potential_of(k), kernel)
        stats = SampleStats(
            stats.acceptance + info.acceptance, stats.diverging | info.diverging, stats.gradients + info.gradients
        )
        return ensemble, stats, retuned(kernel, info.acceptance, ensemble.theta) if retuned else kernel

    none = jnp.zeros(particles, ensemble.theta.dtype)
    carry = ensemble, SampleStats(none, none.astype(bool), none), kernel
    ensemble, stats, kernel = jax.lax.fori_loop(0, steps, step, carry)
    return ensemble, stats._replace(acceptance=stats.acceptance / steps), kernel


def trace(
    key: Array, ensemble: Ensemble, potential: GibbsPotential, kernel: Kernel, draws: int
) -> tuple[Array, SampleStats]:
    """The positions of every particle after each of ``draws`` steps, with axes (step, particle, theta); and per step
    and particle the acceptance, the divergence and the gradients spent."""
    keys = particle_keys(key, len(ensemble.theta))
    potential_of = _potential_of_step(key, potential, kernel)

    def step(ensemble, k):
        ensemble, info = _every_particle(keys, k, ensemble, potential_of(k), kernel)
        return ensemble, (ensemble.theta, SampleStats(info.acceptance, info.diverging, info.gradients))

    return jax.lax.scan(step, ensemble, jnp.arange(draws))[1]


def _potential_of_step(key: Array, potential: GibbsPotential, kernel: Kernel) -> Callable[[Array], GibbsPotential]:
    """The potential that every particle sees at step k: the one given, or a thinned one for a kernel that thins it."""
    if not hasattr(kernel, "thinning"):
        return lambda k: potential
    thinned, thinning_key = kernel.thinning(potential), jax.random.fold_in(key, THINNING)
    return lambda k: thinned(jax.random.fold_in(thinning_key, k))


def _every_particle(keys, k, ensemble, potential, kernel):
    """Step k of every particle."""
    step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, k)
    return jax.vmap(kernel.step, in_axes=(0, 0, None))(step_keys, ensemble, potential)


def particle_keys(key: Array, particles: int) -> Array:
    """A key for each particle, the same whatever their number."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(particles))
