"""Entropic fictitious play: linearise at an average of past predictions."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.core import positive
from mfpda.errors import InputError
from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import Coefficients, Dual, Rule


class Play(NamedTuple):
    """The averaged predictions z, g = l'(z), and a mass that is 1 for the anchors that a batch has contained."""

    z: Array
    g: Array
    mass: Array


class FictitiousPlay(Rule):
    """Best responses to an average of the past (Chen, Ren and Wang 2022: entropic fictitious play).

        z_i <- (1 - rate) z_i + rate E_q h(theta, x_i),      c_i = w_i l'(z_i, y_i),      gamma = 1

    for the anchors i of the batch. An anchor's first z_i is its prediction. c depends on predictions alone, so
    averaging these replaces q <- (1 - rate) q + rate (the Gibbs density of c). It converges for rates below about 2 /
    (1 + stiffness). The dual g = l'(z) is feasible.
    """

    rate: float = 0.1
    requires = "data set"

    def __post_init__(self):
        if isinstance(self.rate, (int, float)) and not 0 < positive(self.rate, "rate") <= 1:
            raise InputError("a rate in (0, 1]", repr(self.rate), "1 forgets the past at every step.")

    def init(self, anchors: int, outputs: tuple[int, ...]) -> Play:
        return Play(jnp.zeros((anchors, *outputs)), jnp.zeros((anchors, *outputs)), jnp.zeros(anchors))

    def update(
        self, key: Array, state: Play, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[Play, Coefficients]:
        places = slice(None) if batch is None else batch
        before, seen = state.z[places], over_outputs(state.mass[places], state.z)
        z = before + jnp.where(seen > 0, self.rate, 1) * (outputs.mean(batch) - before)
        g = state.g.at[places].set(problem.derivative(z, batch))
        state = Play(state.z.at[places].set(z), g, state.mass.at[places].set(1))
        return state, Coefficients(over_outputs(problem.weights, g) * g, jnp.ones_like(t))

    def dual(self, state: Play) -> Dual:
        return Dual(state.g, state.mass)
