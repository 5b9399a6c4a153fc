"""Priors that NumPyro lacks, and the paper's penalties as priors."""

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample

from mfpda.core import positive
from mfpda.errors import InputError


class PowerNormal(dist.Distribution):
    """Density proportional to exp(-rate |theta|^power), power in (1, 2]: the paper's l_p penalty as a prior.

    The normaliser is 2 Gamma(1 + 1/power) rate^(-1/power), and rate |theta|^power ~ Gamma(1/power). power = 2 is
    Normal(0, sqrt(1 / (2 rate))).

    >>> prior = PowerNormal(rate=10.0, power=1.5).expand([50]).to_event(1)
    >>> prior.sample(jax.random.key(0)).shape
    (50,)
    """

    arg_constraints: ClassVar[dict] = {"rate": constraints.positive, "power": constraints.interval(1.0, 2.0)}
    support = constraints.real
    reparametrized_params: ClassVar[list[str]] = ["rate"]

    def __init__(self, rate=1.0, power=2.0, *, validate_args=None):
        if not isinstance(power, jax.core.Tracer) and not np.all((np.asarray(power) > 1) & (np.asarray(power) <= 2)):
            advice = "The Gibbs potential must be differentiable, so l_1 is excluded. A power of 1.01 is nearly sparse."
            raise InputError("a power in (1, 2]", repr(power), advice)
        if isinstance(rate, (int, float)):
            positive(rate, "the rate of PowerNormal")
        self.rate, self.power = promote_shapes(rate, power)
        shape = jax.lax.broadcast_shapes(jnp.shape(rate), jnp.shape(power))
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        size_key, sign_key = jax.random.split(key)
        shape = sample_shape + self.batch_shape
        size = (jax.random.gamma(size_key, 1 / self.power, shape) / self.rate) ** (1 / self.power)
        return size * jax.random.rademacher(sign_key, shape, size.dtype)

    @validate_sample
    def log_prob(self, value):
        normaliser = math.log(2) + gammaln(1 + 1 / self.power) - jnp.log(self.rate) / self.power
        return -self.rate * jnp.abs(value) ** self.power - normaliser

    @property
    def mean(self):
        return jnp.zeros(self.batch_shape)

    @property
    def variance(self):
        ratio = jnp.exp(gammaln(3 / self.power) - gammaln(1 / self.power))
        return jnp.broadcast_to(ratio * self.rate ** (-2 / self.power), self.batch_shape)


class Penalty(NamedTuple):
    """The paper's regulariser as a temperature and a prior for every parameter."""

    prior: dist.Distribution
    temperature: float


def penalty(lambda1: float, lambda2: float, power: float = 2.0) -> Penalty:
    """Write the paper's lambda1 E|theta|^power + lambda2 E log q as T KL(q || p0), up to a constant.

    T = lambda2, and p0 is proportional to exp(-(lambda1 / lambda2) |theta|^power) in every coordinate. For power 2 this
    is Normal(0, sqrt(lambda2 / (2 lambda1))).

    >>> prior, temperature = penalty(lambda1=1e-2, lambda2=1e-3)
    >>> print(f"{prior.scale:.4f} {temperature}")
    0.2236 0.001
    """
    lambda1, lambda2 = positive(lambda1, "lambda1"), positive(lambda2, "lambda2")
    if isinstance(power, (int, float)) and power == 2:
        return Penalty(dist.Normal(0.0, math.sqrt(lambda2 / (2 * lambda1))), lambda2)
    return Penalty(PowerNormal(lambda1 / lambda2, power), lambda2)
