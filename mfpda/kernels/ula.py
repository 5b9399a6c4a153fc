"""The unadjusted Langevin algorithm."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels.base import AUTO, KernelInfo, Position, number_or_auto, stay_finite
from mfpda.problem.potential import GibbsPotential
from mfpda.registry import plug


@plug
@dataclass(frozen=True)
class ULA:
    """Unadjusted Langevin, the paper's inner loop (Section 2.3): with step size eta and xi ~ N(0, I),

        theta <- theta - eta grad V(theta) + sqrt(2 eta) xi.

    Its stationary law is biased by O(eta): on V = theta^2 / (2 s^2) its variance is s^2 / (1 - eta / (2 s^2)).
    """

    step_size: Any = AUTO

    def __post_init__(self):
        object.__setattr__(self, "step_size", number_or_auto(self.step_size))

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Position:
        return Position(theta)

    def refresh(self, state: Position, potential: GibbsPotential) -> Position:
        return state

    def step(self, key: Array, state: Position, potential: GibbsPotential) -> tuple[Position, KernelInfo]:
        energy, gradient = jax.value_and_grad(potential)(state.theta)
        noise = jax.random.normal(key, state.theta.shape, state.theta.dtype)
        theta = state.theta - self.step_size * gradient + jnp.sqrt(2 * self.step_size) * noise
        after, diverging = stay_finite(state, Position(theta), theta)
        return after, KernelInfo(energy, jnp.ones_like(energy), diverging)

    def tuned(self, curvature: Array) -> "ULA":
        """eta = 0.1 / curvature: along a direction of that curvature the variance is then 5 % too large."""
        return replace(self, step_size=0.1 / curvature)
