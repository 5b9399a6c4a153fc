"""Curves theta(r) that leave every bounded set as r grows: where to look for a density that is improper.

    theta(r) = start + r u + log(r) v

With v = 0 it is a straight ray. A coordinate of v lets exp(theta_k) grow like a power of r, as the scale of a hierarchy
does while the values that it scales grow like r. u is in units of the prior's spread, so r counts spreads.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.problem.neuron import Neuron
from mfpda.problem.problem import Problem
from mfpda.problem.tails import heaviest

TOGETHER = 64  # curves that are followed at a time
TABLE = 4 * TOGETHER


class Curves(NamedTuple):
    """One curve per row."""

    start: Array | np.ndarray
    u: Array | np.ndarray
    v: Array | np.ndarray

    def at(self, r: Array | float) -> Array:
        return jnp.asarray(self.start) + r * self.u + jnp.log(r) * self.v


class Fan(NamedTuple):
    """A fixed set of curves from draws of the prior, and the prior's spread per coordinate. All are NumPy arrays."""

    curves: Curves
    spread: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> "Fan":
        draws = np.asarray(_draws(jax.random.key(0), problem))  # only for directions and scales: no key of a run
        low, high = np.quantile(draws, [0.25, 0.75], axis=0)
        spread = (high - low) / 2
        spread = np.where(np.isfinite(spread) & (spread > 1e-6), spread, 1).astype(draws.dtype)
        u, v = _table(problem.neuron)
        return cls(_as(draws.dtype, Curves(draws, spread * u, v)), spread)

    def parts(self) -> list[Curves]:
        """The curves, as many at a time as are followed together."""
        return [Curves(*(each[k : k + TOGETHER] for each in self.curves)) for k in range(0, TABLE, TOGETHER)]

    def through(self, thetas: Array) -> Curves:
        """Curves from particles: a quarter away from 0, a quarter away from their mean, and half as in the fan."""
        half = TOGETHER // 2
        return _through(thetas, self.spread, self.curves.u[-half:], self.curves.v[-half:])


@jax.jit
def _draws(key: Array, problem: Problem) -> Array:
    return jax.vmap(problem.draw_prior)(jax.random.split(key, TABLE))


@jax.jit
def _through(thetas: Array, spread: Array, u: Array, v: Array) -> Curves:
    """Particles may be far from the prior, so r counts their distance from 0 if that is larger than the spread."""
    start, half = thetas[jnp.arange(TOGETHER) * len(thetas) // TOGETHER], TOGETHER // 2
    centres = jnp.where(jnp.arange(half)[:, None] < half // 2, 0, jnp.mean(thetas, axis=0))
    away = spread * jnp.sqrt(len(spread)) * unit((start[:half] - centres) / spread)
    distance = jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(start / spread), axis=1, keepdims=True)), 1)
    return Curves(start, distance * jnp.concatenate([away, u]), jnp.concatenate([jnp.zeros_like(away), v]))


@functools.lru_cache(maxsize=256)
def _table(neuron: Neuron) -> tuple[np.ndarray, np.ndarray]:
    """The u in units of the spread, and the v, of a fixed set of curves.

    The first follow the axes with the heaviest tails, both ways. The others move one site, two, or all, each along a
    random direction or as a power of r.
    """
    random, axes = np.random.default_rng(0), heaviest(neuron, TOGETHER // 2)
    u, v = np.zeros((2, TABLE, neuron.size))
    for k, axis in enumerate(axes):
        u[2 * k, axis], u[2 * k + 1, axis] = 1, -1
    places = np.split(np.arange(neuron.size), np.cumsum([site.size for site in neuron.sites])[:-1])
    for k in range(2 * len(axes), TABLE):
        for site in random.permutation(len(places))[: (1, 2, len(places))[k % 3]]:
            if random.random() < 2 / 3:
                u[k, places[site]] = random.normal(size=len(places[site]))
            else:
                v[k, places[site]] = random.choice([-2, -1, 1, 2])
    return u, v


def unit(rows: Array) -> Array:
    """Scale every row to length 1. A row of zeros stays."""
    return rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _as(dtype: np.dtype, curves: Curves) -> Curves:
    return jax.tree.map(lambda part: part.astype(dtype), curves)
