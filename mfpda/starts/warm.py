"""Warm start: the particles stay where they are."""

from dataclasses import dataclass

import jax

from mfpda import sampling
from mfpda.starts.base import Stats


@jax.tree_util.register_static
@dataclass(frozen=True)
class Warm:
    """Go on from the last iterate of the previous inner loop (Algorithm 1; the warm-start of Algorithm 3)."""

    def __call__(self, key, ensemble, old, new, kernel) -> tuple[sampling.Ensemble, Stats]:
        return sampling.refresh(ensemble, new, kernel), {}
