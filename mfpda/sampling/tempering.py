"""Tempering: exact draws of the prior annealed to a Gibbs potential (Del Moral, Doucet and Jasra 2006).

The potentials are V_beta = (1 - beta)(-log p0) + beta V, with beta from 0 to 1. At each new beta', particles are
weighted by exp(-(beta' - beta)(V + log p0)), resampled, and moved by a kernel that leaves exp(-V_beta') invariant. Each
beta' is as large as the weights allow (Jasra, Stephens, Doucet and Tsagaris 2011). Particles end in all modes in the
right proportions, because they spread over the modes while these can still be reached from the prior.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from mfpda import sampling
from mfpda.core import check_share, ess_fraction, largest_step, positive_count, systematic
from mfpda.errors import InputError
from mfpda.kernels import KERNELS, MALA, Kernel, step_size_of
from mfpda.problem import GibbsPotential
from mfpda.registry import Plug
from mfpda.sampling import tuning

FEWEST_TEMPERED = 1000  # by default: too long a step in temperature can go unnoticed with fewer particles
SMALLEST_SHARE = 0.1  # the smallest effective sample size that is sound, divided by M
SMALLEST_ACCEPTANCE = 0.1  # the smallest mean acceptance that is sound: particles that do not move stay copies
MOST_TEMPERATURES = 1000  # then the rest is one jump, and the effective sample size shows how large it was


class TemperingStats(NamedTuple):
    """The scalars that describe one tempering."""

    temperatures: Array
    effective_sample_size: Array  # the smallest over the temperatures; 0 if no particle was in the support of exp(-V)
    log_normaliser: Array  # estimates log of the integral of exp(-V), for a prior with a normalised density
    acceptance: Array
    gradients: Array

    def sound(self, particles: int) -> Array:
        """Whether a tempering of this many particles gave draws of exp(-V)."""
        enough = self.effective_sample_size >= SMALLEST_SHARE * particles
        return enough & (self.acceptance >= SMALLEST_ACCEPTANCE)


class Tempering(Plug):
    """How to temper: ``moves`` steps of ``kernel``, which must be adjusted, at every temperature.

    The effective sample size (sum w)^2 / sum w^2 falls to ``share`` M between one temperature and the next.
    """

    kernel: Kernel = MALA()
    moves: int = 5
    share: float = 0.5

    def __post_init__(self) -> None:
        kernel = KERNELS.resolve(self.kernel)
        if not kernel.adjusted:
            advice = "Use MALA(), or an adapter such as FromBlackJAX(blackjax.hmc)."
            raise InputError("an adjusted kernel to temper with (it keeps exp(-V) invariant)", repr(kernel), advice)
        if callable(step_size_of(kernel)):
            advice = "Tempering has no outer step t for a schedule to follow."
            raise InputError('a number or "auto" as step_size of the kernel to temper with', "a schedule", advice)
        tuning.plan(kernel, 1)
        positive_count(self.moves, "moves")
        check_share(self.share)
        object.__setattr__(self, "kernel", kernel)

    def sample(self, key: Array, potential: GibbsPotential, particles: int) -> tuple[Array, TemperingStats]:
        """Draw M flat thetas from the density exp(-V)."""
        return _temper(key, potential, self, particles)

    def replicates(
        self, key: Array, potential: GibbsPotential, particles: int, replicates: int
    ) -> tuple[Array, TemperingStats]:
        """Draw independent samples, one after another to save memory. The first axis is over the samples."""
        return _replicates(key, potential, self, particles, replicates)


@partial(jax.jit, static_argnames="particles")
def _temper(key: Array, potential: GibbsPotential, how: Tempering, particles: int) -> tuple[Array, TemperingStats]:
    draw_key, tune_key, loop_key = jax.random.split(key, 3)
    thetas = sampling.draw_prior(draw_key, particles, potential.problem)
    zero, count = jnp.zeros((), thetas.dtype), jnp.asarray(particles, thetas.dtype)
    prior = potential.tempered(zero)
    kernel, retune = tuning.tuned(tune_key, how.kernel, prior, thetas)
    difference = jax.vmap(lambda theta: potential(theta) - prior(theta))

    def next_temperature(carry):
        last, thetas, kernel, stats = carry
        resample_key, begin_key, move_key = jax.random.split(jax.random.fold_in(loop_key, stats.temperatures), 3)
        rise = difference(thetas)
        rise = jnp.where(jnp.isfinite(rise), rise, jnp.inf)  # infinite outside the support of exp(-V)
        lost = jnp.all(jnp.isinf(rise))
        may_stop = (stats.temperatures < MOST_TEMPERATURES - 1) & ~lost
        ahead = jnp.where(may_stop, largest_step(rise, 1 - last, how.share), 1 - last)
        beta = jnp.where(ahead >= 1 - last, 1, last + ahead)
        log_weights = jnp.where(jnp.isinf(rise), jnp.where(lost, 0, -jnp.inf), -(beta - last) * rise)

        thetas = thetas[systematic(resample_key, log_weights)]
        current = potential.tempered(beta)
        ensemble = sampling.begin(begin_key, thetas, current, kernel)
        ensemble, moved, kernel = sampling.run(move_key, ensemble, current, kernel, how.moves, retune)
        left = jnp.where(lost, 0, count * ess_fraction(log_weights))
        stats = TemperingStats(
            temperatures=stats.temperatures + 1,
            effective_sample_size=jnp.minimum(stats.effective_sample_size, left),
            log_normaliser=stats.log_normaliser + logsumexp(log_weights) - jnp.log(count),
            acceptance=stats.acceptance + jnp.mean(moved.acceptance),
            gradients=stats.gradients + jnp.mean(moved.gradients) + 1,  # sampling.begin takes one
        )
        return beta, ensemble.theta, kernel, stats

    begun = zero, thetas, kernel, TemperingStats(jnp.zeros((), int), count, zero, zero, zero)
    _, thetas, _, stats = jax.lax.while_loop(lambda carry: carry[0] < 1, next_temperature, begun)
    return thetas, stats._replace(acceptance=stats.acceptance / stats.temperatures)


@partial(jax.jit, static_argnames=("particles", "replicates"))
def _replicates(
    key: Array, potential: GibbsPotential, how: Tempering, particles: int, replicates: int
) -> tuple[Array, TemperingStats]:
    return jax.lax.map(lambda key: _temper(key, potential, how, particles), jax.random.split(key, replicates))
