"""Figures of a run, drawn from its ArviZ data. Every function takes and returns matplotlib axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from mfpda.errors import InputError, listed
from mfpda.results.arviz_data import Groups, RunData, groups_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Coordinate = tuple[str, int | None]  # a site, and an index into it (None for a scalar site)
Function = Callable[[np.ndarray], ArrayLike]  # of inputs, one in each row


def trajectories(
    inference_data: RunData, coordinates: Sequence[Coordinate], ax: Axes | None = None, lines: int = 40, chain: int = 0
) -> Axes:
    """Draw particles in the plane of two coordinates, dark at early outer steps and bright at late ones.

    ``coordinates`` are two pairs of a site and an index into it (None for a scalar site): ``[("w", 0), ("w", 1)]``.
    Thin lines show the paths of the first ``lines`` particles.
    """
    if len(coordinates) != 2 or any(isinstance(which, str) or len(which) != 2 for which in coordinates):
        raise InputError("two pairs of a site and an index", repr(coordinates), 'Try [("w", 0), ("b", None)].')
    groups = groups_of(inference_data)
    history, start = (groups[name].isel(chain=chain) for name in ("particle_history", "initial_particles"))
    across, up = (
        np.concatenate([_coordinate(start, *which)[None, : history.sizes["draw"]], _coordinate(history, *which)])
        for which in coordinates
    )
    steps = np.concatenate([[0], history["outer_step"].values])
    ax = _axes(ax, 4.6)
    ax.plot(across[:, :lines], up[:, :lines], color="0.75", linewidth=0.4, zorder=1)
    shown = np.unique(np.linspace(0, len(steps) - 1, 30).round().astype(int))
    colours = np.repeat(steps[shown], across.shape[1])
    dots = ax.scatter(across[shown].ravel(), up[shown].ravel(), c=colours, s=5, cmap="plasma", linewidth=0, zorder=2)
    ax.figure.colorbar(dots, ax=ax, label="outer step")
    ax.set(xlabel=_label(history, *coordinates[0]), ylabel=_label(history, *coordinates[1]))
    ax.set_title("Particles: dark early, bright late")
    if coordinates[0][0] == coordinates[1][0]:  # coordinates of one site share a scale
        ax.set_aspect("equal", adjustable="datalim")
    return ax


def stat(inference_data: RunData, name: str = "risk", ax: Axes | None = None) -> Axes:
    """Plot one number of ``outer_stats`` against the outer step, a line per run. Positive numbers have log-log axes."""
    stats = groups_of(inference_data)["outer_stats"]
    if name not in stats:
        raise InputError(f"one of the recorded numbers ({listed(map(str, stats))})", repr(name), "Correct the name.")
    ax = _axes(ax)
    for chain in stats["chain"].values:
        label = f"run {chain}" if stats.sizes["chain"] > 1 else None
        ax.plot(stats["outer_step"], stats[name].sel(chain=chain), marker=".", label=label)
    if bool((stats[name] > 0).all()):
        ax.set(xscale="log", yscale="log")
    ax.set(xlabel="outer step", ylabel=name.replace("_", " "))
    if stats.sizes["chain"] > 1:
        ax.legend()
    return ax


def band(
    values: xr.DataArray, ax: Axes | None = None, label: str | None = None, over: str = "seed", **style: Any
) -> Axes:
    """Plot the mean over seeds against the other dimension of a DataArray, with a band of one standard error.

    Points with an infinite value, such as a bound without a certificate, are left out.
    """
    others = [dim for dim in values.dims if dim != over]
    if over not in values.dims or len(others) != 1:
        found, advice = f"dimensions {listed(values.dims)}", "Select one value of each other one: values.sel(...)."
        raise InputError(f"a DataArray over {over!r} and one other dimension", found, advice)
    ax = _axes(ax)
    (dim,) = others
    values = values.where((np.abs(values) != np.inf).all(over)).dropna(dim, how="all")
    mean, error = values.mean(over), values.std(over, ddof=1) / np.sqrt(values.count(over))
    (line,) = ax.plot(values[dim], mean, label=label, **style)
    ax.fill_between(values[dim], mean - error, mean + error, color=line.get_color(), alpha=0.25, linewidth=0)
    return ax


def gap(inference_data: RunData, ax: Axes | None = None) -> Axes:
    """Plot the certified gap against the outer step on log-log axes, with guides proportional to 1/t and 1/t^2.

    Each run has a line with a band of one standard error. Its upper bound is thin and dashed. A triangle at the bottom
    marks a gap of 0.
    """
    stats, ylabel = _certified(inference_data, "gap"), "duality gap, L(q_g) - D(g)"
    return _decay(stats["gap"], stats["gap_stderr"], stats["gap_upper"], "gap", ylabel, ax)


def objective(inference_data: RunData, ax: Axes | None = None) -> Axes:
    """Plot the excess of the certified objective over the run's best lower bound, L(q_g) - max_t D(g_t).

    Axes, bands and guides are as in ``gap``. Up to the Monte Carlo error of D, this is at least L(q_g) - L*. (In a
    stream L* changes with every batch, so a lower bound of one step is not a bound at another.)
    """
    stats = _certified(inference_data, "objective")
    best = stats["dual_value"].where(stats["objective"].notnull()).max("outer_step")
    excess = stats["objective"] - best
    return _decay(excess, stats["objective_stderr"], None, "objective", "L(q_g) - max D(g)", ax)


def function(
    inference_data: RunData,
    ax: Axes | None = None,
    predict: Function | None = None,
    truth: Function | None = None,
    output: int | None = None,
) -> Axes:
    """Plot the fitted function of a one-dimensional input, with the data and, if given, the truth.

    Each run is a line through its predictions at the anchors. If ``predict`` is given, the line is that function on a
    fine grid. ``output`` chooses one of several outputs. At most 500 data points are drawn.
    """
    groups = groups_of(inference_data)
    chains = groups["constant_data"]["chain"].values
    runs = [_examples(groups, k, predict) for k in range(len(chains))]
    shape = runs[0].x.shape
    if np.prod(shape[1:]) != 1:
        advice = "Use plots.surface for two dimensions. For more, plot a slice with fit.predict."
        raise InputError("inputs of one dimension", f"shape {shape}", advice)
    every_x = np.concatenate([run.x.ravel() for run in runs])
    grid = np.linspace(every_x.min(), every_x.max(), 200)
    rows, advice = grid.reshape(200, *shape[1:]), "Give output=0, for example."
    if predict is not None:
        fitted = [(grid, _one_output(predict(rows), output, advice), "fit")]
    else:
        orders = [np.argsort(run.x.ravel(), kind="stable") for run in runs]
        fitted = [
            (run.x.ravel()[order], _one_output(run.z, output, advice)[order], _run_label(chains, k, "fit"))
            for k, (run, order) in enumerate(zip(runs, orders, strict=True))
        ]
    ax = _axes(ax)
    data = [(run.x.ravel(), _observed(run.y, output, advice)) for run in runs if run.y is not None]
    if data:
        points = np.unique(np.concatenate(data, axis=1).T, axis=0)  # by x; shared points once
        x, y = points[_thinned(len(points))].T
        ax.scatter(x, y, s=6, color="0.6", linewidth=0, label="data")
    if truth is not None:
        ax.plot(grid, _observed(np.asarray(truth(rows)), output, advice), color="black", linestyle="--", label="truth")
    for across, up, label in fitted:
        ax.plot(across, up, color="tab:red" if len(fitted) == 1 else None, label=label)
    ax.set(xlabel="x", ylabel="y")
    ax.legend()
    return ax


def surface(inference_data: RunData, ax: Axes | None = None, predict: Function | None = None, chain: int = 0) -> Axes:
    """Draw the fitted function of a two-dimensional input in colours, its zeros in black, and the data coloured by y.

    The colours interpolate a run's predictions at its anchors. If ``predict`` is given, they show that function on a
    slightly larger grid. At most 500 data points are drawn.
    """
    from matplotlib.colors import CenteredNorm
    from matplotlib.tri import Triangulation

    run = _examples(groups_of(inference_data), chain, predict)
    advice = "Give predict=lambda x: fit.predict(x)[:, 0], for example."
    if run.x.shape[1:] != (2,):
        raise InputError("inputs of two dimensions", f"shape {run.x.shape}", "Use plots.function for one dimension.")
    extent = np.ptp(run.x, axis=0)
    margin = 0.075 * np.where(extent > 0, extent, 1)
    low, high = run.x.min(axis=0) - margin, run.x.max(axis=0) + margin
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 120).T), axis=-1).reshape(-1, 2)
    z = _one_output(run.z if predict is None else predict(grid), None, advice)
    try:
        triangles = Triangulation(*(run.x if predict is None else grid).T)
    except (RuntimeError, ValueError) as error:  # fewer than three points, or all on a line
        found, advice = f"{len(run.x)} that do not", "Give predict=fit.predict to draw it on a grid."
        raise InputError("anchors that span a plane", found, advice) from error
    ax = _axes(ax, 4.6)
    colours = ax.tricontourf(triangles, z, levels=20, cmap="RdBu", norm=CenteredNorm())
    if z.min() < 0 < z.max():
        ax.tricontour(triangles, z, levels=[0], colors="black")
    if run.y is not None:
        shown = _thinned(len(run.x))
        (x1, x2), y = run.x[shown].T, _observed(run.y, None, advice)[shown]
        ax.scatter(x1, x2, c=y, cmap="RdBu", norm=CenteredNorm(), edgecolor="black", linewidth=0.3, s=14)
    ax.figure.colorbar(colours, ax=ax, label="E[h(theta, x)]")
    ax.set(xlabel="x1", ylabel="x2", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    return ax


def alignment(alignment_array: xr.DataArray, ax: Axes | None = None) -> Axes:
    """Plot the result of ``features.alignment``, averaged over runs: a line per singular vector, brightest first."""
    import matplotlib

    if set(getattr(alignment_array, "dims", ())) != {"chain", "outer_step", "vector"}:
        advice = 'Pass what features.alignment(fit.idata, "w", direction) returns.'
        raise InputError("an array with dims chain, outer_step and vector", type(alignment_array).__name__, advice)
    averaged = alignment_array.mean("chain")
    ax = _axes(ax)
    colours = matplotlib.colormaps["plasma"](np.linspace(0.85, 0, averaged.sizes["vector"]))
    for vector, colour in zip(averaged["vector"].values, colours, strict=True):
        label = f"{_ordinal(int(vector))} singular vector"
        ax.plot(averaged["outer_step"], averaged.sel(vector=vector), color=colour, label=label)
    ax.set(xlabel="outer step", ylabel="|cosine| with the direction", ylim=(0, 1))
    ax.legend()
    return ax


def _certified(inference_data: RunData, name: str) -> xr.Dataset:
    """Select the certified runs and steps of ``outer_stats``. Refuse data without any."""
    stats = groups_of(inference_data)["outer_stats"]
    known = stats[name].notnull() if name in stats else xr.DataArray(False)
    if not bool(known.any()):
        asked = int(stats["certified"].notnull().sum()) if "certified" in stats else 0
        advice = "fit.certify says why." if asked else "Run fit(..., certify_every=10), for example."
        raise InputError("certified outer steps", f"{asked} without a value" if asked else "none", advice)
    return stats.isel(chain=known.any("outer_step").values, outer_step=known.any("chain").values)


def _decay(
    values: xr.DataArray, errors: xr.DataArray, upper: xr.DataArray | None, name: str, ylabel: str, ax: Axes | None
) -> Axes:
    """Plot numbers that should fall to 0 with the outer step: lines, bands of one standard error, guides."""
    from matplotlib.ticker import LogFormatter

    ax = _axes(ax)
    ax.set(xscale="log", yscale="log", xlabel="outer step", ylabel=ylabel)
    for format_ticks in (ax.xaxis.set_major_formatter, ax.xaxis.set_minor_formatter):
        format_ticks(LogFormatter())  # 20, not 2 x 10^1
    shown = values if upper is None else values.where(values > 0, upper)
    least = float(shown.where(shown > 0).min())
    floor = least / 10 if np.isfinite(least) else 1e-12  # bands, guides and values that are not positive end there
    chains = values["chain"].values
    for k, chain in enumerate(chains):
        certified = np.isfinite(values.sel(chain=chain).values)
        line, error = (part.sel(chain=chain).isel(outer_step=certified) for part in (values, errors))
        t, last = line["outer_step"], k == len(chains) - 1
        (drawn,) = ax.plot(t, line.where(line > 0), marker=".", label=_run_label(chains, k, name), zorder=3)
        colour = drawn.get_color()
        low, high = (np.maximum(line + sign * error, floor) for sign in (-1, 1))
        label = "one standard error" if last else None
        ax.fill_between(t, low, high, color=colour, alpha=0.2, linewidth=1, label=label)
        if upper is not None:
            bound, label = upper.sel(chain=chain).isel(outer_step=certified), "upper bound" if last else None
            ax.plot(t, bound, "_--", color=colour, markersize=3, linewidth=0.8, label=label)
        at_foot = t[line <= 0]
        if at_foot.size:
            label = None if "not above 0" in ax.get_legend_handles_labels()[1] else "not above 0"
            ax.plot(at_foot, xr.full_like(at_foot, floor, float), "v", color=colour, label=label, zorder=3)
    _guides(ax, values, floor)
    ax.legend()
    return ax


def _guides(ax: Axes, values: xr.DataArray, floor: float) -> None:
    """Draw lines proportional to 1/t and 1/t^2 through the first positive value."""
    positive = values.where(values > 0).max("chain").dropna("outer_step")
    if positive.size < 2:
        return
    begin, first = float(positive[0]), float(positive["outer_step"][0])
    t = np.geomspace(first, float(values["outer_step"][-1]), 100)
    for power, label, style in ((1, "1/t", ":"), (2, "1/t^2", "-.")):
        guide = begin * (first / t) ** power
        shown = guide >= floor
        ax.plot(t[shown], guide[shown], color="0.5", linewidth=1, linestyle=style, label=label, zorder=1)


def _axes(ax: Axes | None, height: float = 4) -> Axes:
    import matplotlib.pyplot as plt

    return ax or plt.subplots(figsize=(5.5, height), layout="constrained")[1]


def _run_label(chains: np.ndarray, k: int, alone: str) -> str:
    return alone if len(chains) == 1 else f"run {chains[k]}"


class _Examples(NamedTuple):
    """The data of a run, and its predictions there (empty if ``predict`` replaces them)."""

    x: np.ndarray
    y: np.ndarray | None
    z: np.ndarray


def _examples(groups: Groups, chain: int, predict: Function | None) -> _Examples:
    of_run = {
        name: values.isel(chain=chain).values if "chain" in values.dims else values.values
        for group in ("constant_data", "observed_data")
        for name, values in groups.get(group, {}).items()
    }
    x = of_run["x"]
    real = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))  # stacking pads shorter streams with NaN
    if not real.any():
        raise InputError("a run that has seen data", "no anchors", "Run at least one outer step.")
    if predict is None and "predictions" not in of_run:
        raise InputError('"predictions" in constant_data, or predict', "neither", "Give predict=fit.predict.")
    z = of_run["predictions"][real] if predict is None else np.empty(0)
    return _Examples(x[real], of_run["y"][real] if "y" in of_run else None, z)


def _observed(y: np.ndarray, output: int | None, advice: str) -> np.ndarray:
    """Select the column of y for the output. Class labels have one column for all outputs."""
    return y if y.ndim == 1 else _one_output(y, output, advice)


def _one_output(values: ArrayLike, output: int | None, advice: str) -> np.ndarray:
    columns = np.asarray(values).reshape(np.shape(values)[0], -1)
    outputs = columns.shape[1]
    chosen = 0 if output is None and outputs == 1 else output
    if isinstance(chosen, int) and 0 <= chosen < outputs:
        return columns[:, chosen]
    raise InputError(f"one of {outputs} output{'s' * (outputs > 1)}", f"output={output!r}", advice)


def _thinned(count: int, most: int = 500) -> np.ndarray:
    """Choose at most ``most`` evenly spaced indices below ``count``."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def _ordinal(number: int) -> str:
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def _label(dataset: xr.Dataset, site: str, index: int | None) -> str:
    """Name the coordinate as ArviZ does: w, or w[x1] if its dim has labels."""
    return site if index is None else f"{site}[{dataset[dataset[site].dims[-1]].values[index]}]"


def _coordinate(dataset: xr.Dataset, site: str, index: int | None) -> np.ndarray:
    if site not in dataset:
        raise InputError(f"a recorded site ({listed(dataset)})", repr(site), "Correct the name, or record it.")
    values = dataset[site].values
    leading = 2 if "outer_step" in dataset.dims else 1
    if index is None and values.ndim == leading:
        return values
    if isinstance(index, int) and values.ndim == leading + 1 and -values.shape[-1] <= index < values.shape[-1]:
        return values[..., index]
    expected = f"one coordinate of site {site!r}, whose shape is {values.shape[leading:]}"
    advice = 'Give a site and an index, ("w", 0), or a scalar site and None, ("b", None).'
    raise InputError(expected, f"index {index!r}", advice)
