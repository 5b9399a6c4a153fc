"""Gradient descent on the potential: Langevin without its noise."""

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
class GradientDescent:
    """theta <- theta - eta grad V(theta): no noise, hence no entropy. A baseline, not a sampler.

    T grad V is the gradient of the penalised risk, c . dh + penalty', so a learning rate r of (stochastic) gradient
    descent on it is eta = r T. With ``rule="latest"``, one inner step and mini-batches this is SGD.
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
        theta = state.theta - self.step_size * gradient
        after, diverging = stay_finite(state, Position(theta), theta)
        return after, KernelInfo(energy, jnp.ones_like(energy), diverging)

    def tuned(self, curvature: Array) -> "GradientDescent":
        """eta = 0.5 / curvature: half way to the step that overshoots the minimum along the stiffest direction."""
        return replace(self, step_size=0.5 / curvature)
