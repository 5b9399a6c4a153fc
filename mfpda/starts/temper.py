"""Tempered start: fresh draws of the prior, annealed to the new potential."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import Array

from mfpda import sampling
from mfpda.core.schedules import check_share, positive_count
from mfpda.kernels import KERNELS, MALA, Kernel
from mfpda.problem.potential import GibbsPotential
from mfpda.registry import plug
from mfpda.sampling import tempering
from mfpda.starts.base import Stats


@plug
@dataclass(frozen=True)
class Temper:
    """Anneal M fresh draws of the prior to the new Gibbs potential (see ``mfpda.tempering``).

    This is how mass gets into the right modes; it costs ``moves`` gradients per temperature. ``kernel`` moves the
    particles at each temperature, whatever kernel the run has, and must be adjusted. The next temperature is as far as
    leaves an effective sample size of ``share`` M. Recorded: temperatures, how many there were;
    temper_effective_sample_size, the smallest that one of them left; temper_acceptance, of the moves.
    """

    kernel: Any = MALA()
    moves: int = 5
    share: float = 0.5
    draws_anew: ClassVar[bool] = True

    def __post_init__(self):
        object.__setattr__(self, "kernel", KERNELS.resolve(self.kernel))
        if isinstance(self.kernel, Kernel):  # JAX builds plugs from parts that are no kernels, too
            tempering.check_moves(self.kernel)
        if isinstance(self.moves, (int, float)):
            positive_count(self.moves, "moves")
        check_share(self.share)

    def tempered(self, key: Array, potential: GibbsPotential, particles: int) -> tuple[Array, tempering.TemperingStats]:
        """So many samples of exp(-V)."""
        return tempering.temper(key, potential, particles, self.kernel, self.moves, self.share)

    def replicated(
        self, key: Array, potential: GibbsPotential, particles: int, replicates: int
    ) -> tuple[Array, tempering.TemperingStats]:
        """Independent samples of exp(-V), first axis over them."""
        return tempering.replicated(key, potential, particles, self.kernel, self.moves, self.share, replicates)

    def __call__(self, key, ensemble, old, new, kernel) -> tuple[sampling.Ensemble, Stats]:
        temper_key, begin_key = jax.random.split(key)
        thetas, stats = self.tempered(temper_key, new, len(ensemble.theta))
        recorded = {
            "temperatures": stats.temperatures,
            "temper_effective_sample_size": stats.effective_sample_size,
            "temper_acceptance": stats.acceptance,
            "gradients": stats.gradients,
        }
        return sampling.begin(begin_key, thetas, new, kernel), recorded
