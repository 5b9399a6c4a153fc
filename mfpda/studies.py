"""Studies: many runs behind one figure. A file of one has three functions, and ``mfpda study FILE`` calls them:

study(quick) -> xarray.Dataset      every run, with a dimension "seed" to take errors over
claims(dataset) -> [Claim, ...]     what was to be shown, whether it holds, and the numbers
figure(dataset)                     the matplotlib figure

A study that is interrupted, killed or fails keeps its finished runs, and goes on from them when it is started again,
unless its code was changed. A whole one, of how the risk depends on the number of particles:

    from mfpda import fit, plots
    from mfpda.studies import lower, sweep

    def study(quick):
        def run(particles, seed):
            result = fit(jax.random.key(seed), model, data, particles=particles, progress=False)
            return {"risk": result.groups["outer_stats"]["risk"].isel(chain=0)[-1].item()}

        return sweep(run, particles=[50, 500], seed=range(3 if quick else 10))

    def claims(dataset):
        few, many = (dataset["risk"].sel(particles=m) for m in (50, 500))
        return [lower("more particles have a lower risk", many, few)]

    def figure(dataset):
        return plots.band(dataset["risk"]).figure
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import itertools
import math
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import xarray as xr
from tqdm import tqdm

from mfpda.errors import InputError, listed
from mfpda.persistence import files as storage
from mfpda.results.fit import versions

LEVEL = 0.975  # of a claim that something is above or below something else
_kept: ContextVar[Iterator[Path] | None] = ContextVar("kept", default=None)  # a folder for each sweep of a study


class Claim(NamedTuple):
    """Something that a paper says, whether it was found to hold, and the numbers that say so; None is undecided.

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
    def of(cls, values: Any, test_share: float = 0.0) -> "Estimate":
        """The mean of one number per seed.

        Where seeds are random splits of one set of examples, they are not independent: give the number of examples to
        test over that to train as ``test_share``, and the error is sqrt(1/seeds + test_share) standard deviations
        (Nadeau and Bengio 2003) and not sqrt(1/seeds).
        """
        if getattr(values, "ndim", 1) != 1:
            found = f"dimensions {listed(map(str, getattr(values, 'dims', values.shape)))}"
            raise InputError("one number per seed", found, "Select values of the other dimensions first.")
        values = np.asarray(values, float)
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), spread * math.sqrt(1 / len(values) + test_share), len(values))

    def above(self, value: float) -> bool:
        """Whether the mean is above a value, at level 0.975 by Student's quantile."""
        return self.mean - value > float(scipy.stats.t.ppf(LEVEL, max(self.seeds - 1, 1))) * self.error

    def below(self, value: float) -> bool:
        """Whether the mean is below a value, at level 0.975."""
        return (-self).above(-value)

    def __neg__(self) -> "Estimate":
        return self._replace(mean=-self.mean)

    def __repr__(self) -> str:
        return f"{self.mean:.3g} +- {self.error:.2g}"


def lower(text: str, smaller: Any, larger: Any, test_share: float = 0.0) -> Claim:
    """The claim that one number is below another, judged by their difference seed by seed.

    >>> print(lower("pears are lighter", [1.0, 2.0, 3.0, 4.0], [2.0, 3.1, 4.0, 5.1]))
    holds: pears are lighter (2.5 +- 0.65 against 3.55 +- 0.66; difference 1.05 +- 0.029)
    """
    return _compared(text, smaller, larger, -1, test_share)


def higher(text: str, larger: Any, smaller: Any, test_share: float = 0.0) -> Claim:
    """The claim that one number is above another, judged by their difference seed by seed."""
    return _compared(text, larger, smaller, 1, test_share)


