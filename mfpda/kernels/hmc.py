"""Hamiltonian Monte Carlo around a Gaussian reference."""

from dataclasses import field, replace

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import positive_count
from mfpda.errors import InputError
from mfpda.kernels.base import AUTO, Auto, Evaluated, Kernel, KernelInfo, Number, metropolis, number_or_auto
from mfpda.problem import GibbsPotential

SHORTEST, LONGEST = 0.7, 1.3  # of the step size


class HMC(Kernel):
    """Hamiltonian Monte Carlo whose free flow is exact for a Gaussian reference (Beskos, Pinski, Sanz-Serna and Stuart
    2011). With the reference N(centre, scale^2), u = (theta - centre) / scale and V = |u|^2 / 2 + Phi, a leapfrog step
    of length h, an angle in radians, is

        v <- v - (h/2) grad Phi(u),   (u, v) <- (u cos h + v sin h, v cos h - u sin h),   v <- v - (h/2) grad Phi(u).

    A trajectory begins with v ~ N(0, I). It has as many steps as make a quarter of a circle, or ``leapfrogs`` if that
    is less. Its h is ``step_size`` times a uniform number between 0.7 and 1.3: a direction of half the reference's
    width turns twice as fast, and turning by just half a circle, u -> -u, it would never mix. The end is accepted with
    probability min(1, exp(V + |v|^2/2 - V' - |v'|^2/2)). Errors come from Phi alone. So coordinates that the data leave
    at a normal prior cost no acceptance, however many there are.

    ``scale="auto"`` takes centre and scale from the particles, coordinate by coordinate, at every outer step. A number
    means the reference N(0, scale^2) for every coordinate.
    """

    step_size: Number = AUTO
    scale: Number = AUTO
    centre: Number = 0.0
    leapfrogs: int = field(default=8, metadata={"static": True})
    adjusted = True
    target_acceptance = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", number_or_auto(self.scale, "scale"))
        if callable(self.scale):
            raise InputError('a float or "auto" as scale', "a schedule", "Only the step size can depend on t.")
        positive_count(self.leapfrogs, "leapfrogs")

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Evaluated:
        return Evaluated.at(theta, potential)

    def step(self, key: Array, state: Evaluated, potential: GibbsPotential) -> tuple[Evaluated, KernelInfo]:
        velocity_key, length_key, accept_key = jax.random.split(key, 3)
        centre, scale = self.centre, self.scale
        u = (state.theta - centre) / scale
        v = jax.random.normal(velocity_key, u.shape, u.dtype)
        count = jnp.clip(jnp.round(jnp.pi / 2 / self.step_size), 1, self.leapfrogs).astype(int)
        h = self.step_size * jax.random.uniform(length_key, (), u.dtype, SHORTEST, LONGEST)

        def leapfrog(_, carry):
            u, v, place = carry
            v = v - h / 2 * (scale * place.gradient - u)
            u, v = u * jnp.cos(h) + v * jnp.sin(h), v * jnp.cos(h) - u * jnp.sin(h)
            place = Evaluated.at(centre + scale * u, potential)
            return u, v - h / 2 * (scale * place.gradient - u), place

        _, end, proposal = jax.lax.fori_loop(0, count, leapfrog, (u, v, state))
        after, info = metropolis(accept_key, (v @ v - end @ end) / 2, state, proposal)
        return after, info._replace(gradients=count)

    def tuned(self, curvature: Array) -> "HMC":
        """Begin tuning at a sixteenth of a circle."""
        auto = isinstance(self.step_size, Auto)
        return replace(self, step_size=jnp.full_like(curvature, jnp.pi / 8)) if auto else self

    def around(self, centre: Array, spread: Array) -> "HMC":
        """Take the particles' mean and standard deviation as the reference."""
        if not isinstance(self.scale, Auto):
            return self
        return replace(self, centre=centre, scale=jnp.where(spread > 0, spread, 1))

    def longest_step(self, spread: Array) -> Array:
        """A quarter of a circle: longer trajectories turn back on a Gaussian."""
        return jnp.asarray(jnp.pi / 2)
