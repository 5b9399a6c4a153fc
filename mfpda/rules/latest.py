"""No averaging: each Gibbs potential is the latest linearisation of the loss."""

import jax.numpy as jnp
from jax import Array

from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import AveragingRule, Coefficients, Linearisations


class Latest(AveragingRule):
    """c_i = l'(z_i, y_i) / b on the batch alone, gamma = 1.

    With one inner step of ULA this is noisy gradient descent (mean-field Langevin; Mei, Montanari and Nguyen 2018).
    With one inner step of GradientDescent it is (S)GD. An inner step costs b anchors, not n.

    The dual is the average of the linearisations of each anchor. Step s has weight s^3, so the last sixth of the steps
    has half of the weight.
    """

    on_batch = True

    def update(
        self, key: Array, state: Linearisations, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[Linearisations, Coefficients]:
        derivative = problem.derivative(outputs.mean(batch), batch)
        c = over_outputs(problem.batch_weights(batch), derivative) * derivative
        return state.add(batch, t**3, derivative), Coefficients(c, jnp.ones_like(t))
