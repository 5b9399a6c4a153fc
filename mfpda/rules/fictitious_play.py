"""Entropic fictitious play: linearise at an average of past predictions."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.core.schedules import positive
from mfpda.errors import InputError
from mfpda.registry import plug
from mfpda.rules.base import Coefficients, Dual, Problem, grown, over_outputs


class Play(NamedTuple):
    """The averaged predictions, l' there, and whether an anchor has been seen."""

    z: Array
    g: Array
    mass: Array


@plug
@dataclass(frozen=True)
class FictitiousPlay:
    """Best responses to an average of the past (Chen, Ren and Wang 2022: entropic fictitious play).

        z_i <- (1 - rate) z_i + rate E_q h(theta, x_i),      c_i = l'(z_i, y_i) / n,      gamma = 1

    for the anchors i of the batch; the first time that i is seen it takes its prediction whole. Averaging laws,
    q <- (1 - rate) q + rate (the Gibbs density of c), averages their predictions, which are all that c depends on: the
    state is O(n). It converges for rates below about 2 / (1 + stiffness).

    Its dual is g = l'(z), which is feasible.
    """

    rate: Any = 0.1
    on_batch: ClassVar[bool] = False
    smallest_gamma: ClassVar[float] = 1.0
    data_set: ClassVar[bool] = True

    def __post_init__(self):
        if isinstance(self.rate, (int, float)) and not 0 < positive(self.rate, "rate") <= 1:
            raise InputError("a rate in (0, 1]", repr(self.rate), "1 forgets the past at every step.")

    def init(self, anchors: int, outputs: tuple[int, ...]) -> Play:
        return Play(jnp.zeros((anchors, *outputs)), jnp.zeros((anchors, *outputs)), jnp.zeros(anchors))

    def grow(self, state: Play, anchors: int) -> Play:
        return Play(*(grown(part, anchors) for part in state))

    def update(
        self, key: Array, state: Play, t: Array, outputs: Any, batch: Array | None, problem: Problem
    ) -> tuple[Play, Coefficients]:
        places = slice(None) if batch is None else batch
        before, seen = state.z[places], over_outputs(state.mass[places], state.z)
        z = before + jnp.where(seen > 0, self.rate, 1) * (outputs.mean(batch) - before)
        g = state.g.at[places].set(problem.derivative(z, batch))
        state = Play(state.z.at[places].set(z), g, state.mass.at[places].set(1))
        return state, Coefficients(g / len(g), jnp.ones_like(t))

    def dual(self, state: Play, t: Array) -> Dual:
        return Dual(state.g, state.mass)
