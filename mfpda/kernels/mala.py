"""The Metropolis-adjusted Langevin algorithm."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels.base import AUTO, Evaluated, KernelInfo, metropolis, number_or_auto
from mfpda.problem.potential import GibbsPotential
from mfpda.registry import plug


@plug
@dataclass(frozen=True)
class MALA:
    """A step of unadjusted Langevin as a proposal, accepted or rejected so that exp(-V) stays invariant.

    With step size eta, xi ~ N(0, I), proposal theta' = theta - eta g + sqrt(2 eta) xi, g = grad V(theta) and
    g' = grad V(theta'), the Metropolis-Hastings ratio (Roberts and Tweedie 1996) is, the squares multiplied out,

        log ratio = V(theta) - V(theta') + sqrt(eta / 2) xi . (g + g') - (eta / 4) |g + g'|^2,

    which needs no difference of large squares. V and g are kept, so a step costs one new gradient.
    """

    step_size: Any = AUTO
    adjusted: ClassVar[bool] = True
    target_acceptance: ClassVar[float] = 0.574

    def __post_init__(self):
        object.__setattr__(self, "step_size", number_or_auto(self.step_size))

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Evaluated:
        return Evaluated.at(theta, potential)

    def refresh(self, state: Evaluated, potential: GibbsPotential) -> Evaluated:
        return Evaluated.at(state.theta, potential)

    def step(self, key: Array, state: Evaluated, potential: GibbsPotential) -> tuple[Evaluated, KernelInfo]:
        noise_key, accept_key = jax.random.split(key)
        eta, noise = self.step_size, jax.random.normal(noise_key, state.theta.shape, state.theta.dtype)
        proposal = Evaluated.at(state.theta - eta * state.gradient + jnp.sqrt(2 * eta) * noise, potential)
        both = state.gradient + proposal.gradient
        correction = jnp.sqrt(eta / 2) * noise @ both - eta / 4 * both @ both
        return metropolis(accept_key, correction, state, proposal)

    def tuned(self, curvature: Array) -> "MALA":
        """eta = 0.5 / curvature to begin with; acceptance takes it from there."""
        return replace(self, step_size=0.5 / curvature)
