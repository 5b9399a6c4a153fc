"""Figure 2(a): how fast the objective falls on a stream.

Expected risk of a tanh teacher in one dimension, one pass in batches of 50, resampled starts, M = 500, lambda1 = 1e-2,
lambda2 = 1e-3, inner steps growing with t and step sizes falling with 1/sqrt(t). The model and its teacher are those of
models/single_index.py; how many inner steps and how long is chosen here. The paper claims that L(q_t) - L* falls like
1/t.

It is measured twice. As the paper does: of the M particles, with the entropy by k = 10 nearest neighbours. And exactly:
of the Gibbs density that they are to sample, with integrals over theta on a grid. The risk of M particles is too large
by the variance of their mean, about Var(h) / (2 M), whatever t is, so the first measure has a floor that the second has
not. Expectations over x ~ N(0, 1) are means over its quantiles, where labels have no noise: noise adds the same to L
and L*.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import matplotlib.pyplot as plt
import numpy as np
import scipy.stats
import xarray as xr

import mfpda
from mfpda.studies import Claim, Estimate, sweep

problem = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "single_index.py")))
BOUNDS = (-4.5, 4.5)  # of w and b: holds the Gibbs densities of every step
PARTICLES = 500


def study(quick):
    nodes = 100 if quick else 500
    x = scipy.stats.norm.ppf((np.arange(nodes) + 0.5) / nodes)
    population = x, np.asarray(problem.teacher(x))
    grid = mfpda.exact.Quadrature.of(problem.model, population, BOUNDS, points=61 if quick else 151)
    best = grid.optimum(tolerance=1e-8)
    steps = np.unique(np.geomspace(2, 16 if quick else 200, 6 if quick else 14).round().astype(int))
    settings = {
        "rule": "dual_averaging",
        "start": "resample",
        "kernel": mfpda.ULA(step_size=mfpda.schedules.InverseSqrt(0.006)),
        "particles": PARTICLES,
        "batch_size": 50,
        "inner_steps": mfpda.schedules.Linear(slope=2, base=40),
        "record": mfpda.Record(every=1000),
        "progress": False,
    }

    def run(seed):
        fit, particles, exact = None, [], []
        for t in steps.tolist():
            arguments = settings | {"outer_steps": t, "resume": fit}
            fit = mfpda.fit(jax.random.key(seed), problem.model, mfpda.Stream(problem.draw), **arguments)
            kl = -mfpda.estimators.entropy(fit.thetas).value - float(np.mean(log_prior(fit.thetas)))
            particles.append(grid.risk(np.asarray(fit.predict(x))) + grid.temperature * kl - best.objective)
            exact.append(grid.objective(grid.law_of(fit.last_potential)) - best.objective)
        curve = lambda values: xr.DataArray(np.asarray(values), {"outer_step": steps}, "outer_step")  # noqa: E731
        return {"particles": curve(particles), "exact": curve(exact)}

    return sweep(run, seed=range(2 if quick else 6)).assign_attrs(optimum=best.objective)


def log_prior(thetas):
    return np.sum(np.asarray(problem.prior.log_prob(thetas)), axis=1)


def slopes(curves):
    """The slope of log(L - L*) against log t from t = 10 on, of every seed; an estimate below L* has no logarithm."""
    late, found = curves.sel(outer_step=slice(10, None)).transpose("seed", ...), []
    for one in late:
        one = one.where(one > 0).dropna("outer_step")
        found.append(np.polyfit(np.log(one["outer_step"]), np.log(one), 1)[0])
    return Estimate.of(found)


def claims(dataset):
    """Within its error -1 or steeper, the error itself below a quarter."""
    exact, particles = slopes(dataset["exact"]), slopes(dataset["particles"])
    first, last = dataset.isel(outer_step=0), dataset.isel(outer_step=-1)
    fell = f"from {Estimate.of(first['exact'])} at t = {int(first['outer_step'])} to {Estimate.of(last['exact'])}"
    below = int((dataset["particles"].sel(outer_step=slice(10, None)) <= 0).sum())
    return [
        Claim(
            "L - L* of the Gibbs density falls like 1/t or faster, by quadrature",
            not exact.above(-1) and exact.error < 0.25,
            f"slope {exact} from t = 10 on; {fell} at t = {int(last['outer_step'])}",
        ),
        Claim(
            "L - L* of the particles falls like 1/t or faster, by the paper's estimator",
            not particles.above(-1) and particles.error < 0.25,
            f"slope {particles}; ends at {Estimate.of(last['particles'])}, the floor of {PARTICLES} particles; "
            f"{below} estimates were below L*",
        ),
    ]


def figure(dataset):
    figure, ax = plt.subplots(figsize=(6, 4.4), layout="constrained")
    mfpda.plots.band(
        dataset["particles"], ax, f"M = {PARTICLES} particles, entropy by 10 nearest neighbours", marker="."
    )
    mfpda.plots.band(dataset["exact"], ax, "their Gibbs density, by quadrature", marker=".")
    exact = dataset["exact"].mean("seed").sel(outer_step=slice(10, None))
    t = exact["outer_step"].values
    ax.plot(t, float(exact[0]) * t[0] / t, color="0.5", linestyle=":", label="proportional to 1/t, from t = 10 on")
    ax.set(xscale="log", yscale="log", xlabel="outer step t", ylabel="$\\mathcal{L}(q_t) - \\mathcal{L}(q_*)$")
    ax.set_title(f"Objective on a stream (mean and standard error of {dataset.sizes['seed']} seeds)")
    ax.legend(loc="upper right")
    return figure
