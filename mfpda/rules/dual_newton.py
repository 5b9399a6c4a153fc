"""Newton's method on the dual, with steps that the particles' importance weights allow."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.core import check_share, ess_fraction, largest_step
from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import REWEIGHTED, Coefficients, Dual, Linearisations, Renewal, Rule
from mfpda.rules.proximal import predicted

FLOOR = 2.0  # a residual below this many Monte Carlo errors is noise
AVERAGING = 3  # after this many averaged steps, never restart the average
RENEW_EVERY = 16  # averaged steps


class NewtonState(NamedTuple):
    """g, the share of g that comes from values of l' (the rest is its initial 0), and numbers of the last step."""

    averaged: Linearisations
    settled: Array  # k, the steps of the current average
    age: Array  # the steps since the last renewal
    alpha: Array
    effective_sample_size: Array  # after the step
    residual: Array


class DualNewton(Rule):
    """Maximise the dual D(g) by Newton's method. Steps are as long as the particles' importance weights allow.

    With z and C the mean and the covariance of the outputs under q_g, the target l'(u) maximises D with its
    log-normaliser expanded to second order. Newton's system for u is (see ``mfpda.rules.proximal``)

        (I + (1/(n T)) C diag(l''(u))) du = z - u.

    Trust region: g <- g + alpha (l'(u) - g), with the largest alpha in (0, 1] at which the importance weights
    exp(-H (g_new - g) / (n T)) leave an effective sample size of ``share`` M. With ``start="reweight"`` the particles
    are resampled by these weights and lose no mode. The first potential is the prior, g = 0, whose draws are exact.

    Averaging: k counts the steps whose residual l'(z) - g rises or is at noise level. There alpha <= 2 / (k + 2).
    Then g is an average in which target k counts k + 1 times, and its error falls below that of one set of M
    particles. If k is 1 or 2, a residual that halves resets k to 0, and a smaller fall leaves k as it is. From k = 3
    on, every step raises k. A step that the trust region shortens always sets k = 0.

    Renewal: the masses of distant modes come from the first steps, and averages over the same particles do not correct
    them. So from k = 16 on, every 16 steps, the run tempers M new particles from the prior (it keeps the old ones if
    tempering fails) and continues the average. Starts that draw fresh particles at every step need no renewal.

    Until a step has alpha = 1, g still includes its initial 0. The fitted density leaves this 0 out, so particles lag
    behind it. Recorded: the residual (root mean square of l'(z) - g), and the rest of ``NewtonState``.
    """

    share: float = 0.5
    requires = "full batch"  # a batch does not show the covariance between itself and the rest
    defaults = REWEIGHTED

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> NewtonState:
        none = jnp.zeros(())
        return NewtonState(Linearisations.empty(anchors, outputs), none, none, none, none, jnp.full_like(none, jnp.inf))

    def update(
        self, key: Array, state: NewtonState, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[NewtonState, Coefficients]:
        (g, mass), deviations = state.averaged, outputs.deviations()
        z, weights = deviations.z, over_outputs(problem.weights, g)
        direction = problem.derivative(predicted(deviations, g, problem)) - g
        rise = deviations.energies(weights * direction) / problem.temperature
        within = largest_step(rise, jnp.ones((), z.dtype), self.share, deviations.mass)

        mean = lambda each: problem.weighted(jnp.mean(each.reshape(len(each), -1), axis=1))  # noqa: E731
        residual = jnp.sqrt(mean(jnp.square(problem.derivative(z) - g)))
        noise = jnp.sqrt(mean(deviations.noise(problem)) / deviations.particles)
        stays = (residual < FLOOR * noise) | (residual > state.residual) | (state.settled >= AVERAGING)
        settled = jnp.where(stays, state.settled + 1, jnp.where(residual < state.residual / 2, 0, state.settled))
        alpha = 2 / (settled + 2)
        settled, alpha = jnp.where(within < alpha, 0, settled), jnp.minimum(within, alpha)
        averaged = Linearisations(g + alpha * direction, mass + alpha * (1 - mass))
        left = len(deviations.mass) * ess_fraction(-alpha * rise, deviations.mass)
        state = NewtonState(averaged, settled, state.age + 1, alpha, left, residual)
        return state, Coefficients(weights * averaged.weighted, jnp.ones_like(t))

    def dual(self, state: NewtonState) -> Dual:
        return state.averaged.average()

    def renewal(self, state: NewtonState) -> Renewal:
        return Renewal((state.age >= RENEW_EVERY) & (state.settled >= RENEW_EVERY), state.settled)

    def renewed(self, state: NewtonState, times: int) -> NewtonState:
        """Divide the count of the steps averaged so far by ``times``."""
        return state._replace(settled=state.settled / times, age=jnp.zeros_like(state.age))

    def stats(self, state: NewtonState) -> dict[str, Array]:
        return {name: value for name, value in state._asdict().items() if name != "averaged"}
