"""Figures of a run, drawn from its ArviZ data: matplotlib axes in, matplotlib axes out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mfpda.errors import InputError, listed
from mfpda.results import arviz_data


def trajectories(
    inference_data: Any, coordinates: Sequence[tuple[str, int | None]], ax: Any = None, lines: int = 40, chain: int = 0
) -> Any:
    """Particles in the plane of two coordinates, dark for early outer steps and bright for late ones.

    ``coordinates`` are two pairs of a site and an index into it (None for a scalar site): ``[("w", 0), ("w", 1)]``.
    The first ``lines`` particles also leave a thin line of their way.
    """
    import matplotlib.pyplot as plt

    if len(coordinates) != 2 or any(isinstance(which, str) or len(which) != 2 for which in coordinates):
        raise InputError("two pairs of a site and an index", repr(coordinates), 'Give [("w", 0), ("b", None)], say.')
    history = arviz_data.groups_of(inference_data)["particle_history"].isel(chain=chain)
    start = arviz_data.groups_of(inference_data)["prior"].isel(chain=chain)
    across, up = (
        np.concatenate([_coordinate(start, *which)[None, : history.sizes["draw"]], _coordinate(history, *which)])
        for which in coordinates
    )
    steps = np.concatenate([[0], history["outer_step"].values])
    ax = ax or plt.subplots(figsize=(5.5, 4.6), layout="constrained")[1]
    ax.plot(across[:, :lines], up[:, :lines], color="0.75", linewidth=0.4, zorder=1)
    shown = np.unique(np.linspace(0, len(steps) - 1, 30).round().astype(int))
    colours = np.repeat(steps[shown], across.shape[1])
    dots = ax.scatter(across[shown].ravel(), up[shown].ravel(), c=colours, s=5, cmap="plasma", linewidth=0, zorder=2)
    ax.figure.colorbar(dots, ax=ax, label="outer step")
    ax.set(xlabel=_label(history, *coordinates[0]), ylabel=_label(history, *coordinates[1]))
    ax.set_title("Particles: dark early, bright late")
    if coordinates[0][0] == coordinates[1][0]:  # two coordinates of one site have one scale
        ax.set_aspect("equal", adjustable="datalim")
    return ax


def stat(inference_data: Any, name: str = "risk", ax: Any = None) -> Any:
    """One number of ``outer_stats`` against the outer step, a line per run, on log-log axes where it is positive."""
    import matplotlib.pyplot as plt

    stats = arviz_data.groups_of(inference_data)["outer_stats"]
    if name not in stats:
        raise InputError(f"one of the recorded numbers ({listed(map(str, stats))})", repr(name), "Correct the name.")
    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    for chain in stats["chain"].values:
        label = f"run {chain}" if stats.sizes["chain"] > 1 else None
        ax.plot(stats["outer_step"], stats[name].sel(chain=chain), marker=".", label=label)
    if bool((stats[name] > 0).all()):
        ax.set(xscale="log", yscale="log")
    ax.set(xlabel="outer step", ylabel=name.replace("_", " "))
    if stats.sizes["chain"] > 1:
        ax.legend()
    return ax


def band(values: Any, ax: Any = None, label: str | None = None, over: str = "seed", **style: Any) -> Any:
    """The mean over seeds against the one other dimension of a DataArray, with a band of one standard error."""
    import matplotlib.pyplot as plt

    others = [dim for dim in values.dims if dim != over]
    if over not in values.dims or len(others) != 1:
        found, advice = f"dimensions {listed(map(str, values.dims))}", "Select values of the others: values.sel(...)."
        raise InputError(f"a DataArray over {over!r} and one other dimension", found, advice)
    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    (dim,) = others
    values = values.dropna(dim, how="all")
    mean, error = values.mean(over), values.std(over, ddof=1) / np.sqrt(values.count(over))
    (line,) = ax.plot(values[dim], mean, label=label, **style)
    ax.fill_between(values[dim], mean - error, mean + error, color=line.get_color(), alpha=0.25, linewidth=0)
    return ax


def gap(inference_data: Any, ax: Any = None) -> Any:
    """The certified gap against the outer step on log-log axes, with guides proportional to 1/t and 1/t^2.

    A line per run with a band of one standard error, and its upper bound, thin and dashed. A gap of 0 is a
    triangle at the foot.
    """
    stats = _certified(inference_data, "gap")
    ylabel = "duality gap, L(q_g) - D(g)"
    return _decay(stats["gap"], stats["gap_stderr"], stats["gap_upper"], "gap", ylabel, ax)


def objective(inference_data: Any, ax: Any = None) -> Any:
    """The certified objective against the outer step, as its excess over the best lower bound that the run found.

    On log-log axes, with bands and guides as in ``gap``: L(q_g) - max_t D(g_t), which but for the Monte Carlo error of
    D is at least L(q_g) - L*. (In a stream L* moves with every batch, and a bound of one step is none of another.)
    """
    stats = _certified(inference_data, "objective")
    best = stats["dual_value"].where(stats["objective"].notnull()).max("outer_step")
    excess = stats["objective"] - best
    return _decay(excess, stats["objective_stderr"], None, "objective", "L(q_g) - max D(g)", ax)


def function(
    inference_data: Any,
    ax: Any = None,
    predict: Callable[[Any], Any] | None = None,
    truth: Callable[[Any], Any] | None = None,
    output: int | None = None,
) -> Any:
    """The fitted function of a one-dimensional input, with the data and, where it is known, the truth.

    A line per run through the predictions at its anchors, or, where ``predict`` is given, that function on a fine grid.
    ``output`` chooses one of several. Of many data at most 500 are drawn.
    """
    import matplotlib.pyplot as plt

    groups = arviz_data.groups_of(inference_data)
    chains = groups["constant_data"]["chain"].values
    runs = [_examples(groups, k) for k in range(len(chains))]
    shape = runs[0].x.shape
    if np.prod(shape[1:]) != 1:
        advice = "Plot a slice of it by hand, with fit.predict; for two dimensions there is plots.surface."
        raise InputError("inputs of one dimension", f"shape {shape}", advice)
    every_x = np.concatenate([run.x.ravel() for run in runs])
    grid = np.linspace(every_x.min(), every_x.max(), 200)
    rows, advice = grid.reshape(200, *shape[1:]), "Give output=0, say."
    if predict is not None:
        fitted = [(grid, _one_output(predict(rows), output, advice), "fit")]
    else:
        orders = [np.argsort(run.x.ravel(), kind="stable") for run in runs]
        fitted = [
            (run.x.ravel()[order], _one_output(_predicted(run), output, advice)[order], _run_label(chains, k, "fit"))
            for k, (run, order) in enumerate(zip(runs, orders, strict=True))
        ]
    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    data = [(run.x.ravel(), _observed(run.y, output, advice)) for run in runs if run.y is not None]
    if data:
        points = np.unique(np.concatenate(data, axis=1).T, axis=0)  # by x; what runs share is drawn once
        ax.scatter(*points[_some(len(points))].T, s=6, color="0.6", linewidth=0, label="data")
    if truth is not None:
        ax.plot(grid, _observed(np.asarray(truth(rows)), output, advice), color="black", linestyle="--", label="truth")
    for across, up, label in fitted:
        ax.plot(across, up, color="tab:red" if len(fitted) == 1 else None, label=label)
    ax.set(xlabel="x", ylabel="y")
    ax.legend()
    return ax


def surface(inference_data: Any, ax: Any = None, predict: Callable[[Any], Any] | None = None, chain: int = 0) -> Any:
    """The fitted function of a two-dimensional input in colours, its 0 in black, and the data coloured by y.

    Between the anchors of a run it is drawn from the predictions there, or, where ``predict`` is given, from that
    function on a grid that reaches a little further. Of many data at most 500 are drawn.
    """
    import matplotlib.pyplot as plt

    run = _examples(arviz_data.groups_of(inference_data), chain)
    advice = "Give predict=lambda x: fit.predict(x)[:, 0], say."
    if run.x.shape[1:] != (2,):
        raise InputError(
            "inputs of two dimensions", f"shape {run.x.shape}", "For one dimension there is plots.function."
        )
    margin = 0.075 * np.ptp(run.x, axis=0)
    low, high = run.x.min(axis=0) - margin, run.x.max(axis=0) + margin
    if predict is None:
        z = _one_output(_predicted(run), None, advice)
        place = [_triangulation(run.x)]
    else:
        place = list(np.meshgrid(*np.linspace(low, high, 120).T))
        rows = np.stack(place, axis=-1).reshape(-1, 2)
        z = _one_output(predict(rows), None, advice).reshape(120, 120)
    ax = ax or plt.subplots(figsize=(5.5, 4.6), layout="constrained")[1]
    filled, lines = (ax.tricontourf, ax.tricontour) if predict is None else (ax.contourf, ax.contour)
    colours = filled(*place, z, levels=20, cmap="RdBu", norm=plt.matplotlib.colors.CenteredNorm())
    if z.min() < 0 < z.max():
        lines(*place, z, levels=[0], colors="black")
    if run.y is not None:
        shown, norm = _some(len(run.x)), plt.matplotlib.colors.CenteredNorm()
        y = _observed(run.y, None, advice)[shown]
        ax.scatter(*run.x[shown].T, c=y, cmap="RdBu", norm=norm, edgecolor="black", linewidth=0.3, s=14)
    ax.figure.colorbar(colours, ax=ax, label="E[h(theta, x)]")
    ax.set(xlabel="x1", ylabel="x2", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    return ax


def alignment(alignment_array: Any, ax: Any = None) -> Any:
    """What ``features.alignment`` returns, averaged over runs: a line per singular vector, bright for the first."""
    import matplotlib.pyplot as plt

    if set(getattr(alignment_array, "dims", ())) != {"chain", "outer_step", "vector"}:
        raise InputError(
            "an array with dims chain, outer_step and vector",
            type(alignment_array).__name__,
            'Pass what features.alignment(fit.idata, "w", direction) returns.',
        )
    averaged = alignment_array.mean("chain")
    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    colours = plt.get_cmap("plasma")(np.linspace(0.85, 0, averaged.sizes["vector"]))
    for vector, colour in zip(averaged["vector"].values, colours, strict=True):
        label = f"{_ordinal(int(vector))} singular vector"
        ax.plot(averaged["outer_step"], averaged.sel(vector=vector), color=colour, label=label)
    ax.set(xlabel="outer step", ylabel="|cosine| with the direction", ylim=(0, 1))
    ax.legend()
    return ax


def _certified(inference_data: Any, name: str) -> Any:
    """The runs and steps of ``outer_stats`` that were certified, refused where there are none."""
    stats = arviz_data.groups_of(inference_data)["outer_stats"]
    known = stats[name].notnull() if name in stats else xr.DataArray(False)
    if not bool(known.any()):
        asked = int(stats["certified"].notnull().sum()) if "certified" in stats else 0
        advice = "fit.certify says why." if asked else "Run fit(..., certify_every=10), say."
        raise InputError("certified outer steps", f"{asked} without a number" if asked else "none", advice)
    return stats.isel(chain=known.any("outer_step").values, outer_step=known.any("chain").values)


def _decay(values: Any, errors: Any, upper: Any, name: str, ylabel: str, ax: Any) -> Any:
    """Numbers that should fall towards 0 with the outer step: lines, bands of one standard error, guides."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogFormatter

    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    ax.set(xscale="log", yscale="log", xlabel="outer step", ylabel=ylabel)
    for format_ticks in (ax.xaxis.set_major_formatter, ax.xaxis.set_minor_formatter):
        format_ticks(LogFormatter())  # 20, not 2 x 10^1
    floor = _floor(values if upper is None else values.where(values > 0, upper))
    chains = values["chain"].values
    for k, chain in enumerate(chains):
        certified = np.isfinite(values.sel(chain=chain)).values
        line, error = (part.sel(chain=chain).isel(outer_step=certified) for part in (values, errors))
        t, last = line["outer_step"], k == len(chains) - 1
        (drawn,) = ax.plot(t, line.where(line > 0), marker=".", label=_run_label(chains, k, name), zorder=3)
        look = {"color": drawn.get_color()}
        band = (np.maximum(line + sign * error, floor) for sign in (-1, 1))
        ax.fill_between(t, *band, **look, alpha=0.2, linewidth=1, label="one standard error" if last else None)
        if upper is not None:
            bound = upper.sel(chain=chain).isel(outer_step=certified)
            ax.plot(
                t,
                bound,
                **look,
                linestyle="--",
                marker="_",
                markersize=3,
                linewidth=0.8,
                label="upper bound" if last else None,
            )
        if bool((line <= 0).any()):
            named = "not above 0" in ax.get_legend_handles_labels()[1]
            at_foot = xr.full_like(t[line <= 0], floor, float)
            ax.plot(t[line <= 0], at_foot, "v", **look, label=None if named else "not above 0", zorder=3)
    _guides(ax, values, floor)
    ax.legend()
    return ax


