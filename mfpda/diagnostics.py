"""What to make of a run: for now, a table that a person can read."""

import json
from typing import Any

import numpy as np

from mfpda import arviz_data
from mfpda.errors import Status


def summary(inference_data: Any) -> str:
    """A run, or several stacked as chains, in words and numbers.

    R-hat and ESS compare independent runs, so they are given from two runs on.
    """
    groups = arviz_data.groups_of(inference_data)
    posterior, stats = groups["posterior"], groups["outer_stats"]
    attributes = posterior.attrs
    runs, particles = posterior.sizes["chain"], posterior.sizes["draw"]
    settings = json.loads(attributes["settings"])
    status = Status(attributes["status"])
    lines = [
        str(attributes["model"]),
        f"{settings['rule']}, {settings['kernel']}, {settings['start']}",
        f"{runs} run{'s' if runs > 1 else ''} of {particles} particles: {status.value}. {status.advice}",
    ]
    if stats.sizes["outer_step"]:
        lines += _unsettled(stats, settings["rule"])
        lines += ["", *_outer_table(stats)]
    lines += ["", *_site_table(posterior, runs)]
    return "\n".join(lines)


def _unsettled(stats: Any, rule: str) -> list[str]:
    """A warning when dual averaging stopped while it may still overshoot."""
    stiffness, last = float(stats["stiffness"].max()), int(stats["outer_step"][-1])
    if not rule.startswith("DualAveraging") or last >= stiffness:
        return []
    return [
        f"Stopped at outer step {last}, before its stiffness of {stiffness:.0f}: particles may predict well while the "
        "fitted density is far off. Take more outer steps or a higher temperature."
    ]


def _outer_table(stats: Any) -> list[str]:
    """First, middle and last recorded value of every number, averaged over runs."""
    steps = stats["outer_step"].values
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    rows = [["after outer step", *(str(steps[k]) for k in shown)]]
    for name in stats:
        values = stats[name].mean("chain").values
        if np.isfinite(values).any():
            rows.append([str(name).replace("_", " "), *(f"{values[k]:.4g}" for k in shown)])
    return _aligned(rows)


def _site_table(posterior: Any, runs: int) -> list[str]:
    table = arviz_data.summary(posterior, diagnostics=runs > 1)
    rows = [["site", "mean", "sd"] + (["R-hat", "ESS"] if runs > 1 else [])]
    most = 12
    for name, row in list(table.iterrows())[:most]:
        rows.append([str(name), f"{row['mean']:.4g}", f"{row['sd']:.4g}"])
        if runs > 1:
            rows[-1] += [f"{row['r_hat']:.3f}", f"{row['ess_bulk']:.0f}"]
    lines = _aligned(rows)
    if len(table) > most:
        lines.append(f"... and {len(table) - most} more coordinates")
    return lines


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
