"""Two concentric circles, separated by tanh neurons: the distribution of neurons that is best, with a certificate.

scikit-learn's make_circles and the logistic loss, as in Figure 2(b) of Nitanda, Wu and Suzuki (2021). The paper gives
neither lambdas nor scales; these are chosen here. The output is 10 tanh: with an output weight of 1 no ensemble of tanh
neurons separates the circles at threshold 0.

The settings are those of ``fit`` itself, so the run ends when its bound is at most 5 % of what could be won. The
paper's own path has a lower temperature, mini-batches and 100 outer steps of ULA. It is in models/paper/circles.py. It
shows features, and stops long before its density has converged.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from matplotlib.colors import CenteredNorm
from sklearn.datasets import make_circles

import mfpda

PAPERS_RUN = Path(__file__).parent / "paper" / "results" / "circles.nc"


def neuron(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    return 10 * jnp.tanh(x @ w + b)


model = mfpda.Model(
    neuron,
    loss=mfpda.losses.Logistic(),
    temperature=0.1,
    dims={"w": ["feature"]},
    coords={"feature": ["x1", "x2"]},
)


def data(key):
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    x, inner = make_circles(n_samples=400, noise=0.05, factor=0.4, random_state=seed)
    return x, 2.0 * inner - 1


def accuracy(predict):
    """The share of points on the two circles themselves, without noise, that are on the right side."""
    angle = 2 * jnp.pi * jnp.arange(100) / 100
    circle = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    return 0.5 * (jnp.mean(predict(0.4 * circle) > 0) + jnp.mean(predict(circle) < 0))


settings = {"metrics": {"accuracy": accuracy}}


def figure(fit):
    """The neurons of the paper's path, from its stored run, beside those of this fit and what they predict together."""
    figure, (path, neurons, surface) = plt.subplots(1, 3, figsize=(14, 3.9), layout="constrained")
    with xr.open_dataset(PAPERS_RUN, engine="h5netcdf") as stored:
        w = stored["w"].isel(seed=0).transpose("outer_step", "draw", ...).values
        steps = np.repeat(stored["outer_step"].values, w.shape[1])
    dots = path.scatter(*w.reshape(-1, 2).T, c=steps, s=5, cmap="plasma", linewidth=0)
    figure.colorbar(dots, ax=path, label="outer step t")
    path.set_title("Neurons on the paper's path, T = 0.01")
    w, b = (np.asarray(fit.particles[name]) for name in ("w", "b"))
    dots = neurons.scatter(*w.T, c=b, s=9, cmap="PuOr_r", norm=CenteredNorm(halfrange=1.5), linewidth=0)
    figure.colorbar(dots, ax=neurons, label="b", extend="both")
    neurons.set_title(f"Neurons of this fit, T = {float(fit.model.temperature):g}: {fit.status.value}")
    for ax in (path, neurons):
        ax.set(xlabel="$w_1$", ylabel="$w_2$", aspect="equal", xlim=(-5.6, 5.6), ylim=(-5.6, 5.6))
    mfpda.plots.surface(fit.idata, ax=surface, predict=fit.predict)
    correct = float(jnp.mean(jnp.sign(fit.predict(fit.problem.x)) == fit.problem.y))
    surface.set(aspect="equal", title=f"Its prediction: accuracy {correct:.3f}")
    return figure
