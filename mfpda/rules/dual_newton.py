"""Newton's method on the dual, within the reach of the particles' importance weights."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.core.schedules import check_share
from mfpda.core.weights import reach, share_left
from mfpda.registry import plug
from mfpda.rules.base import REWEIGHTED, Coefficients, Dual, Linearisations, Problem
from mfpda.rules.proximal import predicted

FLOOR = 2.0  # residuals of so many Monte Carlo errors are noise
AVERAGING = 3  # steps from which on an average goes on: gains of 2/5 and less halve no residual of the same particles
RENEW_EVERY = 16  # averaged steps


class NewtonState(NamedTuple):
    """g with how much of it are values of l' (the rest is the prior's 0), and how the last step went.

    ``settled`` counts the steps of the present average, ``age`` all steps since the run asked for new particles.
    """

    averaged: Linearisations
    settled: Array
    age: Array
    alpha: Array
    effective_sample_size: Array
    residual: Array


@plug
@dataclass(frozen=True)
class DualNewton:
    """Maximise the dual D(g) by Newton's method, each step as long as the particles' weights bear.

    With z and C the mean and the covariance of the outputs of particles of q_g, the target l'(u) maximises D with its
    log-normaliser to second order; Newton's system for it is (see ``mfpda.rules.proximal``)

        (I + (1/(n T)) C diag(l''(u))) du = z - u.

    Trust region: g moves to g + alpha (l'(u) - g), alpha in (0, 1] the largest at which the importance weights
    exp(-H (g_new - g) / (n T)) of the particles leave an effective sample size of ``share`` M. They need nothing but H.
    They are the particles that the direction was found with: few may say too much, above all of the first step.
    With ``start="reweight"`` the particles follow by just these weights, so that no mode is lost which they had. The
    first potential is the prior, g = 0, whose draws are exact.

    When the residual l'(z) - g is the noise of M particles (or rises, as it may when M is small against the rank of C),
    the k-th such step has at most alpha = 2 / (k + 2): g becomes an average in which the target of that step counts
    k + 1 times, and what was there before the first of them once; its error falls below that of one set of M particles.
    While k is 1 or 2 it is 0 again where the residual falls to half, and stays where it falls by less; from k = 3 on
    every step counts. Where the trust region asks for a shorter step, k is 0 in any case. The state is O(n).

    Where modes are far apart their shares come from the first steps, with the error of M particles, which no average
    over later steps of the same particles mends. So from k = 16 on, after every 16 steps, the particles are drawn anew,
    tempered from the prior (the old ones stay, where tempering fails), and the average goes on over what they say. (To
    begin it anew where they disagree would be to trust one set of M particles.) Starts that draw them anew at every
    step are left alone.

    Until the first whole step a part of g is the prior's 0. The fitted density is that of the rest, the targets alone,
    and so ahead of the particles.

    Recorded: alpha, the effective sample size it leaves, the residual (root mean square of l'(z) - g), settled = k, and
    age, the steps since the run drew the particles anew.

    All data are needed at every step: C between a batch and the rest is not known from the batch.
    """

    share: Any = 0.5
    on_batch: ClassVar[bool] = False
    smallest_gamma: ClassVar[float] = 1.0
    data_set: ClassVar[bool] = True
    full_batch: ClassVar[bool] = True
    suited: ClassVar[dict[str, Any]] = REWEIGHTED

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> NewtonState:
        none = jnp.zeros(())
        return NewtonState(Linearisations.empty(anchors, outputs), none, none, none, none, jnp.full_like(none, jnp.inf))

    def grow(self, state: NewtonState, anchors: int) -> NewtonState:
        return state._replace(averaged=state.averaged.grow(anchors))

    def update(
        self, key: Array, state: NewtonState, t: Array, outputs: Any, batch: Array | None, problem: Problem
    ) -> tuple[NewtonState, Coefficients]:
        (g, mass), deviations = state.averaged, outputs.deviations()
        n, z = len(g), deviations.z
        direction = problem.derivative(predicted(deviations, g, jnp.full(n, 1 / n, z.dtype), problem), None) - g
        rise = deviations.energies(direction) / (n * problem.temperature)
        within = reach(rise, jnp.ones((), z.dtype), self.share, deviations.mass)

        residual = jnp.sqrt(jnp.mean(jnp.square(problem.derivative(z, None) - g)))
        noise = jnp.sqrt(jnp.mean(deviations.noise(problem.loss, problem.y)) / deviations.particles)
        stays = (residual < FLOOR * noise) | (residual > state.residual) | (state.settled >= AVERAGING)
        settled = jnp.where(stays, state.settled + 1, jnp.where(residual < state.residual / 2, 0, state.settled))
        alpha = 2 / (settled + 2)
        settled, alpha = jnp.where(within < alpha, 0, settled), jnp.minimum(within, alpha)
        averaged = Linearisations(g + alpha * direction, mass + alpha * (1 - mass))
        left = len(deviations.mass) * share_left(-alpha * rise, deviations.mass)
        return NewtonState(averaged, settled, state.age + 1, alpha, left, residual), Coefficients(
            averaged.weighted / n, jnp.ones_like(t)
        )

    def dual(self, state: NewtonState, t: Array) -> Dual:
        return state.averaged.average()

    def stale(self, state: NewtonState) -> Array:
        return (state.age >= RENEW_EVERY) & (state.settled >= RENEW_EVERY)

    def renewed(self, state: NewtonState, times: int) -> NewtonState:
        """For new particles, so many times as many: each step averaged so far is worth so much less."""
        return state._replace(settled=state.settled / times, age=jnp.zeros_like(state.age))

    def stats(self, state: NewtonState) -> dict[str, Array]:
        return {name: value for name, value in state._asdict().items() if name != "averaged"}
