"""Two concentric circles, separated by tanh neurons that arrange themselves on a ring.

Figure 2(b) of Nitanda, Wu and Suzuki (2021): scikit-learn's make_circles, logistic loss, M = 500, batches of 50,
inner steps growing with t and step sizes falling with 1/sqrt(t). The paper gives neither lambdas nor scales; these
are chosen here. The output is 10 tanh: with an output weight of 1 no ensemble of tanh neurons separates the circles
at threshold 0.

Neurons leave the origin for a ring, where w . x + b is a bump over the inner circle once all directions are averaged;
those that stay at the centre have w near 0 and b < 0, and pull the sum below 0 outside. At this temperature the run's
particles separate the data long before their Gibbs density has converged: a figure of features, not of the optimum.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import make_circles

import mfpda


def neuron(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    return 10 * jnp.tanh(x @ w + b)


model = mfpda.Model(
    neuron,
    loss=mfpda.losses.Logistic(),
    temperature=0.01,
    init={"w": dist.Normal(0, 0.1).expand([2]).to_event(1), "b": dist.Normal(0, 0.1)},
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


settings = {
    "kernel": mfpda.ULA(step_size=mfpda.schedules.InverseSqrt(0.001)),
    "particles": 500,
    "outer_steps": 100,
    "inner_steps": mfpda.schedules.Linear(slope=1, base=5),
    "batch_size": 50,
    "metrics": {"accuracy": accuracy},
}


def figure(fit):
    """The paper's trajectory figure, beside what the neurons compute together."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.6), layout="constrained", gridspec_kw={"wspace": 0.08})
    mfpda.plots.trajectories(fit.idata, [("w", 0), ("w", 1)], ax=left)
    mfpda.plots.surface(fit.idata, ax=right, predict=fit.predict)
    x, y = fit.problem.x, fit.problem.y
    correct = float(jnp.mean(jnp.sign(fit.predict(x)) == y))
    right.set(aspect="equal", title=f"Prediction and boundary, training accuracy {correct:.3f}")
    return figure
