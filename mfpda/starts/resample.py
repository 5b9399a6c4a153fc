"""Resampled start: fresh draws of the initial law at every outer step."""

from dataclasses import dataclass
from typing import ClassVar

import jax

from mfpda import sampling
from mfpda.starts.base import Stats


@jax.tree_util.register_static
@dataclass(frozen=True)
class Resample:
    """Draw every particle anew from q1 (the resampling of Algorithm 3): particles stay independent of each other."""

    draws_anew: ClassVar[bool] = True

    def __call__(self, key, ensemble, old, new, kernel) -> tuple[sampling.Ensemble, Stats]:
        draw_key, begin_key = jax.random.split(key)
        thetas = sampling.draw_initial(draw_key, len(ensemble.theta), new)
        return sampling.begin(begin_key, thetas, new, kernel), {}
