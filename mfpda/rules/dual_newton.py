"""Newton's method on the dual, with steps that the particles' importance weights allow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core import check_share, ess_fraction, largest_step
from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import Coefficients, Defaults, Dual, Rule
from mfpda.rules.proximal import predicted

FLOOR = 2.0  # a residual below this many Monte Carlo errors is noise
POOL = 16  # draws of the prior per particle that judge the first step
FRESH = 2  # averaged steps after which particles are drawn fresh


class NewtonState(NamedTuple):
    """The dual g, the averaged predictions u, and numbers of the last step."""

    g: Array
    u: Array
    settled: Array  # k, the number of averaged steps
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
    are resampled by these weights and lose no mode. The first potential is the prior, g = 0. Its weights are judged on
    16 M further draws of the prior, because M draws may miss those that matter.

    Averaging: once a full step finds a residual l'(z) - g that is noise or no longer falls, the predictions u of all
    further steps are averaged, step k with weight k, and g = l'(average). A step that the trust region shortens ends
    the average. From the third averaged step on, unless you name a start, particles are drawn fresh at each step,
    tempered from the prior. The errors of different steps are then independent, those in the masses of distant modes
    too, so the average improves until a bias of order 1/M is left. ``Fit`` moves its particles a little, so that they
    predict this average.

    Recorded: the residual (root mean square of l'(z) - g), and the other numbers of ``NewtonState``.
    """

    share: float = 0.5
    requires = "full batch"  # a batch does not show the covariance between itself and the rest
    needs_curvature = True
    calibrates = True
    defaults = Defaults("hmc", "reweight", 3)

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> NewtonState:
        none, u = jnp.zeros(()), jnp.zeros((anchors, *outputs))
        return NewtonState(u, u, none, none, none, jnp.full_like(none, jnp.inf))

    def update(
        self, key: Array, state: NewtonState, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[NewtonState, Coefficients]:
        g, deviations = state.g, outputs.deviations()
        z, weights = deviations.z, over_outputs(problem.weights, g)
        u = predicted(deviations, g, problem)
        direction = problem.derivative(u) - g
        rise = deviations.energies(weights * direction) / problem.temperature
        one = jnp.ones((), z.dtype)
        within = largest_step(rise, one, self.share, deviations.mass)
        if deviations.draws is not None:
            drawn = lambda: deviations.draws(key, POOL, weights * direction) / problem.temperature  # noqa: E731
            first = lambda: jnp.minimum(within, largest_step(drawn(), one, self.share / 4))  # noqa: E731
            within = jax.lax.cond(jnp.isinf(state.residual), first, lambda: within)

        mean = lambda each: problem.weighted(jnp.mean(each.reshape(len(each), -1), axis=1))  # noqa: E731
        residual = jnp.sqrt(mean(jnp.square(problem.derivative(z) - g)))
        noise = jnp.sqrt(mean(deviations.noise(problem)) / deviations.particles)
        settles = (residual < FLOOR * noise) | (residual > state.residual) | (state.settled > 0)
        settled = jnp.where(settles & (within >= 1), state.settled + 1, 0)
        u = state.u + jnp.where(settled > 1, 2 / (settled + 1), 1) * (u - state.u)
        direction = jnp.where(settled > 1, problem.derivative(u) - g, direction)
        g = g + within * direction
        left = len(deviations.mass) * ess_fraction(-within * rise, deviations.mass)
        return NewtonState(g, u, settled, within, left, residual), Coefficients(weights * g, jnp.ones_like(t))

    def dual(self, state: NewtonState) -> Dual:
        return Dual(state.g, jnp.ones(len(state.g)))

    def predictions(self, state: NewtonState) -> Array | None:
        return state.u if float(state.settled) > 0 else None

    def wants_fresh(self, state: NewtonState) -> Array:
        return state.settled >= FRESH

    def stats(self, state: NewtonState) -> dict[str, Array]:
        return {name: value for name, value in state._asdict().items() if name not in ("g", "u")}
