"""The unadjusted Langevin algorithm."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels.base import AUTO, Kernel, KernelInfo, Number, Position, stay_finite
from mfpda.problem import GibbsPotential


class ULA(Kernel):
    """Unadjusted Langevin, the paper's inner loop (Section 2.3): with step size eta and xi ~ N(0, I),

        theta <- theta - eta grad V(theta) + sqrt(2 eta) xi.

    Its stationary law is biased by O(eta): on V = theta^2 / (2 s^2) its variance is s^2 / (1 - eta / (2 s^2)).
    """

    step_size: Number = AUTO

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Position:
        return Position(theta)

    def step(self, key: Array, state: Position, potential: GibbsPotential) -> tuple[Position, KernelInfo]:
        energy, gradient = jax.value_and_grad(potential)(state.theta)
        noise = jax.random.normal(key, state.theta.shape, state.theta.dtype)
        theta = state.theta - self.step_size * gradient + jnp.sqrt(2 * self.step_size) * noise
        after, diverging = stay_finite(state, Position(theta), theta)
        return after, KernelInfo(energy, jnp.ones_like(energy), diverging)

    def tuned(self, curvature: Array) -> "ULA":
        """Return the kernel with eta = 0.1 / curvature. The variance along that curvature is then 5 % too large."""
        return replace(self, step_size=0.1 / curvature)
