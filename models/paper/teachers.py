"""The paper's student network and the teachers of its synthetic experiments, shared by the studies.

The student is f(x) = M^(-alpha) sum_r tanh(w_r . x + b_r), with fixed output weights (Section 5 of the paper). mfpda
averages over particles, so h = tanh gives the mean-field scaling, alpha = 1, and h = sqrt(M) tanh the kernel scaling,
alpha = 1/2.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import xarray as xr

import mfpda


def student(dimensions, lambda1, lambda2, power=2.0, scale=1.0, loss=mfpda.losses.Squared(), init=None):
    """h(theta, x) = scale tanh(w . x + b), under the paper's penalty; ``init`` is q1 of each parameter."""
    prior, temperature = mfpda.penalty(lambda1, lambda2, power)

    def neuron(x):
        w = numpyro.sample("w", prior.expand([dimensions]).to_event(1))
        b = numpyro.sample("b", prior)
        return scale * jnp.tanh(x @ w + b)

    initial = None if init is None else {"w": init.expand([dimensions]).to_event(1), "b": init}
    return mfpda.Model(neuron, loss, temperature, init=initial)


def single_index(activation):
    """f(x) = activation(w* . x), w* the first unit vector: for Gaussian inputs any other direction is the same."""
    return lambda x: activation(x[:, 0])


def multiple_index(activation, directions):
    """f(x) = (1 / sqrt(m)) sum_i activation(w_i . x), the w_i the m rows of ``directions``."""
    return lambda x: jnp.sum(activation(x @ directions.T), axis=1) / jnp.sqrt(len(directions))


def examples(key, teacher, n, dimensions, noise=0.0):
    """n inputs of N(0, I) with their labels, and a noise of that standard deviation on these."""
    input_key, noise_key = jax.random.split(key)
    x = jax.random.normal(input_key, (n, dimensions))
    return x, teacher(x) + noise * jax.random.normal(noise_key, (n,))


def error_against(key, teacher, n, dimensions):
    """A metric of ``mfpda.fit``: the mean of (f - f*)^2 over n fresh inputs, f* the teacher without noise."""
    x, y = examples(key, teacher, n, dimensions)
    return lambda predict: jnp.mean(jnp.square(predict(x) - y))


def recorded(fit, name):
    """A number that a fit has recorded, by outer step."""
    values = np.float32([row.stats[name] for row in fit.rows])
    return xr.DataArray(values, {"outer_step": [row.outer_step for row in fit.rows]}, dims="outer_step")
