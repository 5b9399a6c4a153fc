"""Resampled start: fresh draws of the initial law at every outer step."""

from jax import Array

from mfpda import sampling
from mfpda.problem import GibbsPotential
from mfpda.starts.base import Moved, Start


class Resample(Start):
    """Draw every particle again from q1 (the resampling of Algorithm 3). Particles stay independent of each other."""

    draws_fresh = True

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        return Moved(sampling.draw_initial(key, len(thetas), new.problem))
