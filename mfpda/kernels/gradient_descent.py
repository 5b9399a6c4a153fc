"""Gradient descent on the potential: Langevin without its noise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.kernels.base import AUTO, Kernel, KernelInfo, Number, Position, stay_finite
from mfpda.problem import GibbsPotential


class GradientDescent(Kernel):
    """theta <- theta - eta grad V(theta): no noise, hence no entropy. This is a baseline, not a sampler.

    T grad V is the gradient of the penalised risk, c . dh + penalty'. So (stochastic) gradient descent with learning
    rate r has eta = r T. With ``rule="latest"``, one inner step and mini-batches this is SGD.
    """

    step_size: Number = AUTO
    samples = False

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Position:
        return Position(theta)

    def step(self, key: Array, state: Position, potential: GibbsPotential) -> tuple[Position, KernelInfo]:
        energy, gradient = jax.value_and_grad(potential)(state.theta)
        theta = state.theta - self.step_size * gradient
        after, diverging = stay_finite(state, Position(theta), theta)
        return after, KernelInfo(energy, jnp.ones_like(energy), diverging)

    def tuned(self, curvature: Array) -> "GradientDescent":
        """Return the kernel with eta = 0.5 / curvature, half of the step that reaches the minimum of a quadratic V."""
        return replace(self, step_size=0.5 / curvature)
