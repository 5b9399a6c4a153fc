"""Feature learning: which directions the weights turn to (the figure of Appendix F.4).

A single-index teacher f*(x) = tanh(w* . x), n = 500, d = 50, M = 1000, lambda1 = 1e-3: PDA in the mean-field scaling
with lambda2 = 1e-4, against SGD in the kernel scaling, alpha = 1/2. The paper finds that the leading singular vector of
the weight matrix aligns with w* under PDA, and that none of the first five does in the kernel scaling, where the
parameters hardly leave their initial values.

Chosen here: labels without noise; batches of 50; both start at N(0, lambda2 / (2 lambda1)), the prior of PDA; T_t = t/2
inner steps of size 1e-3/sqrt(t) for PDA, and for SGD a learning rate of 1/M, of the order of the largest stable one.
Aligned is a |cosine| above 0.9; not aligned, one that five random orthogonal directions may reach by chance.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from teachers import error_against, examples, recorded, single_index, student

import mfpda
from mfpda.studies import Claim, Estimate

ALGORITHMS = {"pda": "PDA, mean-field scaling", "kernel": "SGD, kernel scaling"}
TOP = 5


def study(quick):
    n, dimensions, particles = (200, 20, 200) if quick else (500, 50, 1000)
    teacher = single_index(jnp.tanh)
    lambda1, lambda2 = 1e-3, 1e-4
    settings = {
        "pda": {
            "model": student(dimensions, lambda1, lambda2),
            "rule": "dual_averaging",
            "kernel": mfpda.ULA(mfpda.schedules.InverseSqrt(1e-3)),
            "inner_steps": mfpda.schedules.Linear(slope=0.5),
            "outer_steps": 30 if quick else 60,
        },
        "kernel": {
            "model": student(dimensions, lambda1, lambda2, scale=particles**0.5),
            "rule": "latest",
            "kernel": mfpda.GradientDescent(lambda2 / particles),
            "inner_steps": 1,
            "outer_steps": 60 if quick else 300,
        },
    }

    def run(algorithm, seed):
        data_key, test_key, fit_key = jax.random.split(jax.random.key(seed), 3)
        fit = mfpda.fit(
            fit_key,
            data=examples(data_key, teacher, n, dimensions),
            particles=particles,
            batch_size=50,
            record=mfpda.Record(every=settings[algorithm]["outer_steps"] // 30, sites=("w",)),
            metrics={"test_error": error_against(test_key, teacher, n, dimensions)},
            progress=False,
            **settings[algorithm],
        )
        cosine = mfpda.features.alignment(fit.idata, "w", jnp.eye(dimensions)[0], TOP)
        return {
            "cosine": cosine.isel(chain=0, drop=True).astype("float32"),
            "risk": recorded(fit, "risk"),
            "test_error": recorded(fit, "test_error"),
        }

    runs = mfpda.studies.sweep(run, algorithm=ALGORITHMS, seed=range(3 if quick else 8))
    return runs.assign_attrs(dimensions=dimensions)


def by_chance(dimensions, level=0.99):
    """This quantile of the largest |cosine| of a vector with five random orthogonal directions."""
    vectors = np.random.default_rng(0).normal(size=(20_000, dimensions))  # turned: a random vector, five fixed axes
    cosines = np.abs(vectors[:, :TOP]) / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float(np.quantile(cosines.max(axis=1), level))


def claims(dataset):
    chance = by_chance(dataset.attrs["dimensions"])
    last = {
        name: dataset.sel(algorithm=name).dropna("outer_step", subset=["cosine"]).isel(outer_step=-1)
        for name in ALGORITHMS
    }
    leading = Estimate.of(last["pda"]["cosine"].sel(vector=1))
    largest = Estimate.of(last["kernel"]["cosine"].max("vector"))
    errors = {name: Estimate.of(each["test_error"]) for name, each in last.items()}
    return [
        Claim(
            "under PDA the leading singular vector aligns with w*",
            leading.above(0.9),
            f"|cosine| {leading}, by chance at most {chance:.2f} in 99 % of draws; test error {errors['pda']}",
        ),
        Claim(
            "in the kernel scaling none of the five leading singular vectors aligns with w*",
            largest.below(chance),
            f"largest |cosine| {largest}, by chance at most {chance:.2f}; test error {errors['kernel']}",
        ),
    ]


def figure(dataset):
    """|cosine| of the first five singular vectors with w*, over training."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    chance = by_chance(dataset.attrs["dimensions"])
    for ax, (algorithm, title) in zip(axes, ALGORITHMS.items(), strict=True):
        for vector in reversed(dataset["vector"].values):
            colour = plt.cm.plasma(0.9 * (TOP - vector) / (TOP - 1))
            cosine = dataset["cosine"].sel(algorithm=algorithm, vector=vector)
            mfpda.plots.band(cosine, ax, f"PC{vector}", color=colour)
        ax.axhline(chance, color="grey", linestyle="--", linewidth=1)
        ax.text(
            0.98,
            chance + 0.015,
            "99 % of five random directions stay below",
            color="grey",
            ha="right",
            transform=ax.get_yaxis_transform(),
        )
        ax.set(title=title, xlabel="outer step $t$" if algorithm == "pda" else "SGD step", ylim=(0, 1.03))
    axes[0].set_ylabel(r"$|\cos(v_k, w_*)|$ of the singular vectors $v_k$")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[1].legend(handles[::-1], labels[::-1], loc="upper right")
    seeds = dataset.sizes["seed"]
    figure.suptitle(f"Which directions the weights turn to (mean and standard error of {seeds} seeds)")
    return figure
