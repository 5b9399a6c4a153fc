"""Tempered start: fresh draws of the prior, annealed to the new potential."""

import jax.numpy as jnp
from jax import Array

from mfpda.problem import GibbsPotential
from mfpda.sampling import Tempering
from mfpda.starts.base import Moved, Start

SMALLEST_WORTH = 0.25  # of M: the fewest independent draws that the particles are worth


class Temper(Tempering, Start):
    """Anneal M fresh draws of the prior to the new Gibbs potential (see ``mfpda.sampling.tempering``).

    This puts mass into the right modes. The run may have another ``kernel``; this one must be adjusted. The sample is
    sound if tempering kept its particles, could move them, and left them worth a quarter of M independent draws, which
    needs at least four families: if a few lucky draws have found a narrow mode, their descendants outweigh all others.
    Otherwise the old particles stay.

    Recorded: ``temperatures`` (their number), ``temper_effective_sample_size`` (the smallest), ``temper_acceptance``,
    ``independent_draws`` (the worth of the particles), ``sound`` (0 if the old particles stayed).
    """

    draws_fresh = True
    resamples = True

    @property
    def tempering(self) -> Tempering:
        return self

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        particles = len(thetas)
        fresh, ancestors, stats, _ = self.sample(key, new, particles)
        independent = new.problem.outputs(fresh).deviations().independent(new.problem, ancestors)
        sound = stats.sound(particles) & (independent >= SMALLEST_WORTH * particles)
        described = {
            "temperatures": stats.temperatures,
            "temper_effective_sample_size": stats.effective_sample_size,
            "temper_acceptance": stats.acceptance,
            "independent_draws": independent,
            "sound": sound,
        }
        return Moved(jnp.where(sound, fresh, thetas), stats=described, gradients=stats.gradients, sound=sound)
