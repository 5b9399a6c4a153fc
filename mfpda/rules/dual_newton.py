"""Newton's method on the dual, with steps that are judged by the particles of the new density."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.core import check_share, ess_fraction, largest_step
from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.rules.base import Coefficients, Defaults, Dual, Rule
from mfpda.rules.proximal import predicted

FLOOR = 2.0  # a residual below this many Monte Carlo errors is noise
LONGEST_FALL = 1.5  # times what a whole step should bring: beyond it, the step went too far
CLEAR = 8.0  # Monte Carlo errors of independent draws beyond which a fall is too long; tempered particles have more
SHORTEST = 2.0**-10  # of a whole step: what contradicts so short a step is the sample before it, not the step
ROUNDINGS = 16  # of a sum over all examples


class NewtonState(NamedTuple):
    """The dual g, the averaged predictions u, and what judges and describes the last step."""

    g: Array
    u: Array
    direction: Array  # d: the step was alpha d
    level: Array  # sum_i w_i d_i . z_i / T before the step
    variance: Array  # of the energies along d before the step: the fall of the level that a whole step should bring
    settled: Array  # k, the number of averaged steps
    alpha: Array
    longest: Array  # the next alpha is at most this
    effective_sample_size: Array
    residual: Array


class DualNewton(Rule):
    """Maximise the dual D(g) by Newton's method, and go back after a step that went too far.

    With z and C the mean and the covariance of the outputs under q_g, the target l'(u) maximises D with its
    log-normaliser expanded to second order. Newton's system for u is (see ``mfpda.rules.proximal``)

        (I + (1/(n T)) C diag(l''(u))) du = z - u.

    Trust region: g <- g + alpha d with d = l'(u) - g, and the largest alpha in (0, 1] at which the importance weights
    exp(-H d alpha / (n T)) leave an effective sample size of ``share`` M. It is at most twice the last alpha.

    Judgement: weights know nothing of a mode that no particle has found. A step that fills such a mode moves the
    predictions much further than C said. So the rule looks at the predictions z' of the particles that sample the new
    density. If the fall of d . z is at most that of a whole step by the model, d . z' >= d . u, then D still rises
    along d at the new dual. D is concave, so D has not fallen. If the fall is clearly more than 1.5 times that, the
    step is taken back: dual and particles stay as they were, and the next step is at most half as long. Near the length
    at which the mode fills, particles see it, and the next step allows for it. All this needs particles that sample the
    new density. So the default start tempers fresh particles from the prior at every step: particles that are only
    reweighted and moved a little agree with the dual that was made from them. If their sample is not sound, the step is
    taken back too. So a run never ends at a density that its particles cannot sample, or that they contradict.

    Averaging: once a whole step finds a residual l'(z) - g that is noise or no longer falls, the predictions u of all
    further steps are averaged, step k with weight k, and g = l'(average). A step that the trust region shortens ends
    the average. Fresh particles have independent errors, so the average improves until a bias of order 1/M is left.
    ``Fit`` moves its particles a little, so that they predict this average.

    Recorded: the residual (root mean square of l'(z) - g), and the other numbers of ``NewtonState``.
    """

    share: float = 0.5
    requires = "full batch"  # a batch does not show the covariance between itself and the rest
    needs_curvature = True
    calibrates = True
    takes_back = True
    defaults = Defaults("hmc", "temper", 1)

    def __post_init__(self):
        check_share(self.share)

    def init(self, anchors: int, outputs: tuple[int, ...]) -> NewtonState:
        none, u = jnp.zeros(()), jnp.zeros((anchors, *outputs))
        whole, unknown = jnp.ones_like(none), jnp.full_like(none, jnp.inf)
        return NewtonState(u, u, u, none, none, none, none, whole, none, unknown)

    def update(
        self, key: Array, state: NewtonState, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[NewtonState, Coefficients]:
        deviations = outputs.deviations()
        g, z = state.g, deviations.z
        scaled = over_outputs(problem.weights, g) / problem.temperature
        u = predicted(deviations, g, problem)
        direction = problem.derivative(u) - g
        rise = deviations.energies(scaled * direction)
        alpha = largest_step(rise, state.longest.astype(z.dtype), self.share, deviations.mass)

        mean = lambda each: problem.weighted(jnp.mean(each.reshape(len(each), -1), axis=1))  # noqa: E731
        residual = jnp.sqrt(mean(jnp.square(problem.derivative(z) - g)))
        noise = jnp.sqrt(mean(deviations.noise(problem)) / deviations.particles)
        settles = (residual < FLOOR * noise) | (residual > state.residual) | (state.settled > 0)
        settled = jnp.where(settles & (alpha >= 1), state.settled + 1, 0)
        u = state.u + jnp.where(settled > 1, 2 / (settled + 1), 1) * (u - state.u)
        direction = jnp.where(settled > 1, problem.derivative(u) - g, direction)
        rise = deviations.energies(scaled * direction)
        state = NewtonState(
            g=g + alpha * direction,
            u=u,
            direction=direction,
            level=jnp.sum(scaled * direction * z),
            variance=deviations.mass @ jnp.square(rise),
            settled=settled,
            alpha=alpha,
            longest=jnp.minimum(1, 2 * alpha).astype(state.longest.dtype),
            effective_sample_size=len(deviations.mass) * ess_fraction(-alpha * rise, deviations.mass),
            residual=residual,
        )
        return state, Coefficients(over_outputs(problem.weights, g) * state.g, jnp.ones_like(t))

    def allows(self, state: NewtonState, outputs: Outputs, problem: Problem) -> Array:
        deviations = outputs.deviations()
        along = over_outputs(problem.weights, state.g) * state.direction / problem.temperature
        fall, spread = state.level - jnp.sum(along * deviations.z), deviations.energies(along)
        noise = CLEAR * jnp.sqrt((state.variance + deviations.mass @ jnp.square(spread)) / deviations.particles)
        rounding = ROUNDINGS * jnp.finfo(fall.dtype).eps * jnp.sum(jnp.abs(along * deviations.z))
        return (fall <= LONGEST_FALL * state.variance + noise + rounding) | (state.alpha <= SHORTEST)

    def taken_back(self, before: NewtonState, after: NewtonState) -> NewtonState:
        """Allow half of the step. Steps that are averaged are short, so what failed there was luck."""
        half = jnp.maximum(after.alpha / 2, SHORTEST)
        return before._replace(longest=jnp.where(after.settled > 1, 1, half).astype(before.longest.dtype))

    def dual(self, state: NewtonState) -> Dual:
        return Dual(state.g, jnp.ones(len(state.g)))

    def predictions(self, state: NewtonState) -> Array | None:
        return state.u if float(state.settled) > 0 else None

    def stats(self, state: NewtonState) -> dict[str, Array]:
        return {name: value for name, value in state._asdict().items() if value.ndim == 0}
