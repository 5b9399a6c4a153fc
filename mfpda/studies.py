"""Studies: many runs behind one figure. ``mfpda study FILE`` calls three functions of a file:

study(quick) -> xarray.Dataset      the results of all runs; errors are taken over its dimension "seed"
claims(dataset) -> [Claim, ...]     each claim, whether it holds, and the numbers
figure(dataset)                     the matplotlib figure

A study that stops early keeps its finished runs. The next start reuses them, unless the code of the study has changed.
``tutorials/guides/extending.md`` has a complete example.
"""

import ast
import hashlib
import importlib.metadata
import itertools
import math
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import scipy.stats
import xarray as xr
from numpy.typing import ArrayLike
from tqdm import tqdm

from mfpda.distributed.signals import catch_stop_signals
from mfpda.errors import InputError, listed
from mfpda.persistence import files as storage
from mfpda.persistence import versions

LEVEL = 0.975  # confidence of a claim that one number is above or below another
_sweep_folders: ContextVar[Iterator[Path] | None] = ContextVar("sweep_folders", default=None)  # one for each sweep


class Claim(NamedTuple):
    """A claim, whether it holds (None if undecided), and the measured numbers.

    >>> print(Claim("smaller is better", True, "error 0.10 +- 0.01 against 0.20 +- 0.02"))
    holds: smaller is better (error 0.10 +- 0.01 against 0.20 +- 0.02)
    """

    text: str
    holds: bool | None
    measured: str

    def __str__(self) -> str:
        verdict = "undecided" if self.holds is None else "holds" if self.holds else "does not hold"
        return f"{verdict}: {self.text} ({self.measured})"


class Estimate(NamedTuple):
    """A mean over seeds with its standard error.

    >>> Estimate.of([1.0, 2.0, 3.0])
    2 +- 0.58
    """

    mean: float
    error: float
    seeds: int

    @classmethod
    def of(cls, values: ArrayLike, test_share: float = 0.0) -> "Estimate":
        """Average one number per seed.

        If seeds are random splits of one set of examples, they are not independent. Then give the number of test
        examples divided by the number of training examples as ``test_share``. The error becomes
        sqrt(1/seeds + test_share) standard deviations (Nadeau and Bengio 2003) instead of sqrt(1/seeds).
        """
        if np.ndim(values) != 1:
            found = f"dimensions {listed(map(str, getattr(values, 'dims', np.shape(values))))}"
            raise InputError("one number per seed", found, "Select one value of each other dimension first.")
        values = np.asarray(values, float)
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), spread * math.sqrt(1 / len(values) + test_share), len(values))

    def above(self, value: float) -> bool:
        """Whether the mean is above the value at level 0.975, by Student's quantile."""
        return self.mean - value > float(scipy.stats.t.ppf(LEVEL, max(self.seeds - 1, 1))) * self.error

    def below(self, value: float) -> bool:
        """Whether the mean is below the value at level 0.975."""
        return (-self).above(-value)

    def __neg__(self) -> "Estimate":
        return self._replace(mean=-self.mean)

    def __repr__(self) -> str:
        return f"{self.mean:.3g} +- {self.error:.2g}"


def lower(text: str, smaller: ArrayLike, larger: ArrayLike, test_share: float = 0.0) -> Claim:
    """Claim that one number is below another, judged by their difference for each seed.

    >>> print(lower("pears are lighter", [1.0, 2.0, 3.0, 4.0], [2.0, 3.1, 4.0, 5.1]))
    holds: pears are lighter (2.5 +- 0.65 against 3.55 +- 0.66; difference 1.05 +- 0.029)
    """
    return _compared(text, smaller, larger, -1, test_share)


def higher(text: str, larger: ArrayLike, smaller: ArrayLike, test_share: float = 0.0) -> Claim:
    """Claim that one number is above another, judged by their difference for each seed."""
    return _compared(text, larger, smaller, 1, test_share)


def _compared(text: str, first: ArrayLike, second: ArrayLike, sign: int, test_share: float) -> Claim:
    """Judge sign * (first - second): the claim holds above 0, does not hold below 0, and is undecided otherwise."""
    values = [np.asarray(each, float) for each in (first, second)]
    if values[0].shape != values[1].shape:
        found = f"{len(values[0])} and {len(values[1])} numbers"
        raise InputError("the same number of seeds in both", found, "Compare runs with the same seeds.")
    difference = Estimate.of(sign * (values[0] - values[1]), test_share)
    holds = True if difference.above(0) else False if difference.below(0) else None
    each = [Estimate.of(value, test_share) for value in (first, second)]
    return Claim(text, holds, f"{each[0]} against {each[1]}; difference {difference}")


