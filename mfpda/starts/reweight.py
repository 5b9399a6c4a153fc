"""Reweighted start: particles of the old potential weighted and resampled for the new one."""

import jax
import jax.numpy as jnp
from jax import Array

from mfpda import sampling
from mfpda.core import ess_fraction, systematic
from mfpda.errors import InputError
from mfpda.problem import GibbsPotential, Model
from mfpda.starts.base import Moved, Start


class Reweight(Start):
    """Resample the particles systematically, in proportion to exp(-(V_new - V_old)). The kernel moves copies apart.

    Mass moves between modes although no particle crosses between them. A rule with a trust region (``DualNewton``)
    bounds its steps so that the weights stay even enough. Under dual averaging the weights collapse.

    The first old potential is the prior's, so a model's ``init`` is refused. The first particles are chosen from 16 M
    exact draws, which need no gradient: errors in the mass of small modes are hard to correct later.

    Recorded: ``reweight_effective_sample_size``. At step 1 the ESS is that of the 16 M draws, divided by 16. If this is
    far below the one that the rule recorded from its M draws, M is too small for the problem.
    """

    resamples = True

    def check(self, model: Model) -> None:
        if model.has_init:
            advice = 'Leave init out, or name another start: "warm" or "temper".'
            expected = 'particles that begin as draws of the prior, for start="reweight" (the default of some rules)'
            raise InputError(expected, "a model with init", advice)

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        particles = len(thetas)

        def log_weights(thetas):
            rise = jax.vmap(lambda theta: new(theta) - old(theta))(thetas)
            return jnp.where(jnp.isfinite(rise), -rise, -jnp.inf)

        def choose(key, log_weights):
            log_weights = jnp.where(jnp.any(log_weights > -jnp.inf), log_weights, 0)  # equal weights if all are 0
            return systematic(key, log_weights, particles), particles * ess_fraction(log_weights)

        def from_the_prior():
            draw_key, choose_key = jax.random.split(key)

            def draw(key):  # M at a time: the memory budget assumes M
                drawn = sampling.draw_prior(key, particles, new.problem)
                return drawn, log_weights(drawn)

            drawn, weights = jax.lax.map(draw, jax.random.split(draw_key, sampling.POOL))
            chosen, left = choose(choose_key, weights.ravel())
            return drawn.reshape(-1, drawn.shape[-1])[chosen], jnp.arange(particles), left

        def from_the_particles():
            chosen, left = choose(key, log_weights(thetas))
            return thetas[chosen], chosen, left

        first = jnp.all(old.coefficients == 0)
        positions, parents, left = jax.lax.cond(first, from_the_prior, from_the_particles)
        return Moved(positions, parents, {"reweight_effective_sample_size": left})
