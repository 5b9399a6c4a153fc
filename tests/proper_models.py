"""Models whose first Gibbs density is improper, and models whose Gibbs density is proper, by name."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import sample

import mfpda
from mfpda.problem import bind

relu, N = jax.nn.relu, dist.Normal(0, 1)
X = np.random.default_rng(1).normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


def vector(prior, size=2):
    return prior.expand([size]).to_event(1)


def linear(prior, size=2):
    """w . x, with this prior of each weight."""
    return lambda x: jnp.tile(x, size // 2) @ sample("w", vector(prior, size))


def squashed(prior):
    return lambda x: jnp.tanh(linear(prior)(x))


def scaled(prior, inner=lambda w, x: jnp.tanh(x @ w)):
    """A scale with this prior times tanh(w . x), or times another function of normal weights."""
    return lambda x: sample("s", prior) * inner(sample("w", vector(N)), x)


def a_relu(x):
    return sample("a", N) * relu(x @ sample("w", vector(N)) + sample("b", N))


def tanh_a_relu(x):
    return jnp.tanh(sample("a", N)) * relu(x @ sample("w", vector(N)) + sample("b", N))


def funnel(prior, scale=lambda tau: tau, output=jnp.tanh):
    """A centred hierarchy: tau, then w ~ Normal(0, scale(tau))."""

    def neuron(x):
        tau = sample("tau", prior)
        return output(x @ sample("w", vector(dist.Normal(0, scale(tau)))))

    return neuron


def funnel_and_laplace(x):
    return funnel(dist.HalfNormal(1.0))(x) + x[0] * sample("b", dist.Laplace(0, 1))


def two_layers(x):
    hidden = jnp.tanh(sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2)) @ x)
    return sample("a", N) * jnp.tanh(sample("v", vector(N, 3)) @ hidden)


def product(w, x):
    return x @ w


def itself(z):
    return z


# name: (neuron, temperature)
IMPROPER = {
    "a relu": (a_relu, 0.01),
    "exponential": (lambda x: jnp.exp(0.3 * x @ sample("w", vector(N))) - 3, 0.1),
    "cube": (lambda x: x[0] * sample("w", N) ** 3, 0.1),
    "StudentT": (linear(dist.StudentT(4.0, 0, 1)), 0.1),
    "Cauchy": (linear(dist.Cauchy(0, 1)), 0.1),
    "one heavy weight": (
        lambda x: (
            jnp.tile(x, 50)
            @ sample("w", dist.StudentT(jnp.full(100, 30.0).at[41].set(3.0), 0, jnp.full(100, 1e-2)).to_event(1))
        ),
        10.0,
    ),
    "LogNormal scale": (scaled(dist.LogNormal(0, 1)), 0.1),
    "HalfCauchy scale": (scaled(dist.HalfCauchy(1.0)), 0.1),
    "InverseGamma scale": (scaled(dist.InverseGamma(3.0, 1.0)), 0.1),
    "cold Gamma scale": (scaled(dist.Gamma(2.0, 1.0)), 0.01),
    "cold Laplace": (linear(dist.Laplace(0, 1)), 0.01),
    "cold HalfNormal times normal": (scaled(dist.HalfNormal(1.0), product), 0.01),
    "cold product": (lambda x: 3 * x[0] * jnp.prod(sample("w", vector(N))), 0.01),
    "three factors": (lambda x: sample("c", N) * relu(sample("a", N) * relu(x @ sample("w", vector(N)))), 0.1),
    "horseshoe": (scaled(dist.HalfCauchy(1.0), product), 0.1),
    "centred horseshoe": (funnel(dist.HalfCauchy(1.0), output=itself), 0.1),
    "Neal's funnel": (funnel(dist.Normal(0, 3), lambda u: jnp.exp(u / 2), itself), 0.1),
    "Gamma precision": (funnel(dist.Gamma(2.0, 2.0), lambda tau: tau**-0.5, itself), 0.1),
}
PROPER = {
    "linear": (lambda x: linear(N)(x) + sample("b", N), 1e-4),
    "wide linear": (lambda x: 100 * linear(dist.Normal(0, 100))(x) + sample("b", dist.Normal(0, 1e3)), 1e-4),
    "linear far from 0": (linear(dist.Normal(50, 0.1)), 1e-3),
    "linear in 40 dimensions": (linear(N, 40), 1e-3),
    "correlated linear": (
        lambda x: x @ sample("w", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[1, 0.99], [0.99, 1]]))),
        1e-4,
    ),
    "tanh(a) relu": (tanh_a_relu, 1e-4),
    "relu": (lambda x: relu(linear(N)(x) + sample("b", N)), 1e-4),
    "softplus": (lambda x: jax.nn.softplus(linear(N)(x)), 1e-3),
    "gelu": (lambda x: jax.nn.gelu(linear(N)(x)), 1e-3),
    "logarithm": (lambda x: jnp.log1p(jnp.abs(linear(N)(x))), 1e-4),
    "hot a relu": (a_relu, 20.0),
    "ten tanh": (lambda x: 10 * squashed(N)(x), 1e-4),
    "a tanh": (scaled(N), 1e-4),
    "HalfNormal scale": (scaled(dist.HalfNormal(1.0)), 1e-4),
    "wide HalfNormal scale": (scaled(dist.HalfNormal(1000.0)), 1e-4),
    "truncated scale": (scaled(dist.TruncatedNormal(0, 1, low=0.0)), 1e-3),
    "hot Gamma scale": (scaled(dist.Gamma(2.0, 1.0)), 10.0),
    "hot HalfNormal times normal": (scaled(dist.HalfNormal(1.0), product), 10.0),
    "Uniform weights": (linear(dist.Uniform(-3, 3)), 1e-4),
    "Uniform scale times normal": (scaled(dist.Uniform(0, 10), product), 1e-4),
    "Beta scale": (scaled(dist.Beta(2.0, 2.0), lambda w, x: 20 * jnp.tanh(x @ w)), 1e-4),
    "Dirichlet": (lambda x: 5 * x @ sample("w", dist.Dirichlet(jnp.ones(2))), 1e-4),
    "Cholesky factor": (lambda x: jnp.sum(jnp.tanh(sample("c", dist.LKJCholesky(2, 1.0)) @ x)), 1e-3),
    "Cauchy in tanh": (squashed(dist.Cauchy(0, 1)), 1e-4),
    "StudentT in tanh": (squashed(dist.StudentT(3.0, 0, 1)), 1e-4),
    "Laplace in tanh": (squashed(dist.Laplace(0, 1)), 1e-4),
    "LogNormal in tanh": (lambda x: jnp.tanh(sample("s", dist.LogNormal(0, 1)) * x[0] + sample("b", N)), 1e-4),
    "hot Laplace": (linear(dist.Laplace(0, 1)), 10.0),
    "PowerNormal": (linear(mfpda.PowerNormal(1.0, 1.5)), 1e-3),
    "nearly Laplace": (linear(mfpda.PowerNormal(1.0, 1.02)), 0.1),
    "sine": (lambda x: 2 * jnp.sin(linear(dist.Normal(0, 5))(x)), 1e-4),
    "bump": (
        lambda x: (
            5 * jnp.exp(-sample("s", dist.LogNormal(0, 1)) * jnp.sum(jnp.square(x - sample("centre", vector(N)))))
        ),
        1e-4,
    ),
    "two bounded factors": (lambda x: jnp.tanh(sample("a", N)) * jnp.tanh(sample("c", N)) * linear(N)(x), 1e-4),
    "two layers": (two_layers, 1e-3),
    "funnel": (funnel(dist.HalfNormal(1.0)), 1e-3),
    "funnel of bounded scale": (funnel(dist.Uniform(0.0, 2.0), output=itself), 1e-3),
    "Neal's funnel in tanh": (funnel(dist.Normal(0, 3), lambda u: jnp.exp(u / 2)), 1e-3),
    "centred horseshoe in tanh": (funnel(dist.HalfCauchy(1.0)), 1e-3),
    "funnel and hot Laplace": (funnel_and_laplace, 10.0),
}


def model_of(name, temperature=None):
    neuron, default = (IMPROPER | PROPER)[name]
    return mfpda.Model(neuron, mfpda.losses.Squared(), default if temperature is None else temperature)


def problem_of(name, temperature=None):
    return bind(model_of(name, temperature), X, Y)
