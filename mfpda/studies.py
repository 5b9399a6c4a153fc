"""Studies: many runs behind one figure. A file of one has three functions, and ``mfpda study FILE`` calls them:

study(quick) -> xarray.Dataset      every run, with a dimension "seed" to take errors over
claims(dataset) -> [Claim, ...]     what was to be shown, whether it holds, and the numbers
figure(dataset)                     the matplotlib figure
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mfpda.errors import InputError
from mfpda.fitted import versions


class Claim(NamedTuple):
    """Something that a paper says, whether it was found to hold, and the numbers that say so.

    >>> print(Claim("smaller is better", True, "error 0.10 +- 0.01 against 0.20 +- 0.02"))
    holds: smaller is better (error 0.10 +- 0.01 against 0.20 +- 0.02)
    """

    text: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.text} ({self.measured})"


class Estimate(NamedTuple):
    """A mean over seeds with its standard error.

    >>> Estimate.of([1.0, 2.0, 3.0])
    2 +- 0.58
    """

    mean: float
    error: float

    @classmethod
    def of(cls, values: Any) -> "Estimate":
        values = np.ravel(np.asarray(values, float))
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), error)

    def __repr__(self) -> str:
        return f"{self.mean:.3g} +- {self.error:.2g}"


def sweep(run: Callable[..., Mapping[str, Any]], progress: bool = True, **axes: Iterable[Any]) -> xr.Dataset:
    """``run`` at every point of a grid, as one data set with a dimension per name, and one progress bar.

    ``run`` takes the names as keywords and returns numbers or DataArrays by name. Their own dimensions may differ in
    length from run to run: what a run lacks is NaN.

    >>> sweep(lambda power, seed: {"value": power * seed}, progress=False, power=[1, 2], seed=range(3))["value"].values
    array([[0, 1, 2],
           [0, 2, 4]])
    """
    values = {name: list(axis) for name, axis in axes.items()}
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    with tqdm(points, disable=not progress, desc="study", unit="run") as bar:
        results = []
        for point in bar:
            bar.set_postfix(point)
            results.append(xr.Dataset(dict(run(**point))))
    for name in reversed(values):
        size, index = len(values[name]), xr.DataArray(values[name], dims=name, name=name)
        results = [
            xr.concat(results[k : k + size], dim=index, join="outer", combine_attrs="override")
            for k in range(0, len(results), size)
        ]
    return results[0]


def run(module: ModuleType, quick: bool = False) -> xr.Dataset:
    """The study of a module, with what one needs to make it again in its attributes."""
    began = time.perf_counter()
    dataset = module.study(quick)
    if not isinstance(dataset, xr.Dataset):
        raise InputError("an xarray.Dataset from study(quick)", type(dataset).__name__, "Return one.")
    seconds = round(time.perf_counter() - began, 1)
    name = module.__name__.rpartition(".")[2]
    return dataset.assign_attrs(dataset.attrs | versions() | {"study": name, "quick": int(quick), "seconds": seconds})
