"""One-dimensional regression on a stream: the expected risk of a tanh teacher.

Figure 2(a) of Nitanda, Wu and Suzuki (2021): y = tanh(w* x) + noise with x ~ N(0, 1), squared loss, one pass over the
data in batches of 50, resampled starts, M = 500, lambda1 = 1e-2, lambda2 = 1e-3. The teacher's w*, the noise and the
inner loop are not given there; w* = 2, noise of 0.1 and the numbers below are chosen here.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro

import mfpda

prior, temperature = mfpda.penalty(lambda1=1e-2, lambda2=1e-3)


def teacher(x):
    return jnp.tanh(2.0 * x)


def neuron(x):
    w = numpyro.sample("w", prior)
    b = numpyro.sample("b", prior)
    return jnp.tanh(w * x + b)


model = mfpda.Model(neuron, loss=mfpda.losses.Squared(), temperature=temperature)


def draw(key, batch_size):
    input_key, noise_key = jax.random.split(key)
    x = jax.random.normal(input_key, (batch_size,))
    return x, teacher(x) + 0.1 * jax.random.normal(noise_key, (batch_size,))


def data(key):
    return mfpda.Stream(draw)


settings = {
    "rule": "dual_averaging",
    "start": mfpda.Resample(),
    "kernel": mfpda.ULA(step_size=mfpda.schedules.InverseSqrt(0.004)),
    "particles": 500,
    "outer_steps": 60,
    "inner_steps": mfpda.schedules.Linear(slope=4, base=40),
}


def figure(fit):
    """The fitted function with some of the data, and how the law of (w, b) moved."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    mfpda.plots.function(fit.idata, ax=left, predict=fit.predict, truth=teacher)
    left.set_title("Fitted function, with some of the examples")
    mfpda.plots.trajectories(fit.idata, [("w", None), ("b", None)], ax=right, lines=0)
    return figure
