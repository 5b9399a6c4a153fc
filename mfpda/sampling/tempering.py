"""Tempering: particles of the prior annealed to a Gibbs potential. One function, for every use.

From exact draws of p0 through potentials V_beta = (1 - beta)(-log p0) + beta V, beta rising from 0 to 1: particles are
weighted by exp(-(beta' - beta)(V + log p0)), resampled in proportion, and moved by a kernel that leaves exp(-V_beta')
invariant. Each beta' is as far ahead as the weights allow. The mass of a mode is decided while it can still be reached
from the prior, so particles come to lie in all modes in the right proportions, as they do not under a warm start (Del
Moral, Doucet and Jasra 2006; the adaptive choice of beta: Jasra, Stephens, Doucet and Tsagaris 2011).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from mfpda import sampling
from mfpda.core.weights import reach, share_left, systematic
from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.kernels.base import is_adjusted
from mfpda.problem.potential import GibbsPotential
from mfpda.sampling import tuning

FEWEST_TEMPERED = 1000  # by default: few particles cannot tell when a step in temperature is too long
SMALLEST_SHARE = 0.1  # of the particles that a temperature may leave effective
SMALLEST_ACCEPTANCE = 0.1  # of the moves, averaged over temperatures: particles that do not move stay copies
MOST_TEMPERATURES = 1000  # then the rest is one jump, and the effective sample size says how large it was


class TemperingStats(NamedTuple):
    """How an annealing went: scalars.

    ``effective_sample_size`` is the smallest over the temperatures, 0 if no particle was in the support of exp(-V);
    ``log_normaliser`` estimates the logarithm of the integral of exp(-V) over that of the prior, for a prior whose
    density is normalised.
    """

    temperatures: Array
    effective_sample_size: Array
    log_normaliser: Array
    acceptance: Array
    gradients: Array

    def sound(self, particles: int) -> Array:
        """Whether so many particles can be taken for draws of exp(-V)."""
        enough = self.effective_sample_size >= SMALLEST_SHARE * particles
        return enough & (self.acceptance >= SMALLEST_ACCEPTANCE)


def check_moves(kernel: Any) -> None:
    """Refuse a kernel whose moves would bend the law that tempering is to keep, or that waits for a t to follow."""
    if not is_adjusted(kernel):
        advice = "Use MALA(), or an adapter such as FromBlackJAX(blackjax.hmc)."
        raise InputError("an adjusted kernel to temper with, one that keeps exp(-V) invariant", repr(kernel), advice)
    if callable(getattr(kernel, "step_size", None)):
        advice = "Temperatures have no outer step t to follow."
        raise InputError('a number or "auto" as step_size of the kernel to temper with', "a schedule", advice)
    tuning.plan(kernel, 1)


def temper(
    key: Array, potential: GibbsPotential, particles: int, kernel: Kernel, moves: Array | int, share: Array | float
) -> tuple[Array, TemperingStats]:
    """M flat thetas of the density exp(-V), with ``moves`` steps of the kernel at every temperature.

    The next temperature is the one at which the effective sample size (sum w)^2 / sum w^2 falls to ``share`` M.
    """
    draw_key, tune_key, loop_key = jax.random.split(key, 3)
    thetas = sampling.draw_prior(draw_key, particles, potential)
    dtype = thetas.dtype
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    prior = potential.tempered(zero)
    kernel, retuned = tuning.tuned(tune_key, kernel, prior, thetas)
    difference = jax.vmap(lambda theta: potential(theta) - prior(theta))
    count = jnp.asarray(particles, dtype)

    def unfinished(carry):
        beta, *_ = carry
        return beta < 1

    def next_temperature(carry):
        last, thetas, kernel, stats = carry
        resample_key, begin_key, move_key = jax.random.split(jax.random.fold_in(loop_key, stats.temperatures), 3)
        rise = difference(thetas)
        rise = jnp.where(jnp.isfinite(rise), rise, jnp.inf)  # a particle outside the support of exp(-V)
        lost = jnp.all(jnp.isinf(rise))
        may_stop = (stats.temperatures < MOST_TEMPERATURES - 1) & ~lost
        ahead = jnp.where(may_stop, reach(rise, 1 - last, share), 1 - last)
        beta = jnp.where(ahead >= 1 - last, one, last + ahead)
        log_weights = jnp.where(jnp.isinf(rise), jnp.where(lost, 0, -jnp.inf), -(beta - last) * rise)

        thetas = thetas[systematic(resample_key, log_weights)]
        current = potential.tempered(beta)
        ensemble = sampling.begin(begin_key, thetas, current, kernel)
        ensemble, moved, kernel = sampling.run(move_key, ensemble, current, kernel, moves, retuned)
        stats = TemperingStats(
            temperatures=stats.temperatures + 1,
            effective_sample_size=jnp.minimum(
                stats.effective_sample_size, jnp.where(lost, 0, count * share_left(log_weights))
            ),
            log_normaliser=stats.log_normaliser + logsumexp(log_weights) - jnp.log(count),
            acceptance=stats.acceptance + jnp.mean(moved.acceptance),
            gradients=stats.gradients + jnp.mean(moved.gradients) + 1,  # one to begin with
        )
        return beta, ensemble.theta, kernel, stats

    begun = TemperingStats(jnp.zeros((), int), count, zero, zero, zero)
    _, thetas, _, stats = jax.lax.while_loop(unfinished, next_temperature, (zero, thetas, kernel, begun))
    return thetas, stats._replace(acceptance=stats.acceptance / stats.temperatures)


@partial(jax.jit, static_argnames=("particles", "replicates"))
def replicated(
    key: Array,
    potential: GibbsPotential,
    particles: int,
    kernel: Kernel,
    moves: Array | int,
    share: Array | float,
    replicates: int,
) -> tuple[Array, TemperingStats]:
    """Independent tempered samples, first axis over them: one after another, so that memory does not grow."""
    tempered = lambda key: temper(key, potential, particles, kernel, moves, share)  # noqa: E731
    return jax.lax.map(tempered, jax.random.split(key, replicates))
