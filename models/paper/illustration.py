"""Figure 1: the inner loop reaches the Gibbs density of each outer step, the outer loop moves it to the optimum.

The paper draws the law of a one-dimensional parameter of a tanh network, and gives no numbers. Chosen here: neurons
tanh(w x), M = 2000, 100 inputs from -3 to 3 with labels tanh(2 x), squared loss, prior N(0, 1), temperature 0.02, warm
starts, and 2000 steps of ULA an outer step, its step size by itself. With one parameter every density is exact, by
quadrature; distances are Wasserstein-1 distances.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
import xarray as xr

import mfpda
from mfpda.studies import Claim, Estimate, sweep


def neuron(x):
    return jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)))


model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature=0.02)
inputs = np.linspace(-3, 3, 100)
data = inputs, np.tanh(2 * inputs)
OUTER, INNER = [1, 2, 4, 20], [0, 10, 50, 200, 2000]


def study(quick):
    grid = mfpda.exact.Quadrature.of(model, data, bounds=(-10, 10), points=401)
    w, best = grid.thetas[:, 0], grid.optimum()
    arguments = {"rule": "dual_averaging", "particles": 500 if quick else 2000}
    arguments |= {"record": mfpda.Record(every=1000), "progress": False}
    steps = [1, 10] if quick else OUTER

    def run(seed):
        key, random, fit = jax.random.key(seed), np.random.default_rng(seed), None
        particles, distances, noise, laws = [], [], [], []
        for t in steps:
            if t > 1 and (fit is None or fit.outer_steps < t - 1):
                fit = mfpda.fit(key, model, data, outer_steps=t - 1, inner_steps=INNER[-1], resume=fit, **arguments)
            ways = [
                mfpda.fit(key, model, data, outer_steps=t, inner_steps=last_of(t, k), resume=fit, **arguments)
                for k in INNER[1:]
            ]
            before, fit = fit.particles["w"] if fit else ways[0].progress.initial["w"], ways[-1]
            law = grid.law_of(fit.last_potential).probability
            particles.append([np.asarray(before), *(np.asarray(way.particles["w"]) for way in ways)])
            distances.append([scipy.stats.wasserstein_distance(some, w, None, law) for some in particles[-1]])
            drawn = random.choice(w, arguments["particles"], p=law)
            noise.append(scipy.stats.wasserstein_distance(drawn, w, None, law))
            laws.append(law)
        to_optimum = [scipy.stats.wasserstein_distance(w, w, law, best.law.probability) for law in laws]
        inner = {"outer_step": steps, "inner_step": INNER}
        return {
            "particles": xr.DataArray(np.asarray(particles, np.float32), inner, (*inner, "draw")),
            "density": xr.DataArray(np.asarray(laws) / (w[1] - w[0]), {"outer_step": steps, "w": w}),
            "inner_distance": xr.DataArray(np.asarray(distances), inner),
            "inner_noise": xr.DataArray(noise, {"outer_step": steps}),
            "outer_distance": xr.DataArray(to_optimum, {"outer_step": steps}),
        }

    dataset = sweep(run, seed=range(2 if quick else 5))
    dataset["optimum"] = "w", best.law.probability / (w[1] - w[0])
    pictured = dataset[["particles", "density"]].isel(seed=0).astype("float32")  # one run is enough for a picture
    return dataset.assign(pictured.drop_vars("seed"))


def last_of(t, inner_steps):
    """A schedule of so many inner steps at outer step t, and all of them before it."""
    return lambda s: jnp.where(s == t, inner_steps, INNER[-1])


def claims(dataset):
    begin, end = (dataset["inner_distance"].isel(inner_step=k).mean("seed") for k in (0, -1))
    noise, density = dataset["inner_noise"].mean("seed"), dataset["density"] / dataset["density"].sum("w")
    spread = np.sqrt((density * dataset["w"] ** 2).sum("w") - (density * dataset["w"]).sum("w") ** 2)
    far, near = (Estimate.of(dataset["outer_distance"].isel(outer_step=k)) for k in (0, -1))
    first = dataset["inner_distance"].isel(outer_step=0)
    return [
        Claim(
            "the inner loop reaches the Gibbs density of its outer step, up to the bias of ULA",
            bool((end < 0.1 * spread).all() and begin[0] > 10 * end[0]),
            f"at t = 1 from a distance of {Estimate.of(first.isel(inner_step=0))} to "
            f"{Estimate.of(first.isel(inner_step=-1))}; after {INNER[-1]} steps, at every t, at most "
            f"{float((end / spread).max()):.2g} standard deviations of q_t, "
            f"{float((end / noise).max()):.2g} times the distance of independent draws",
        ),
        Claim(
            "the outer loop moves it to the optimum",
            near.mean < 0.1 * far.mean,
            f"distance of q_t from q* {far} at t = {OUTER[0]}, {near} at t = {int(dataset['outer_step'][-1])}",
        ),
    ]


def figure(dataset):
    steps, inner = dataset["outer_step"].values, dataset["inner_step"].values
    figure, axes = plt.subplots(1, len(steps) + 1, figsize=(3.2 * (len(steps) + 1), 4), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.9, 0.1, len(inner)))
    for ax, t in zip(axes, steps, strict=False):
        for k, colour in zip(inner, colours, strict=True):
            some = dataset["particles"].sel(outer_step=t, inner_step=k)
            label = f"after {k} inner steps" if k else "before"
            ax.hist(some, bins=60, range=(-4, 5), density=True, histtype="step", color=colour, label=label)
        ax.plot(dataset["w"], dataset["density"].sel(outer_step=t), color="tab:red", label="exact $q_t$")
        ax.set(xlim=(-3.5, 4.5), xlabel="w", title=f"Inner loop of outer step t = {t}")
    last = axes[-1]
    shades = plt.get_cmap("Reds")(np.linspace(0.35, 0.9, len(steps)))
    for t, colour in zip(steps, shades, strict=True):
        last.plot(dataset["w"], dataset["density"].sel(outer_step=t), color=colour, label=f"$q_t$, t = {t}")
    last.plot(dataset["w"], dataset["optimum"], color="black", linestyle="--", label="optimum $q_*$")
    last.set(xlim=(-3.5, 4.5), xlabel="w", title="Outer loop")
    axes[0].set(ylabel="density")
    last.legend(fontsize="small", loc="upper left")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(inner) + 1)
    return figure
