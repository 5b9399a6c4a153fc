"""Figures of a run, drawn from its ArviZ data: matplotlib axes in, matplotlib axes out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mfpda import arviz_data
from mfpda.errors import InputError, listed


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


def function(
    predict: Callable[[Any], Any], x: Any, y: Any, ax: Any = None, truth: Callable[[Any], Any] | None = None
) -> Any:
    """The fitted function of a one-dimensional input, with the data and, where it is known, the truth."""
    import matplotlib.pyplot as plt

    x, y = np.asarray(x), np.asarray(y)
    if x[0].size != 1:
        raise InputError("inputs of one dimension", f"shape {x.shape}", "Plot a slice: give your own x and predict.")
    grid = np.linspace(x.min(), x.max(), 200).reshape(200, *x.shape[1:])
    ax = ax or plt.subplots(figsize=(5.5, 4), layout="constrained")[1]
    ax.scatter(x.ravel(), y, s=6, color="0.6", linewidth=0, label="data")
    if truth is not None:
        ax.plot(grid.ravel(), np.asarray(truth(grid)), color="black", linestyle="--", label="truth")
    ax.plot(grid.ravel(), np.asarray(predict(grid)), color="tab:red", label="fit")
    ax.set(xlabel="x", ylabel="y")
    ax.legend()
    return ax


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
