"""The Metropolis-adjusted Langevin algorithm."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels.base import AUTO, Evaluated, Kernel, KernelInfo, Number, metropolis
from mfpda.problem import GibbsPotential


class MALA(Kernel):
    """Propose a step of unadjusted Langevin. Accept or reject it so that exp(-V) stays invariant.

    With step size eta, xi ~ N(0, I), proposal theta' = theta - eta g + sqrt(2 eta) xi, g = grad V(theta) and
    g' = grad V(theta'), the Metropolis-Hastings ratio (Roberts and Tweedie 1996) simplifies to

        log ratio = V(theta) - V(theta') + sqrt(eta / 2) xi . (g + g') - (eta / 4) |g + g'|^2,

    which needs no difference of large squares. The state stores V and g, so a step costs one new gradient.
    """

    step_size: Number = AUTO
    adjusted = True
    target_acceptance = 0.574

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Evaluated:
        return Evaluated.at(theta, potential)

    def step(self, key: Array, state: Evaluated, potential: GibbsPotential) -> tuple[Evaluated, KernelInfo]:
        noise_key, accept_key = jax.random.split(key)
        eta, noise = self.step_size, jax.random.normal(noise_key, state.theta.shape, state.theta.dtype)
        proposal = Evaluated.at(state.theta - eta * state.gradient + jnp.sqrt(2 * eta) * noise, potential)
        both = state.gradient + proposal.gradient
        correction = jnp.sqrt(eta / 2) * noise @ both - eta / 4 * both @ both
        return metropolis(accept_key, correction, state, proposal)

    def tuned(self, curvature: Array) -> "MALA":
        """Begin tuning at eta = 0.5 / curvature."""
        return replace(self, step_size=0.5 / curvature)
