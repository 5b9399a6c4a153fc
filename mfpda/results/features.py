"""Features that neurons learn: the main directions of a run's weights over outer steps."""

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from mfpda.core import positive_count
from mfpda.errors import InputError, listed
from mfpda.results.arviz_data import RunData, groups_of


def alignment(inference_data: RunData, site: str, direction: ArrayLike, top: int | None = None) -> xr.DataArray:
    """Measure how well weights align with a direction: |cos(v_k, direction)|, k = 1..top, at every recorded step.

    The M x d matrix of a vector site has one row per particle, and v_k is its k-th right singular vector (the paper's
    Appendix F.4). ``top`` is 5 by default, or less if there are fewer vectors. Outer step 0 is the first particles.
    Steps that a run lacks are NaN.

    >>> initial, later = [[0.0, 2.0], [1.0, 0.0]], [[0.0, 1.0], [3.0, 0.0]]
    >>> start = xr.Dataset({"w": (("chain", "draw", "feature"), [initial])})
    >>> history = xr.Dataset({"w": (("chain", "outer_step", "draw", "feature"), [[later]])})
    >>> data = xr.DataTree.from_dict({"initial_particles": start, "particle_history": history})
    >>> found = alignment(data, "w", direction=[1.0, 0.0], top=2)
    >>> found.dims, found.sel(chain=0, vector=1).values.tolist()
    (('chain', 'outer_step', 'vector'), [0.0, 1.0])
    """
    groups = groups_of(inference_data)
    history, start = groups["particle_history"], groups["initial_particles"]
    if site not in history:
        raise InputError(f"a recorded site ({listed(history)})", repr(site), "Correct the name, or record it.")
    if history[site].ndim != 4:
        shape = history[site].shape[3:]
        raise InputError("a vector site", f"{site!r} of shape {shape}", "Give a site whose values are vectors.")
    particles, length = history[site].shape[2:]
    vector = np.asarray(direction, float)
    size = np.linalg.norm(vector)
    if vector.shape != (length,) or not np.isfinite(size) or size == 0:
        found = f"{vector.tolist()}" if vector.shape == (length,) else f"shape {vector.shape}"
        raise InputError(f"a direction of {length} finite numbers, not all 0", found, "Give one number per weight.")
    most = min(particles, length)
    top = min(5, most) if top is None else positive_count(top, "top")
    if top > most:
        found = f"{top}, for {particles} recorded particles of length {length}"
        raise InputError(f"top of at most {most}", found, "Ask for fewer singular vectors.")
    weights = np.concatenate([start[site].values[:, None, :particles], history[site].values], axis=1)
    cosines = [[_cosines(matrix, vector / size, top) for matrix in run] for run in weights]
    steps = np.concatenate([[0], history["outer_step"].values])
    coordinates = {"chain": history["chain"].values, "outer_step": steps, "vector": np.arange(1, top + 1)}
    return xr.DataArray(np.asarray(cosines), coordinates, dims=tuple(coordinates), name="alignment")


def _cosines(weights: np.ndarray, unit: np.ndarray, top: int) -> np.ndarray:
    weights = weights[np.isfinite(weights).all(axis=1)].astype(float)  # stacking pads runs with NaN
    if len(weights) < top:
        return np.full(top, np.nan)
    right = np.linalg.svd(weights, full_matrices=False)[2]
    return np.abs(right[:top] @ unit)
