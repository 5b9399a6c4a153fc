"""Figure 2(b): neurons that separate two circles arrange themselves on a circle.

scikit-learn's make_circles, logistic loss, M = 500, batches of 50, inner steps growing with t and step sizes falling
with 1/sqrt(t). The neuron and the data are those of models/circles.py, which says what was chosen there. The
temperature and the numbers of the schedules are chosen here. All particles begin near 0.

Neurons leave the origin for a ring, where w . x + b is a bump over the inner circle once all directions are averaged.
Those that stay at the centre have w near 0 and b < 0, and pull the sum below 0 outside. The particles separate the data
long before their Gibbs density has converged: a figure of features, not of the optimum. models/circles.py has the
optimum at a higher temperature.

The paper shows one run, and finds that the parameters of the converged solution lie on a circle. Here every seed has
data and particles of its own, and the picture is put in numbers: the share of neurons on the ring, the share between it
and the centre, how thick the ring is, and whether it goes all the way around.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import xarray as xr

import mfpda
from mfpda.studies import Claim, Estimate, sweep

problem = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "circles.py")))
GAP = 1.2, 2.0  # in |w|, between the neurons that stay at the centre and the ring
SECTORS = 8

data = problem.data
model = mfpda.Model(
    problem.neuron,
    loss=mfpda.losses.Logistic(),
    temperature=0.01,
    init={"w": dist.Normal(0, 0.1).expand([2]).to_event(1), "b": dist.Normal(0, 0.1)},
    dims={"w": ["feature"]},
    coords={"feature": ["x1", "x2"]},
)
settings = {
    "rule": "dual_averaging",
    "kernel": mfpda.ULA(step_size=mfpda.schedules.InverseSqrt(0.001)),
    "particles": 500,
    "outer_steps": 100,
    "inner_steps": mfpda.schedules.Linear(slope=1, base=5),
    "batch_size": 50,
    "metrics": {"accuracy": problem.accuracy},
}


def study(quick):
    arguments = settings | {"progress": False, "record": mfpda.Record(every=10, sites=("w",))}
    if quick:
        arguments |= {"particles": 200, "outer_steps": 40, "inner_steps": 30}

    def run(seed):
        data_key, fit_key = jax.random.split(jax.random.key(seed))
        fit = mfpda.fit(fit_key, model, data(data_key), **arguments)
        w = fit.groups["particle_history"]["w"].isel(chain=0).astype("float32")
        initial = fit.progress.initial["w"].astype("float32")
        first = xr.DataArray(initial[None], dims=w.dims).assign_coords(outer_step=[0])
        accuracy = fit.groups["outer_stats"]["accuracy"].isel(chain=0)
        return {"w": xr.concat([first, w], "outer_step", coords="minimal", compat="override"), "accuracy": accuracy}

    return sweep(run, seed=range(2 if quick else 5))


def radius(w):
    return np.sqrt(w[..., 0] ** 2 + w[..., 1] ** 2)


def share_on_ring(w):
    return (radius(w) > GAP[1]).mean("draw")


def claims(dataset):
    began, w = dataset["w"].isel(outer_step=0), dataset["w"].isel(outer_step=-1)
    furthest, shares = float(radius(began).max()), share_on_ring(w)
    between = ((radius(w) > GAP[0]) & (radius(w) <= GAP[1])).mean("draw")
    ring = w.where(radius(w) > GAP[1])
    widths = radius(ring).std("draw") / radius(ring).mean("draw")
    sector = np.floor((np.arctan2(ring[..., 1], ring[..., 0]) / (2 * np.pi) + 0.5) * SECTORS)
    emptiest = xr.concat([(sector == k).sum("draw") for k in range(SECTORS)], "sector").min("sector")
    emptiest = emptiest / (sector >= 0).sum("draw")
    accuracy = dataset["accuracy"].isel(outer_step=-1)
    ringed = (shares > 0.4) & (between < 0.05) & (widths < 0.25) & (emptiest > 0.25 / SECTORS)
    return [
        Claim(
            "neurons leave the origin for a circle",
            bool(furthest < GAP[0] and ringed.all()),
            f"none began beyond |w| = {furthest:.2g}; share on the ring {Estimate.of(shares)}, between it and the "
            f"centre {Estimate.of(between)}; its radius spread by {Estimate.of(widths)} of itself; the emptiest of "
            f"{SECTORS} sectors has {Estimate.of(emptiest)} of its neurons",
        ),
        Claim("together they separate the circles", bool((accuracy > 0.99).all()), f"accuracy {Estimate.of(accuracy)}"),
    ]


def figure(dataset):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.6), layout="constrained", gridspec_kw={"wspace": 0.08})
    w = dataset["w"].isel(seed=0).transpose("outer_step", "draw", ...).values
    steps = dataset["outer_step"].values
    left.plot(*np.moveaxis(w[:, :40], -1, 0), color="0.8", linewidth=0.4, zorder=1)
    colours = np.repeat(steps, w.shape[1])
    dots = left.scatter(*w.reshape(-1, 2).T, c=colours, s=6, cmap="plasma", linewidth=0, zorder=2)
    figure.colorbar(dots, ax=left, label="outer step t")
    left.set(xlabel="$w_1$", ylabel="$w_2$", aspect="equal", title="Neurons of one run: dark early, bright late")
    mfpda.plots.band(share_on_ring(dataset["w"]), right, f"share of neurons on the ring, |w| > {GAP[1]:g}", marker=".")
    mfpda.plots.band(dataset["accuracy"], right, "accuracy on the two circles", marker=".")
    right.set(xlabel="outer step t", ylabel="share", ylim=(0, 1.03))
    right.set_title(f"Mean and standard error of {dataset.sizes['seed']} seeds")
    right.legend(loc="lower right")
    return figure
