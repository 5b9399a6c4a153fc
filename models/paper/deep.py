"""Deep narrow and small convolutional neurons.

A remark in Section 2.1 of Nitanda, Wu and Suzuki (2021), repeated at the end of Appendix E.2, says that h(theta, x) may
be a deep narrow or a narrow convolutional network instead of one hidden unit, outside their theory, and that this may
do better in practice. The paper gives no experiment.

Chosen here: scikit-learn's digits, 300 to train and 1,497 to test, softmax loss, temperature 1e-3. Three neurons, each
10 tanh of its read-out: ``two_layer`` (one hidden tanh, as in Appendix E.2), ``deep`` (three hidden layers of three
tanh), ``convolutional`` (one 3 x 3 filter, tanh, means over 2 x 2, linear). Priors are normal, of scales that give
the hidden layers and read-outs of all three about the same size under the prior.

All have M = 200; so that a gain is not one of size alone, ``two_layer_wide`` has the two-layer neuron with M = 650, as
many parameters in all as the deep one. All take 20 inner steps of 2e-4 from warm starts; in trials on the split of seed
0, steps of 1e-4, 5e-4 and "auto" ones differed by less than 0.015 in test accuracy.
"""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from digits import accuracy, split, test_share

import mfpda
from mfpda.studies import Claim, Estimate

PATCHES = np.lib.stride_tricks.sliding_window_view(np.arange(64).reshape(8, 8), (3, 3)).reshape(36, 9)  # pixels of each
HIDDEN, READ_OUT = 1.5, 0.25  # standard deviations under the prior, before tanh


def weights(name, shape, scale):
    """A site of independent normal weights."""
    return numpyro.sample(name, dist.Normal(0, scale).expand(shape).to_event(len(shape)))


def two_layer(x):
    b = weights("b", [64], HIDDEN / 8)
    a = weights("a", [10], READ_OUT)
    return 10 * jnp.tanh(a * jnp.tanh(x @ b))


def deep(x):
    first = weights("first", [64, 3], HIDDEN / 8)
    second = weights("second", [3, 3], HIDDEN / 3**0.5)
    third = weights("third", [3, 3], HIDDEN / 3**0.5)
    a = weights("a", [3, 10], READ_OUT / 3**0.5)
    return 10 * jnp.tanh(jnp.tanh(jnp.tanh(jnp.tanh(x @ first) @ second) @ third) @ a)


def convolutional(x):
    window = weights("window", [9], HIDDEN / 3)
    bias = weights("bias", [1], 0.5)
    a = weights("a", [9, 10], READ_OUT / 3)
    hidden = jnp.tanh(x[PATCHES] @ window + bias)
    pooled = jnp.mean(hidden.reshape(3, 2, 3, 2), axis=(1, 3)).ravel()
    return 10 * jnp.tanh(pooled @ a)


models = {each.__name__: mfpda.Model(each, mfpda.losses.Softmax(), 1e-3) for each in (two_layer, deep, convolutional)}
models["two_layer_wide"] = models["two_layer"]


@jax.jit
def gradients_finite(potential, thetas):
    """The share of particles at which the gradient of V is finite."""
    return jnp.mean(jnp.all(jnp.isfinite(jax.vmap(jax.grad(potential))(thetas)), axis=1))


def study(quick):
    n, particles, outer_steps, every, seeds = (100, 30, 4, 1, 2) if quick else (300, 200, 30, 1, 5)
    neurons = [name for name in models if not (quick and name == "two_layer_wide")]

    def run(neuron, seed):
        x, y, x_test, y_test = split(seed, n)
        fit = mfpda.fit(
            jax.random.key(seed),
            models[neuron],
            (x, y),
            rule="dual_averaging",
            kernel=mfpda.ULA(step_size=2e-4),
            particles=round(3.25 * particles) if neuron == "two_layer_wide" else particles,
            outer_steps=outer_steps,
            inner_steps=20,
            record=mfpda.Record(every=every, sites=(), particles=1),
            metrics={"test_accuracy": accuracy(x_test, y_test)},
            progress=False,
            throw=False,
        )
        stats = fit.groups["outer_stats"].isel(chain=0, drop=True)
        names = ["risk", "stiffness", "test_accuracy", "seconds", "diverging"]
        return {
            **{name: stats[name].astype("float32") for name in names},
            "finished": fit.status is mfpda.Status.FINISHED,
            "gradients_finite": float(gradients_finite(fit.last_potential, fit.thetas)),
            "parameters": fit.thetas.size,
        }

    return mfpda.studies.sweep(run, neuron=neurons, seed=range(seeds)).assign_attrs(n=n)


def claims(dataset):
    estimate = partial(Estimate.of, test_share=test_share(dataset.attrs["n"]))
    last = dataset.isel(outer_step=-1)
    finished, finite = int(dataset["finished"].sum()), float(dataset["gradients_finite"].min())
    diverging = int(dataset["diverging"].sum())
    found = [
        Claim(
            "deep narrow and convolutional neurons fit in the same Model and run",
            finished == dataset["finished"].size and finite == 1 and diverging == 0,
            f"{finished} of {dataset['finished'].size} runs finished, {diverging} particles diverged, gradients finite "
            f"at {finite:.0%} of them; risk at the end "
            + ", ".join(f"{name} {estimate(last['risk'].sel(neuron=name))}" for name in dataset["neuron"].values),
        )
    ]
    accuracies = last["test_accuracy"]
    shallow = [name for name in dataset["neuron"].values if name.startswith("two_layer")]
    for name in ("deep", "convolutional"):
        gains = {other: estimate(accuracies.sel(neuron=name) - accuracies.sel(neuron=other)) for other in shallow}
        worse = any(gain.below(0) for gain in gains.values())
        found.append(
            Claim(
                f"a {name} neuron does better on the test set than the two-layer one",
                all(gain.above(0) for gain in gains.values()) or (False if worse else None),
                f"accuracy {estimate(accuracies.sel(neuron=name))}; "
                + ", ".join(f"gain over {other} {gain}" for other, gain in gains.items()),
            )
        )
    return found


def figure(dataset):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=[3, 2])
    last = dataset["test_accuracy"].isel(outer_step=-1)
    labels = {name: name.replace("_", " ") for name in dataset["neuron"].values}
    for k, name in enumerate(labels):
        parameters = int(dataset["parameters"].sel(neuron=name)[0])
        label = f"{labels[name]}, {parameters:,} parameters in all"
        mfpda.plots.band(dataset["test_accuracy"].sel(neuron=name), ax=left, label=label, color=f"C{k}")
        gain = Estimate.of(last.sel(neuron=name) - last.sel(neuron="two_layer"), test_share(dataset.attrs["n"]))
        right.errorbar(k, gain.mean, yerr=gain.error, fmt="o", capsize=4, color=f"C{k}")
        right.plot(
            np.full(last.sizes["seed"], k + 0.15), last.sel(neuron=name) - last.sel(neuron="two_layer"), "k.", ms=4
        )
    left.set(xlabel="outer step t", ylabel="test accuracy", title="Four ensembles under the same settings")
    left.legend(loc="lower right")
    right.axhline(0, color="0.5", linestyle="--")
    right.set(xticks=range(len(labels)), xticklabels=[label.replace(" ", "\n") for label in labels.values()])
    right.set(ylabel="gain in test accuracy, per split", title="Gain over two layers at the end (dots: splits)")
    n, seeds = dataset.attrs["n"], dataset.sizes["seed"]
    figure.suptitle(f"Digits, softmax loss, n = {n}: mean of {seeds} splits, bands and bars of one standard error")
    return figure
