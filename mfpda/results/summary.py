"""A run, or several stacked as chains, as a table."""

import numpy as np
import xarray as xr

from mfpda.errors import Status
from mfpda.persistence import settings_of
from mfpda.results import arviz_data
from mfpda.results.arviz_data import RunData

MOST_SITES = 12  # rows of the table of coordinates


def summary(inference_data: RunData) -> str:
    """Describe a run, or several stacked as chains, in words and numbers.

    R-hat and ESS compare independent runs, so they need at least two.
    """
    groups = arviz_data.groups_of(inference_data)
    posterior, stats = groups["posterior"], groups["outer_stats"]
    settings, status = settings_of(posterior.attrs), Status(posterior.attrs["status"])
    runs, particles = posterior.sizes["chain"], posterior.sizes["draw"]
    lines = [
        str(posterior.attrs["model"]),
        f"{settings.rule}, {settings.kernel}, {settings.start}",
        f"{runs} run{'s' if runs > 1 else ''} of {particles} particles: {status.value}. {status.advice}",
    ]
    if stats.sizes["outer_step"]:
        last = int(stats["outer_step"][-1])
        stiffness = float(stats["stiffness"].max())  # as Fit.stiffness
        lines.append(f"The stiffness is {stiffness:.3g}.")
        if settings.overshoots and last < stiffness:
            lines.append(
                f"Stopped at outer step {last}, before its stiffness of {stiffness:.3g}: particles may predict well "
                "while the fitted density is far off. Take more outer steps or a higher temperature."
            )
        asked = int(stats["certified"].notnull().sum()) if "certified" in stats else 0
        refused = asked - int(stats["certified"].sum()) if asked else 0
        if refused:
            lines.append(f"{refused} of {asked} certificates have no number: fit.certify says why, and what to raise.")
        lines += ["", *_outer_table(stats)]
    return "\n".join([*lines, "", *_site_table(posterior, runs)])


def _outer_table(stats: xr.Dataset) -> list[str]:
    """Show the first, middle and last value of every number, averaged over runs. Prefer certified steps.

    The stiffness is left out: of a run it is the largest, and the summary has said it.
    """
    steps = stats["outer_step"].values
    known = np.arange(len(steps))
    if "certified" in stats:
        known = known[stats["certified"].notnull().any("chain").values]
    shown = sorted({int(known[0]), int(known[len(known) // 2]), len(steps) - 1})
    rows = [["after outer step", *(str(steps[k]) for k in shown)]]
    for name in stats.drop_vars("stiffness"):
        values = stats[name].mean("chain").values
        if np.isfinite(values).any():
            rows.append([str(name).replace("_", " "), *(f"{values[k]:.4g}" for k in shown)])
    return _aligned(rows)


def _site_table(posterior: xr.Dataset, runs: int) -> list[str]:
    table = arviz_data.summary(posterior, diagnostics=runs > 1)
    shown = {"mean": ("mean", ".4g"), "sd": ("sd", ".4g")}  # column: its title, its format
    shown |= {"r_hat": ("R-hat", ".3f"), "ess_bulk": ("ESS", ".0f")} if runs > 1 else {}
    rows = [["site", *(title for title, _ in shown.values())]]
    for name, row in table.head(MOST_SITES).iterrows():
        rows.append([str(name), *(format(row[column], spec) for column, (_, spec) in shown.items())])
    more = len(table) - MOST_SITES
    return _aligned(rows) + ([f"... and {more} more coordinates"] if more > 0 else [])


def _aligned(rows: list[list[str]]) -> list[str]:
    """Pad the cells of a table: the first column to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
