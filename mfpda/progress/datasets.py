"""Particles and recorded rows as xarray data sets."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jax.typing import ArrayLike

from mfpda.problem import Neuron
from mfpda.progress.record import OUTER_STATS, Row


def particles_dataset(values: Mapping[str, ArrayLike], neuron: Neuron) -> xr.Dataset:
    """One ensemble as dims (chain, draw, site dims)."""
    return _dataset({name: np.asarray(value)[None] for name, value in values.items()}, ("chain", "draw"), neuron)


def inner_trace(values: Mapping[str, ArrayLike], neuron: Neuron) -> xr.Dataset:
    """The steps of a kernel as dims (chain = particle, draw = inner step, site dims)."""
    return _dataset({name: np.asarray(value) for name, value in values.items()}, ("chain", "draw"), neuron)


def particle_history(rows: Sequence[Row], neuron: Neuron) -> xr.Dataset:
    """Recorded ensembles as dims (chain, outer_step, draw, site dims)."""
    if rows:
        stacked = {name: np.stack([row.particles[name] for row in rows])[None] for name in rows[0].particles}
    else:  # an empty group would be dropped by InferenceData
        stacked = {site.name: np.empty((1, 0, 0, *site.shape)) for site in neuron.sites}
    dataset = _dataset(stacked, ("chain", "outer_step", "draw"), neuron)
    return dataset.assign_coords(outer_step=("outer_step", [row.outer_step for row in rows]))


def outer_stats(rows: Sequence[Row]) -> xr.Dataset:
    """Recorded numbers as dims (chain, outer_step). A number that some steps lack is NaN there."""
    names = dict.fromkeys(name for row in rows for name in row.stats) or OUTER_STATS
    stats = {
        name: (("chain", "outer_step"), np.array([[row.stats.get(name, np.nan) for row in rows]])) for name in names
    }
    return xr.Dataset(stats, coords={"chain": [0], "outer_step": [row.outer_step for row in rows]})


def rows_from(history: xr.Dataset, stats: xr.Dataset) -> list[Row]:
    """The rows that these two data sets of one run were made from."""
    history, stats = history.isel(chain=0), stats.isel(chain=0)
    return [
        Row(
            int(t),
            {str(name): float(stats[name][k]) for name in stats},
            {str(name): history[name].values[k] for name in history},
        )
        for k, t in enumerate(stats["outer_step"].values)
    ]


def _dataset(values: dict[str, np.ndarray], leading: tuple[str, ...], neuron: Neuron) -> xr.Dataset:
    dims = {site.name: site.dims for site in neuron.sites}
    variables = {name: (leading + dims[name], value) for name, value in values.items()}
    used = {dim for name in values for dim in dims[name]}
    coords: dict[str, object] = {dim: list(labels) for dim, labels in neuron.declaration.coords if dim in used}
    if values:
        shape = next(iter(values.values())).shape
        coords |= {dim: np.arange(shape[leading.index(dim)]) for dim in ("chain", "draw")}
    return xr.Dataset(variables, coords=coords)
