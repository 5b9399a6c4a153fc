"""Tempered start: fresh draws of the prior, annealed to the new potential."""

from jax import Array

from mfpda.problem import GibbsPotential
from mfpda.sampling import Tempering
from mfpda.starts.base import Moved, Start


class Temper(Tempering, Start):
    """Anneal M fresh draws of the prior to the new Gibbs potential (see ``mfpda.sampling.tempering``).

    This puts mass into the right modes. It costs ``moves`` gradients per temperature. The run may have another
    ``kernel``; this one must be adjusted.

    Recorded: ``temperatures`` (their number), ``temper_effective_sample_size`` (the smallest), ``temper_acceptance``.
    """

    draws_fresh = True
    resamples = True

    @property
    def tempering(self) -> Tempering:
        return self

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        fresh, stats = self.sample(key, new, len(thetas))
        moves = {"temper_effective_sample_size": stats.effective_sample_size, "temper_acceptance": stats.acceptance}
        return Moved(fresh, stats={"temperatures": stats.temperatures, **moves}, gradients=stats.gradients)
