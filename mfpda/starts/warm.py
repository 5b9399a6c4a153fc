"""Warm start: the particles stay where they are."""

from jax import Array

from mfpda.problem import GibbsPotential
from mfpda.starts.base import Moved, Start


class Warm(Start):
    """Continue from the last iterate of the previous inner loop (Algorithm 1; the warm-start of Algorithm 3)."""

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        return Moved(thetas)
