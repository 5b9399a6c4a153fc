"""No averaging: each Gibbs potential is the latest linearisation of the loss."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem.outputs import Outputs
from mfpda.rules.base import Coefficients, Dual, Linearisations, Problem


@jax.tree_util.register_static
@dataclass(frozen=True)
class Latest:
    """c_i = l'(z_i, y_i) / b on the batch alone, gamma = 1.

    With one inner step of ULA this is noisy gradient descent (mean-field Langevin; Mei, Montanari and Nguyen 2018),
    with one of GradientDescent it is (S)GD. An inner step costs b anchors, not n.

    Its dual is the average of the recent linearisations of each anchor, that of step s with weight s^3: half of the
    weight lies on the last sixth of the steps.
    """

    on_batch: ClassVar[bool] = True
    smallest_gamma: ClassVar[float] = 1.0

    def init(self, anchors: int, outputs: tuple[int, ...]) -> Linearisations:
        return Linearisations.empty(anchors, outputs)

    def grow(self, state: Linearisations, anchors: int) -> Linearisations:
        return state.grow(anchors)

    def update(
        self, key: Array, state: Linearisations, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[Linearisations, Coefficients]:
        derivative = problem.derivative(outputs.mean(batch), batch)
        return state.add(batch, t**3, derivative), Coefficients(derivative / len(derivative), jnp.ones_like(t))

    def dual(self, state: Linearisations, t: Array) -> Dual:
        return state.average()
