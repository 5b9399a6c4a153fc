"""Reweighted start: particles of the old potential weighted and resampled for the new one."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from mfpda import sampling
from mfpda.errors import InputError
from mfpda.model import Model
from mfpda.starts.protocol import Stats
from mfpda.weights import share_left, systematic


@jax.tree_util.register_static
@dataclass(frozen=True)
class Reweight:
    """Resample the particles in proportion to exp(-(V_new - V_old)), V_old the potential whose law they have.

    Systematic resampling; the kernel then moves copies apart. Mass goes from mode to mode without a particle having to
    cross between them, but only as far as the weights bear: a rule with a trust region (``DualNewton``) sees to that,
    and the effective sample size they leave is recorded. Under dual averaging they collapse.

    The first old potential is the prior, so a model's ``init`` is refused.
    """

    def check(self, model: Model) -> None:
        if model.declaration.init:
            advice = 'Leave init out, or name another start: "warm", or "temper".'
            expected = (
                'particles that begin as draws of the prior, for start="reweight" (which some rules take unless told)'
            )
            raise InputError(expected, "a model with init", advice)

    def __call__(self, key, ensemble, old, new, kernel) -> tuple[sampling.Ensemble, Stats]:
        rise = jax.vmap(lambda theta: new(theta) - old(theta))(ensemble.theta)
        finite = jnp.isfinite(rise)
        log_weights = jnp.where(jnp.any(finite), jnp.where(finite, -rise, -jnp.inf), 0)
        chosen = systematic(key, log_weights)
        ensemble = jax.tree.map(lambda part: part[chosen], ensemble)
        left = len(log_weights) * share_left(log_weights)
        return sampling.refresh(ensemble, new, kernel), {"effective_sample_size": left}
