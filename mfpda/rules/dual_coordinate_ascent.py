"""Dual coordinate ascent: one example after another, the particles reweighted in between."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core.schedules import check_share
from mfpda.core.weights import share_left
from mfpda.problem.blocks import Blocks
from mfpda.problem.outputs import Deviations
from mfpda.registry import plug
from mfpda.rules.base import REWEIGHTED, Coefficients, Dual, Problem, grown
from mfpda.rules.proximal import predicted


class AscentState(NamedTuple):
    """g, which examples have had a step, and how the last pass went."""

    g: Array
    mass: Array
    coordinates: Array
    effective_sample_size: Array


@plug
@dataclass(frozen=True)
class DualCoordinateAscent:
    """Maximise the dual D(g) over one g_i after another (P-SDCA; Oko, Suzuki, Nitanda and Wu 2022).

    An outer step goes through the examples, or those of the batch, in random order. At example i, with z_i and V_i the
    mean and the (co)variance of h(theta, x_i) under the weighted particles, the new g_i = l'(u_i) solves

        u_i = z_i - V_i (l'(u_i) - g_i) / (n T),

    in closed form for the squared loss, and the weights take the factor exp(-h(theta, x_i) . (change of g_i) / (n T)).
    Weights alone carry the particles from one example to the next, so the pass ends before they would leave less than
    ``share`` of a sample (its first step is always taken); the kernel then moves the particles at the new potential. g
    begins at 0, the prior.

    Recorded: how many examples had a step, the effective sample size that is left.
    """

    share: Any = 0.5
    on_batch: ClassVar[bool] = False
    smallest_gamma: ClassVar[float] = 1.0
    data_set: ClassVar[bool] = True
    suited: ClassVar[dict[str, Any]] = REWEIGHTED

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> AscentState:
        return AscentState(jnp.zeros((anchors, *outputs)), jnp.zeros(anchors), jnp.zeros(()), jnp.zeros(()))

    def grow(self, state: AscentState, anchors: int) -> AscentState:
        return state._replace(g=grown(state.g, anchors), mass=grown(state.mass, anchors))

    def update(
        self, key: Array, state: AscentState, t: Array, outputs: Any, batch: Array | None, problem: Problem
    ) -> tuple[AscentState, Coefficients]:
        n, mass = len(state.g), outputs.mass
        order = jax.random.permutation(key, jnp.arange(n) if batch is None else batch)

        def unfinished(carry):
            k, _, _, _, left = carry
            return (k < len(order)) & (left >= self.share)

        def next_coordinate(carry):
            k, g, seen, log_weights, _ = carry
            i = order[k]
            column = outputs.column(i)
            tilted = mass * jnp.exp(log_weights - jnp.max(log_weights))
            tilted = tilted / jnp.sum(tilted)
            z = jnp.tensordot(tilted, column, axes=1)
            centred = (column - z)[:, None]
            alone = Deviations(z[None], tilted, lambda z, x: centred, jnp.zeros(1), Blocks())
            of_one = problem._replace(y=None if problem.y is None else problem.y[i][None])
            u = predicted(alone, g[i][None], jnp.full(1, 1 / n, z.dtype), of_one)
            change = of_one.derivative(u, None)[0] - g[i]
            ahead = log_weights - jnp.tensordot(centred[:, 0], change, axes=change.ndim) / (n * problem.temperature)
            left = share_left(ahead, mass)
            allowed = (left >= self.share) | (k == 0)
            keep = lambda new, old: jnp.where(allowed, new, old)  # noqa: E731
            g, seen = g.at[i].add(keep(change, 0)), seen.at[i].set(keep(1, seen[i]))
            return k + allowed, g, seen, keep(ahead, log_weights), left

        none = jnp.zeros(mass.shape, mass.dtype)
        begun = (jnp.zeros((), int), state.g, state.mass, none, jnp.ones((), mass.dtype))
        taken, g, seen, log_weights, _ = jax.lax.while_loop(unfinished, next_coordinate, begun)
        left = len(mass) * share_left(log_weights, mass)
        return AscentState(g, seen, taken.astype(float), left), Coefficients(g / n, jnp.ones_like(t))

    def dual(self, state: AscentState, t: Array) -> Dual:
        return Dual(state.g, state.mass)

    def stats(self, state: AscentState) -> dict[str, Array]:
        return {"coordinates": state.coordinates, "effective_sample_size": state.effective_sample_size}
