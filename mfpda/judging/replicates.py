"""Replicates: independent samples of a Gibbs density, tempered from the prior, and what they predict."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import CertificateStatus
from mfpda.problem import GibbsPotential, Problem
from mfpda.sampling import Ladder, Tempering, TemperingStats

LARGEST_R_HAT = 1.05  # between replicates; above it, some prediction of each is worth fewer than 10 independent draws


class Replicates(NamedTuple):
    """Independent samples of a Gibbs density (the first axis), and their predictions z."""

    thetas: Array
    stats: TemperingStats
    z: Array
    within: Array  # the variance of h over the particles of a replicate, on average

    @property
    def shares(self) -> Array:
        """The share of each replicate in the mean, in proportion to its estimate of the normaliser."""
        return jax.nn.softmax(self.stats.log_normaliser)

    @property
    def mean(self) -> Array:
        return jnp.tensordot(self.shares, self.z, axes=1)

    @property
    def between(self) -> Array:
        """The variance of z over replicates."""
        return jnp.var(self.z, axis=0, ddof=1)

    @property
    def r_hat(self) -> float:
        """The largest sqrt((M - 1) / M + B / W) over the anchors, B and W the variances between and within."""
        count, between = self.thetas.shape[1], self.between
        flat = jnp.where(between > 0, jnp.inf, 0)  # if particles agree within replicates but not between them
        ratio = jnp.where(self.within > 0, between / jnp.where(self.within > 0, self.within, 1), flat)
        return float(jnp.sqrt((count - 1) / count + jnp.max(ratio)))

    @property
    def status(self) -> CertificateStatus:
        """Whether the sample can be trusted."""
        if not (jnp.all(jnp.isfinite(self.between)) and jnp.all(jnp.isfinite(self.within))):
            return CertificateStatus.NOT_FINITE
        if not jnp.all(self.stats.sound(self.thetas.shape[1])):
            return CertificateStatus.DEGENERATE
        even = float(jnp.sum(self.shares) ** 2 / jnp.sum(self.shares**2)) >= len(self.shares) / 2
        return CertificateStatus.CERTIFIED if even and self.r_hat <= LARGEST_R_HAT else CertificateStatus.DISAGREEMENT

    def inflation(self, shares: Array) -> float:
        """Return the ratio of a replicate's variance to that of M independent draws, at least 1."""
        within = float(jnp.sum(shares * self.within))
        return max(1.0, float(self.thetas.shape[1] * jnp.sum(shares * self.between)) / within) if within > 0 else 1.0

    def joined(self, more: "Replicates") -> "Replicates":
        """Return these replicates and more of them, made by the same ladder."""
        ours, theirs = len(self.z), len(more.z)
        together = jax.tree.map(lambda *parts: jnp.concatenate(parts), self, more)
        return together._replace(within=(ours * self.within + theirs * more.within) / (ours + theirs))


def drawn(
    key: Array,
    potential: GibbsPotential,
    tempering: Tempering,
    replicates: int,
    particles: int,
    ladder: Ladder | None = None,
) -> Replicates:
    """Temper replicates of exp(-V) from the prior, one after another, and predict at its anchors.

    Without a ladder a pilot makes one.
    """
    pilot_key, *keys = jax.random.split(key, replicates + 1)
    if ladder is None:
        ladder = tempering.sample(pilot_key, potential, particles).ladder
    each = [tempering.sample(key, potential, particles, ladder) for key in keys]
    thetas, stats = jax.tree.map(lambda *parts: jnp.stack(parts), *((one.thetas, one.stats) for one in each))
    z, within = jax.tree.map(lambda *parts: jnp.stack(parts), *(moments(potential.problem, one.thetas) for one in each))
    return Replicates(thetas, stats, z, jnp.mean(within, axis=0))


@jax.jit
def moments(problem: Problem, thetas: Array) -> tuple[Array, Array]:
    """Compute mean and variance of h over particles, per example and output."""

    def of_block(x):
        outputs = problem.outputs_at(thetas, x)
        return jnp.mean(outputs, axis=0), jnp.var(outputs, axis=0, ddof=1)

    return problem.blocks.mapped(of_block, problem.x)