def _floor(values: Any) -> float:
    """Where a log axis ends for bands, guides and what is not positive: at a tenth of the least positive number."""
    positive = values.where(values > 0)
    return float(positive.min()) / 10 if bool(positive.notnull().any()) else 1e-12


def _guides(ax: Any, values: Any, floor: float) -> None:
    """Lines proportional to 1/t and 1/t^2 through the first positive number."""
    positive = values.where(values > 0).max("chain").dropna("outer_step")
    if positive.size < 2:
        return
    begin, first = float(positive[0]), float(positive["outer_step"][0])
    t = np.geomspace(first, float(values["outer_step"][-1]), 100)
    for power, label, style in ((1, "1/t", ":"), (2, "1/t^2", "-.")):
        guide = begin * (first / t) ** power
        shown = guide >= floor
        ax.plot(t[shown], guide[shown], color="0.5", linewidth=1, linestyle=style, label=label, zorder=1)


def _run_label(chains: Any, k: int, alone: str) -> str:
    return alone if len(chains) == 1 else f"run {chains[k]}"


class _Examples(NamedTuple):
    """What a run was fitted to, and its predictions there where they are recorded."""

    x: np.ndarray
    y: np.ndarray | None
    z: np.ndarray | None


def _examples(groups: arviz_data.Groups, chain: int) -> _Examples:
    of_run = {
        name: values.isel(chain=chain).values if "chain" in values.dims else values.values
        for group in ("constant_data", "observed_data")
        for name, values in groups.get(group, {}).items()
    }
    x = of_run["x"]
    real = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))  # stacked streams of unequal length are filled with NaN
    if not real.any():
        raise InputError("a run that has seen data", "no anchors", "Run at least one outer step.")
    y, z = (of_run[name][real] if name in of_run else None for name in ("y", "predictions"))
    return _Examples(x[real], y, z)


