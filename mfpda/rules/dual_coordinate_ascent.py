"""Dual coordinate ascent: one example after another, with reweighted particles in between."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import check_share, ess_fraction
from mfpda.problem import Blocks, Deviations, Outputs, Problem, over_outputs
from mfpda.rules.base import REWEIGHTED, Coefficients, Dual, Rule
from mfpda.rules.proximal import predicted


class AscentState(NamedTuple):
    """The dual g, the mass (1 for examples that had a step), and numbers of the last pass."""

    g: Array
    mass: Array
    coordinates: Array
    effective_sample_size: Array


class DualCoordinateAscent(Rule):
    """Maximise the dual D(g) over one g_i after another (P-SDCA; Oko, Suzuki, Nitanda and Wu 2022).

    An outer step takes the examples, or those of the batch, in random order. At example i, with z_i and V_i the mean
    and the (co)variance of h(theta, x_i) under the weighted particles, the new g_i = l'(u_i) solves

        u_i = z_i - V_i (l'(u_i) - g_i) / (n T).

    The weights then take the factor exp(-h(theta, x_i) . (change of g_i) / (n T)). The pass has at least one example,
    and ends before the effective sample size falls below ``share`` M. The kernel then moves the particles at the new
    potential. g begins at 0, whose density is the prior.

    Recorded: how many examples had a step, and the effective sample size that remains.
    """

    share: float = 0.5
    requires = "data set"
    needs_curvature = True
    defaults = REWEIGHTED

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> AscentState:
        return AscentState(jnp.zeros((anchors, *outputs)), jnp.zeros(anchors), jnp.zeros(()), jnp.zeros(()))

    def update(
        self, key: Array, state: AscentState, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[AscentState, Coefficients]:
        n, mass = len(state.g), outputs.mass
        order = jax.random.permutation(key, jnp.arange(n) if batch is None else batch)

        def next_coordinate(carry):
            k, g, seen, log_weights, _ = carry
            i = order[k]
            column = outputs.column(i)
            tilted = mass * jnp.exp(log_weights - jnp.max(log_weights))
            tilted = tilted / jnp.sum(tilted)
            z = jnp.tensordot(tilted, column, axes=1)
            centred = (column - z)[:, None]
            alone = Deviations(z[None], tilted, lambda z, x: centred, jnp.zeros(1), Blocks())
            of_one = problem.at(i[None])
            change = of_one.derivative(predicted(alone, g[i][None], of_one))[0] - g[i]
            scale = problem.weights[i] / problem.temperature
            ahead = log_weights - scale * jnp.tensordot(centred[:, 0], change, axes=change.ndim)
            left = ess_fraction(ahead, mass)
            allowed = (left >= self.share) | (k == 0)
            keep = lambda new, old: jnp.where(allowed, new, old)  # noqa: E731
            g, seen = g.at[i].add(keep(change, 0)), seen.at[i].set(keep(1, seen[i]))
            return k + allowed, g, seen, keep(ahead, log_weights), left

        unfinished = lambda carry: (carry[0] < len(order)) & (carry[-1] >= self.share)  # noqa: E731
        begun = (jnp.zeros((), int), state.g, state.mass, jnp.zeros_like(mass), jnp.ones((), mass.dtype))
        taken, g, seen, log_weights, _ = jax.lax.while_loop(unfinished, next_coordinate, begun)
        left = len(mass) * ess_fraction(log_weights, mass)
        c = over_outputs(problem.weights, g) * g
        return AscentState(g, seen, taken.astype(float), left), Coefficients(c, jnp.ones_like(t))

    def dual(self, state: AscentState) -> Dual:
        return Dual(state.g, state.mass)

    def stats(self, state: AscentState) -> dict[str, Array]:
        return {"coordinates": state.coordinates, "effective_sample_size": state.effective_sample_size}
