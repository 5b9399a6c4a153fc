"""Reweighted start: particles of the old potential weighted and resampled for the new one."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from mfpda import sampling
from mfpda.core.weights import share_left, systematic
from mfpda.errors import InputError
from mfpda.problem.model import Model
from mfpda.starts.base import Stats

POOL = 16  # draws of the prior for every particle: they take no gradient


@jax.tree_util.register_static
@dataclass(frozen=True)
class Reweight:
    """Resample the particles in proportion to exp(-(V_new - V_old)), V_old the potential whose law they have.

    Systematic resampling; the kernel then moves copies apart. Mass goes from mode to mode without a particle having to
    cross between them, but only as far as the weights bear: a rule with a trust region (``DualNewton``) sees to that,
    and the effective sample size they leave is recorded (reweight_effective_sample_size). Under dual averaging they
    collapse.

    The first old potential is the prior, so a model's ``init`` is refused. Of the prior there are exact draws without a
    gradient: the first particles are chosen out of 16 M of them. A mode that holds little of the prior's mass is
    entered by so many more, and the error of its share, which later steps hardly mend, is so much smaller. The
    recorded size of that step is what the weights of these leave of M. It may be far below what the rule saw, which had
    M draws alone: then there are too few particles for the problem.
    """

    def check(self, model: Model) -> None:
        if model.declaration.init:
            advice = 'Leave init out, or name another start: "warm", or "temper".'
            expected = (
                'particles that begin as draws of the prior, for start="reweight" (which some rules take unless told)'
            )
            raise InputError(expected, "a model with init", advice)

    def __call__(self, key, ensemble, old, new, kernel) -> tuple[sampling.Ensemble, Stats]:
        particles = len(ensemble.theta)

        def log_weights(thetas):
            rise = jax.vmap(lambda theta: new(theta) - old(theta))(thetas)
            return jnp.where(jnp.isfinite(rise), -rise, -jnp.inf)

        def of_the_prior():
            draw_key, choose_key, begin_key = jax.random.split(key, 3)

            def drawn(key):  # as many at a time as memory is made for
                thetas = sampling.draw_prior(key, particles, new)
                return thetas, log_weights(thetas)

            thetas, weights = jax.lax.map(drawn, jax.random.split(draw_key, POOL))
            chosen, left = _chosen(choose_key, weights.ravel(), particles)
            return sampling.begin(begin_key, thetas.reshape(-1, thetas.shape[-1])[chosen], new, kernel), left

        def of_the_particles():
            chosen, left = _chosen(key, log_weights(ensemble.theta), particles)
            return sampling.refresh(jax.tree.map(lambda part: part[chosen], ensemble), new, kernel), left

        after, left = jax.lax.cond(jnp.all(old.coefficients == 0), of_the_prior, of_the_particles)
        return after, {"reweight_effective_sample_size": left}


def _chosen(key: Array, log_weights: Array, particles: int) -> tuple[Array, Array]:
    """So many indices by weight (the first ones, where nothing has any), and the size of an equally good sample."""
    log_weights = jnp.where(jnp.any(log_weights > -jnp.inf), log_weights, 0)
    return systematic(key, log_weights, particles), particles * share_left(log_weights)