def _compared(text: str, first: Any, second: Any, sign: int, test_share: float) -> Claim:
    """Whether sign * (first - second) is above 0: does not hold if it is below, undecided if neither can be said."""
    values = [np.asarray(each, float) for each in (first, second)]
    if values[0].shape != values[1].shape:
        found = f"{len(values[0])} and {len(values[1])} numbers"
        raise InputError("as many seeds of one as of the other", found, "Compare runs of the same seeds.")
    difference = Estimate.of(sign * (values[0] - values[1]), test_share)
    holds = True if difference.above(0) else False if difference.below(0) else None
    each = [Estimate.of(value, test_share) for value in (first, second)]
    return Claim(text, holds, f"{each[0]} against {each[1]}; difference {difference}")


def sweep(run: Callable[..., Mapping[str, Any]], progress: bool = True, **axes: Iterable[Any]) -> xr.Dataset:
    """``run`` at every point of a grid, as one data set with a dimension per name, and one progress bar.

    ``run`` takes the names as keywords and returns numbers or DataArrays by name. Their own dimensions may differ in
    length from run to run: what a run lacks is NaN. Ctrl-C stops the sweep, also where a fit would return what it has.

    >>> sweep(lambda power, seed: {"value": power * seed}, progress=False, power=[1, 2], seed=range(3))["value"].values
    array([[0, 1, 2],
           [0, 2, 4]])
    """
    values = {name: list(axis) for name, axis in axes.items()}
    empty = [name for name, axis in values.items() if not axis]
    if empty:
        raise InputError("values of every name of a sweep", f"none of {listed(empty)}", "Give at least one.")
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    kept = _kept.get()
    folder = next(kept) if kept else None
    found = len(list(folder.glob("*.nc"))) if folder else 0
    if found:
        tqdm.write(f"{found} of {len(points)} runs were made earlier", file=sys.stderr)
    with _stoppable() as check, tqdm(points, disable=not progress, desc="study", unit="run") as bar:
        results = []
        for k, point in enumerate(bar):
            bar.set_postfix(point)
            file = folder / f"{k}.nc" if folder else None
            if file and file.is_file():
                results.append(storage.read_dataset(file))
                continue
            numbers = run(**point)
            check()
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
    """The study of a module, with what one needs to make it again in its attributes.

    Finished runs are kept below ``folder`` until the study is complete, under the state of the code in its file and in
    the neighbours that it imports: what was made by other code is not gone on from.
    """
    began, name = time.perf_counter(), module.__name__.rpartition(".")[2]
    code = hashlib.sha256(_code_of(Path(str(module.__file__)))).hexdigest()[:12]
    kept = None if folder is None else folder / f".{name}{'_quick' * quick}.{code}.runs"
    token = _kept.set(None if kept is None else _folders(kept))
    try:
        dataset = module.study(quick)
    finally:
        _kept.reset(token)
    if not isinstance(dataset, xr.Dataset):
        raise InputError("an xarray.Dataset from study(quick)", type(dataset).__name__, "Return one.")
    if folder is not None:
        for stale in folder.glob(f".{name}{'_quick' * quick}.*.runs"):
            shutil.rmtree(stale, ignore_errors=True)
    made: dict[str, Any] = versions() | {"python_version": platform.python_version()}
    made |= {f"{library}_version": importlib.metadata.version(library) for library in ("numpy", "scipy")}
    made |= {"study": name, "quick": int(quick), "seconds": round(time.perf_counter() - began, 1)}
    if "seed" in dataset.coords:
        made["seeds"] = dataset["seed"].values
    return dataset.assign_attrs(dataset.attrs | made)


def _folders(parent: Path) -> Iterator[Path]:
    """A folder for the first sweep of a study, for its second, ..."""
    for number in itertools.count():
        folder = parent / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _code_of(path: Path) -> bytes:
    """The text of a Python file and of the files beside it that it imports."""
    text = path.read_bytes()
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    beside = sorted(path.parent / f"{name}.py" for name in names)
    return text + b"".join(_code_of(other) for other in beside if other.is_file())


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Remembers a Ctrl-C that a fit answers by returning what it has: ``check()`` then stops the sweep."""
    pressed = threading.Event()

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    if not in_main or before is signal.SIG_IGN:
        yield check
        return

    def remember(number, frame):
        pressed.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
