"""Replicates: independent samples of a Gibbs density, tempered from the prior, and what they predict.

The way from the prior costs most. So the particles of a replicate keep moving at its end, and its predictions are
averaged over their places. The product of the normaliser's estimate and this average is unbiased too, because the
moves leave the density invariant.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda import sampling
from mfpda.errors import CertificateStatus
from mfpda.problem import GibbsPotential, Problem
from mfpda.sampling import Ladder, Tempered, Tempering, TemperingStats

DRAWS = 16  # places of every particle over which predictions are averaged

LARGEST_R_HAT = 1.05  # between replicates; above it, some prediction of each is worth fewer than 10 independent draws


class Replicates(NamedTuple):
    """Independent samples of a Gibbs density (the first axis), and their predictions z."""

    thetas: Array  # the last places of the particles, of the replicates that were drawn first
    stats: TemperingStats
    z: Array  # averaged over particles and their places
    within: Array  # the variance of h over the particles of a replicate, on average
    draws: Array  # the number of places of each particle, one number per replicate

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

    @property
    def size(self) -> int:
        """The number of places of all particles of a replicate."""
        return self.thetas.shape[1] * int(self.draws[0])

    def inflation(self, shares: Array) -> float:
        """Return the ratio of a replicate's variance to that of as many independent draws as its size, at least 1."""
        within = float(jnp.sum(shares * self.within))
        return max(1.0, float(self.size * jnp.sum(shares * self.between)) / within) if within > 0 else 1.0

    def joined(self, more: "Replicates") -> "Replicates":
        """Return these replicates and more of them, made by the same ladder. Only the places of these are kept."""
        ours, theirs = len(self.z), len(more.z)
        within = (ours * self.within + theirs * more.within) / (ours + theirs)
        stats, z, draws = (
            jax.tree.map(lambda *parts: jnp.concatenate(parts), getattr(self, name), getattr(more, name))
            for name in ("stats", "z", "draws")
        )
        return Replicates(self.thetas, stats, z, within, draws)


def drawn(
    key: Array,
    potential: GibbsPotential,
    tempering: Tempering,
    replicates: int,
    particles: int,
    ladder: Ladder | None = None,
    draws: int = DRAWS,
) -> Replicates:
    """Temper replicates of exp(-V) from the prior, one after another, and predict at its anchors.

    Without a ladder a pilot makes one.
    """
    pilot_key, *keys = jax.random.split(key, replicates + 1)
    if ladder is None:
        ladder = tempering.sample(pilot_key, potential, particles).ladder
    each = [_replicate(key, potential, tempering, particles, ladder, draws) for key in keys]
    joined = jax.tree.map(lambda *parts: jnp.stack(parts), *each)
    return joined._replace(within=jnp.mean(joined.within, axis=0))


def _replicate(
    key: Array, potential: GibbsPotential, tempering: Tempering, particles: int, ladder: Ladder, draws: int
) -> Replicates:
    """Temper one replicate, without the first axis, and let it move."""
    temper_key, move_key = jax.random.split(key)
    tempered = tempering.sample(temper_key, potential, particles, ladder)
    return _moving(move_key, potential, tempering, tempered, draws)


@partial(jax.jit, static_argnames="draws")
def _moving(key: Array, potential: GibbsPotential, tempering: Tempering, tempered: Tempered, draws: int) -> Replicates:
    """Average predictions over the places of the particles: where tempering left them, and after each further move."""
    kernel = tempering.last_kernel(tempered.ladder)
    begin_key, *keys = jax.random.split(key, draws)
    first = z, within = moments(potential.problem, tempered.thetas)
    if draws == 1:
        return Replicates(tempered.thetas, tempered.stats, z, within, jnp.ones((), int))

    def move(ensemble, key):
        ensemble, stats, _ = sampling.run(key, ensemble, potential, kernel, 1)
        return ensemble, (moments(potential.problem, ensemble.theta), jnp.mean(stats.gradients))

    begun = sampling.begin(begin_key, tempered.thetas, potential, kernel)
    ensemble, (later, gradients) = jax.lax.scan(move, begun, jnp.stack(keys))
    z, within = (jnp.mean(jnp.concatenate([a[None], b]), axis=0) for a, b in zip(first, later, strict=True))
    stats = tempered.stats._replace(gradients=tempered.stats.gradients + 1 + jnp.sum(gradients))
    return Replicates(ensemble.theta, stats, z, within, jnp.full((), draws))


@jax.jit
def moments(problem: Problem, thetas: Array) -> tuple[Array, Array]:
    """Compute mean and variance of h over particles, per example and output."""

    def of_block(x):
        outputs = problem.outputs_at(thetas, x)
        return jnp.mean(outputs, axis=0), jnp.var(outputs, axis=0, ddof=1)

    return problem.blocks.mapped(of_block, problem.x)