def sweep(run: Callable[..., Mapping[str, object]], progress: bool = True, **axes: Iterable[object]) -> xr.Dataset:
    """Call ``run`` at every point of a grid and return one data set with a dimension for each name.

    ``run`` takes the names as keywords and returns numbers or DataArrays by name. Their own dimensions may differ in
    length from run to run: missing values are NaN. Ctrl-C stops the whole sweep, even if a fit catches it.

    >>> sweep(lambda power, seed: {"value": power * seed}, progress=False, power=[1, 2], seed=range(3))["value"].values
    array([[0, 1, 2],
           [0, 2, 4]])
    """
    values = {name: list(axis) for name, axis in axes.items()}
    empty = [name for name, axis in values.items() if not axis]
    if empty:
        raise InputError("values for every name of a sweep", f"none of {listed(empty)}", "Give at least one.")
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    folders = _sweep_folders.get()
    folder = next(folders) if folders else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    found = len(list(folder.glob("*.nc"))) if folder else 0
    if found:
        tqdm.write(f"{found} of {len(points)} runs are already finished", file=sys.stderr)
    bar, results = tqdm(points, disable=not progress, desc="study", unit="run"), []
    with catch_stop_signals(signal.SIGINT) as stop_request, bar:
        stop_request.defer(False)
        for k, point in enumerate(bar):
            bar.set_postfix(point)
            file = folder / f"{k}.nc" if folder else None
            if file and file.is_file():
                results.append(storage.read_dataset(file))
                continue
            numbers = run(**point)
            stop_request.defer(False)  # raises if a fit caught Ctrl-C
            if not isinstance(numbers, Mapping):
                raise InputError("numbers by name from every run of a sweep", type(numbers).__name__, "Return a dict.")
            result = xr.Dataset(dict(numbers))
            if file:
                storage.write_dataset(result, file)
            results.append(result)
    for name in reversed(values):
        size, index = len(values[name]), xr.DataArray(values[name], dims=name, name=name)
        results = [
            xr.concat(results[k : k + size], dim=index, join="outer", combine_attrs="override")
            for k in range(0, len(results), size)
        ]
    return results[0]


def run(module: ModuleType, quick: bool = False, folder: Path | None = None) -> xr.Dataset:
    """Run the study of a module. The attributes of the result hold what is needed to repeat it.

    Finished runs are kept in ``folder`` until the study is complete. Runs are not reused if the code has changed: the
    study's file, or a file next to it that it imports.
    """
    began, name = time.perf_counter(), module.__name__.rpartition(".")[2]
    code = hashlib.sha256(_code_of(Path(str(module.__file__)))).hexdigest()[:12]
    finished = None if folder is None else folder / f".{name}{'_quick' * quick}.{code}.runs"
    token = _sweep_folders.set((finished / str(number) for number in itertools.count()) if finished else None)
    try:
        dataset = module.study(quick)
    finally:
        _sweep_folders.reset(token)
    if not isinstance(dataset, xr.Dataset):
        raise InputError("an xarray.Dataset from study(quick)", type(dataset).__name__, "Return what sweep returns.")
    if folder is not None:
        for stale in folder.glob(f".{name}{'_quick' * quick}.*.runs"):
            shutil.rmtree(stale, ignore_errors=True)
    made: dict[str, object] = {**versions(), "python_version": platform.python_version()}
    made |= {f"{library}_version": importlib.metadata.version(library) for library in ("numpy", "scipy")}
    made |= {"study": name, "quick": int(quick), "seconds": round(time.perf_counter() - began, 1)}
    if "seed" in dataset.coords:
        made["seeds"] = dataset["seed"].values
    return dataset.assign_attrs(dataset.attrs | made)


def _code_of(path: Path) -> bytes:
    """Read a Python file and the files next to it that it imports."""
    text = path.read_bytes()
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    beside = sorted(path.parent / f"{name}.py" for name in names)
    return text + b"".join(_code_of(other) for other in beside if other.is_file())
