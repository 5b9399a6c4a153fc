"""What a run records on the host, and its shape as xarray data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mfpda.core.schedules import positive_count
from mfpda.errors import InputError, listed
from mfpda.problem.model import Model, Structure

# gradients: evaluations of grad V per particle in this outer step, the start's and the one of a new V included
OUTER_STATS = (
    "risk",
    "second_moment",
    "stiffness",
    "particles",
    "step_size",
    "inner_steps",
    "acceptance_rate",
    "diverging",
    "gradients",
    "seconds",
)
CERTIFICATE_STATS = ("certified", "gap", "gap_stderr", "gap_upper", "objective", "objective_stderr", "dual_value")


@dataclass(frozen=True)
class Record:
    """What is kept of a run: every how many outer steps (and the last), of which sites, and of how many particles.

    The final particles are always kept whole; ``sites`` and ``particles`` thin only their history.

    >>> Record(every=10, sites=("w",), particles=100)
    Record(every=10, sites=('w',), particles=100)
    """

    every: int = 1
    sites: Sequence[str] | None = None
    particles: int | None = None

    def __post_init__(self):
        positive_count(self.every, "Record.every")
        if self.particles is not None:
            positive_count(self.particles, "Record.particles")

    def kept_sites(self, structure: Structure) -> tuple[str, ...]:
        names = tuple(site.name for site in structure.sites)
        wanted = names if self.sites is None else tuple(self.sites)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise InputError(f"sites of the neuron ({listed(names)}) in Record", listed(unknown), "Correct the names.")
        return wanted

    def thin(self, sites: Sequence[str], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: np.asarray(values[name][: self.particles]) for name in sites}


def recorded_steps(every: int, certify_every: int, ends: Sequence[int], after: int = 0) -> list[int]:
    """The outer steps after this one that a run records: every so many, those it certifies, and the last.

    ``ends`` are the lengths that were asked for, one after another: what was once to be recorded stays so.

    >>> recorded_steps(3, 0, [4, 7])
    [3, 4, 6, 7]
    """
    certified = lambda t: certify_every > 0 and t % certify_every == 0  # noqa: E731
    return [t for t in range(after + 1, max(ends) + 1) if t % every == 0 or certified(t) or t in ends]


class Row(NamedTuple):
    """The state after one outer step, as recorded."""

    outer_step: int
    stats: dict[str, float]
    particles: Mapping[str, np.ndarray]


def particles_dataset(values: Mapping[str, Any], model: Model, structure: Structure) -> xr.Dataset:
    """One ensemble as dims (chain, draw, site dims)."""
    return _dataset(
        {name: np.asarray(value)[None] for name, value in values.items()}, ("chain", "draw"), model, structure
    )


def inner_trace(values: Mapping[str, Any], model: Model, structure: Structure) -> xr.Dataset:
    """The steps of a kernel as dims (chain = particle, draw = inner step, site dims)."""
    return _dataset({name: np.asarray(value) for name, value in values.items()}, ("chain", "draw"), model, structure)


def particle_history(rows: Sequence[Row], model: Model, structure: Structure) -> xr.Dataset:
    """Recorded ensembles as dims (chain, outer_step, draw, site dims)."""
    if rows:
        stacked = {name: np.stack([row.particles[name] for row in rows])[None] for name in rows[0].particles}
    else:  # an empty group would be dropped by InferenceData
        stacked = {site.name: np.empty((1, 0, 0, *site.shape)) for site in structure.sites}
    dataset = _dataset(stacked, ("chain", "outer_step", "draw"), model, structure)
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


def _dataset(values: dict[str, np.ndarray], leading: tuple[str, ...], model: Model, structure: Structure) -> xr.Dataset:
    dims = {site.name: site.dims for site in structure.sites}
    variables = {name: (leading + dims[name], value) for name, value in values.items()}
    used = {dim for name in values for dim in dims[name]}
    coords: dict[str, Any] = {dim: list(labels) for dim, labels in model.coords.items() if dim in used}
    if values:
        shape = next(iter(values.values())).shape
        coords |= {dim: np.arange(shape[leading.index(dim)]) for dim in ("chain", "draw")}
    return xr.Dataset(variables, coords=coords)
