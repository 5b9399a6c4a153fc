"""The paper's student network and the teachers of its synthetic experiments, shared by the studies.

The student is f(x) = M^(-alpha) sum_r tanh(w_r . x + b_r), with fixed output weights (Section 5 of the paper). mfpda
averages over particles, so h = tanh gives the mean-field scaling, alpha = 1, and h = sqrt(M) tanh the kernel scaling,
alpha = 1/2.
"""

import jax
import jax.numpy as jnp
import numpyro

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


def single_index(activation, dimensions):
    """f(x) = activation(w* . x), w* the first unit vector: for Gaussian inputs any other direction is the same."""
    return lambda x: activation(x[:, 0])


def examples(key, teacher, n, dimensions, noise=0.0):
    """n inputs of N(0, I) with their labels, and a noise of that standard deviation on these."""
    input_key, noise_key = jax.random.split(key)
    x = jax.random.normal(input_key, (n, dimensions))
    return x, teacher(x) + noise * jax.random.normal(noise_key, (n,))
