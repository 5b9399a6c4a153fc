"""Dual averaging, the paper's outer loop."""

from dataclasses import field

import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError
from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import AveragingRule, Coefficients, Linearisations


class DualAveraging(AveragingRule):
    """Average all linearisations so far, the one of step s with weight s (Algorithms 1 to 4 of the paper).

    With I_t the batch of step t, of size b, and with sums w_i that begin at 0 (Appendix E.1; E.2 for several outputs):

        w_i <- w_i + t l'(z_i, y_i) / b  for i in I_t,      c = 2 w / (t (t+1)),      gamma = t / (t+2),

    which together are the paper's coefficients 2 w / ((t+2)(t+1)) and its factor t / (t+2) on the penalty. ``gamma``
    fixes the factor instead: gamma = 1.0 admits priors whose cube root is not integrable.

    The dual of anchor i is the average of its own linearisations, g_i = sum_s s l'(z_i^(s)) / sum_s s over the batches
    that contained i. It is always feasible, and equals n c_i for the full batch.
    """

    gamma: float | None = field(default=None, metadata={"static": True})
    overshoots = True

    def __post_init__(self):
        if self.gamma not in (None, 1.0):
            advice = "Another fixed factor would converge to another problem's optimum."
            raise InputError("gamma = 1.0, or None for the paper's t / (t+2)", repr(self.gamma), advice)

    @property
    def smallest_gamma(self) -> float:
        return 1 / 3 if self.gamma is None else float(self.gamma)

    def update(
        self, key: Array, state: Linearisations, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[Linearisations, Coefficients]:
        derivative = problem.derivative(outputs.mean(batch), batch)
        state = state.add(batch, t, derivative)
        weights = problem.weights if batch is None else problem.weights * (len(problem.x) / len(batch))
        c = 2 * over_outputs(weights, state.weighted) * state.weighted / (t * (t + 1))
        gamma = t / (t + 2) if self.gamma is None else jnp.full_like(t, self.gamma)
        return state, Coefficients(c, gamma)
