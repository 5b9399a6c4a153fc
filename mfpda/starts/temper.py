"""Tempered start: fresh draws of the prior, annealed to the new potential."""

import jax.numpy as jnp
from jax import Array

from mfpda.problem import GibbsPotential
from mfpda.sampling import Tempering
from mfpda.starts.base import Moved, Start


class Temper(Tempering, Start):
    """Anneal M fresh draws of the prior to the new Gibbs potential (see ``mfpda.sampling.tempering``).

    This puts mass into the right modes. The run may have another ``kernel``; this one must be adjusted. If tempering
    loses its particles or cannot move them, the old particles stay.

    Recorded: ``temperatures`` (their number), ``temper_effective_sample_size`` (the smallest), ``temper_acceptance``.
    """

    draws_fresh = True
    resamples = True

    @property
    def tempering(self) -> Tempering:
        return self

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        fresh, stats, _ = self.sample(key, new, len(thetas))
        fresh = jnp.where(stats.sound(len(thetas)), fresh, thetas)
        moves = {"temper_effective_sample_size": stats.effective_sample_size, "temper_acceptance": stats.acceptance}
        return Moved(fresh, stats={"temperatures": stats.temperatures, **moves}, gradients=stats.gradients)