def _predicted(run: _Examples) -> np.ndarray:
    if run.z is None:
        raise InputError('"predictions" in constant_data, or predict', "neither", "Give predict=fit.predict.")
    return run.z


def _observed(y: np.ndarray, output: int | None, advice: str) -> np.ndarray:
    """The column of y that belongs to the output; labels of classes have one column for all."""
    return y if y.ndim == 1 else _one_output(y, output, advice)


def _one_output(values: Any, output: int | None, advice: str) -> np.ndarray:
    columns = np.asarray(values).reshape(len(values), -1)
    outputs = columns.shape[1]
    if output is None and outputs == 1:
        return columns[:, 0]
    if isinstance(output, int) and 0 <= output < outputs:
        return columns[:, output]
    raise InputError(f"one of {outputs} output{'s' * (outputs > 1)}", f"output={output!r}", advice)


def _some(count: int, most: int = 500) -> np.ndarray:
    """Positions of at most 500 of so many, evenly among them."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def _triangulation(x: np.ndarray) -> Any:
    from matplotlib.tri import Triangulation

    try:
        return Triangulation(*x.T)
    except (RuntimeError, ValueError) as error:  # fewer than three points, or all on a line
        advice = "Give predict=fit.predict, to draw it on a grid."
        raise InputError("anchors that span a plane", f"{len(x)} that do not", advice) from error


def _ordinal(number: int) -> str:
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def _label(dataset: Any, site: str, index: int | None) -> str:
    """The coordinate's name as ArviZ writes it: w, or w[x1] where its dim has labels."""
    return site if index is None else f"{site}[{dataset[dataset[site].dims[-1]].values[index]}]"


def _coordinate(dataset: Any, site: str, index: int | None) -> np.ndarray:
    if site not in dataset:
        raise InputError(
            f"a recorded site ({listed(map(str, dataset))})", repr(site), "Correct the name, or record it."
        )
    values = dataset[site].values
    leading = 2 if "outer_step" in dataset.dims else 1
    if index is None and values.ndim == leading:
        return values
    if isinstance(index, int) and values.ndim == leading + 1 and -values.shape[-1] <= index < values.shape[-1]:
        return values[..., index]
    raise InputError(
        f"one coordinate of site {site!r}, whose shape is {values.shape[leading:]}",
        f"index {index!r}",
        'Give pairs of a site and an index, ("w", 0), or of a scalar site and None, ("b", None).',
    )
