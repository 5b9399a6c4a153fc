"""What neurons learn to look at: the directions of a run's weights, over outer steps."""

from typing import Any

import numpy as np
import xarray as xr

from mfpda.core.schedules import positive_count
from mfpda.errors import InputError, listed
from mfpda.results import arviz_data


def alignment(inference_data: Any, site: str, direction: Any, top: int | None = None) -> xr.DataArray:
    """How far the weights have turned to a direction: |cos(v_k, direction)|, k = 1..top, after every recorded step.

    v_k is the k-th right singular vector of the M x d matrix whose rows are the particles' values of a vector site, as
    in the paper's Appendix F.4; ``top`` is 5 by default, or as many as there are. Outer step 0 is the prior. NaN where
    a run has no such step.

    >>> initial, later = [[0.0, 2.0], [1.0, 0.0]], [[0.0, 1.0], [3.0, 0.0]]
    >>> prior = xr.Dataset({"w": (("chain", "draw", "feature"), [initial])})
    >>> history = xr.Dataset({"w": (("chain", "outer_step", "draw", "feature"), [[later]])})
    >>> data = xr.DataTree.from_dict({"prior": prior, "particle_history": history})
    >>> found = alignment(data, "w", direction=[1.0, 0.0], top=2)
    >>> found.dims, found.sel(chain=0, vector=1).values.tolist()
    (('chain', 'outer_step', 'vector'), [0.0, 1.0])
    """
    groups = arviz_data.groups_of(inference_data)
    history, start = groups["particle_history"], groups["prior"]
    if site not in history:
        raise InputError(f"a recorded site ({listed(history)})", repr(site), "Correct the name, or record it.")
    if history[site].ndim != 4:
        shape = history[site].shape[3:]
        raise InputError("a vector site", f"{site!r} of shape {shape}", "Give a site whose values are vectors.")
    particles, length = history[site].shape[2:]
    unit = _unit(direction, length)
    most = min(particles, length)
    top = min(5, most) if top is None else positive_count(top, "top")
    if top > most:
        found = f"{top}, for {particles} recorded particles of length {length}"
        raise InputError(f"top of at most {most}", found, "Ask for fewer singular vectors.")
    weights = np.concatenate([start[site].values[:, None, :particles], history[site].values], axis=1)
    cosines = [[_cosines(matrix, unit, top) for matrix in run] for run in weights]
    return xr.DataArray(
        np.asarray(cosines),
        {
            "chain": history["chain"].values,
            "outer_step": np.concatenate([[0], history["outer_step"].values]),
            "vector": np.arange(1, top + 1),
        },
        dims=("chain", "outer_step", "vector"),
        name="alignment",
    )


def _unit(direction: Any, length: int) -> np.ndarray:
    vector = np.asarray(direction, float)
    size = np.linalg.norm(vector)
    if vector.shape != (length,) or not np.isfinite(size) or size == 0:
        found = f"{vector.tolist()}" if vector.shape == (length,) else f"shape {vector.shape}"
        raise InputError(f"a direction of {length} finite numbers, not all 0", found, "Give one number per weight.")
    return vector / size


def _cosines(weights: np.ndarray, unit: np.ndarray, top: int) -> np.ndarray:
    weights = weights[np.isfinite(weights).all(axis=1)].astype(float)  # stacked runs are filled up with NaN
    if len(weights) < top:
        return np.full(top, np.nan)
    right = np.linalg.svd(weights, full_matrices=False)[2]
    return np.abs(right[:top] @ unit)
