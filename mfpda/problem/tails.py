"""What the prior looks like far away: how fast each site's density falls, and whether one site scales another."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from mfpda.errors import InputError
from mfpda.problem.neuron import Neuron

MOST_AXES = 256  # that are followed one by one: those with the heaviest tails


def check_prior(neuron: Neuron, smallest_gamma: float) -> None:
    """Refuse a prior for which p0^gamma is not integrable, with gamma the smallest factor that the rule uses.

    This tries each site's own density while the others are fixed: along its axes, and along its diagonal. A prior that
    is only jointly heavy passes.
    """
    for site, power, dimensions in _tails(neuron, jnp.result_type(float)):
        if smallest_gamma * power <= dimensions * (1 + 1e-3):
            fraction = "p0" if smallest_gamma == 1 else f"p0^({Fraction(smallest_gamma).limit_denominator(100)})"
            found = f"site {site!r}, whose density falls only like |theta|^-{power:.2g}"
            found += f" over {dimensions} dimensions" if dimensions > 1 else ""
            lighter = "Use a prior with lighter tails (Normal, Laplace, a StudentT of more degrees)"
            advice = f"{lighter}, or keep gamma = 1: rule=DualAveraging(gamma=1.0) or rule='latest'."
            raise InputError(f"priors such that {fraction} is integrable (the rule samples it)", found, advice)


def centred(neuron: Neuron) -> tuple[str, str] | None:
    """Return a site whose prior depends on another site, and that other site: a funnel, as in tau, w ~ N(0, tau)."""
    densities = lambda theta: jnp.stack(neuron.evaluate(theta).log_densities)  # noqa: E731
    slopes = np.asarray(jax.jit(jax.jacrev(densities))(jnp.full(neuron.size, 0.1)))
    ends = np.cumsum([site.size for site in neuron.sites])[:-1]
    for site, row in zip(neuron.sites, slopes, strict=True):
        for other, part in zip(neuron.sites, np.split(row, ends), strict=True):
            if other is not site and np.any(part != 0):
                return site.name, other.name
    return None


@functools.lru_cache(maxsize=256)
def heaviest(neuron: Neuron, most: int) -> np.ndarray:
    """Return at most this many coordinates, those along which the prior falls most slowly first.

    At theta = +-r (1, ..., 1) the local power of coordinate j is -theta_j d(log p0)/d(theta_j). One gradient gives it
    for every coordinate.
    """
    log_prior = lambda theta: sum(neuron.evaluate(theta).log_densities)  # noqa: E731
    at = jnp.array([[-30.0], [30.0]]) * jnp.ones(neuron.size)
    powers = np.asarray(-at * jax.jit(jax.vmap(jax.grad(log_prior)))(at), float)
    return np.argsort(np.nan_to_num(powers, nan=np.inf).min(axis=0), kind="stable")[:most]


@functools.lru_cache(maxsize=256)
def _tails(neuron: Neuron, floating: np.dtype) -> list[tuple[str, float, int]]:
    """Return (site, power, dimensions) for a few rays: p0 falls like r^-power if that many coordinates of a site move.

    p0^gamma is integrable along a ray only if gamma * power > dimensions. The power is the steepest fall between two
    radii: a power law never falls faster than its last power, and rounding flattens transforms such as stick-breaking
    at large radii. ``floating`` is only part of the cache's key.
    """
    radii = np.array([4.0, 16.0, 64.0, 1e3, 1e4, 1e6])
    both_ways = np.concatenate([radii, -radii])
    rays = []
    axes = heaviest(neuron, MOST_AXES)
    for k, places in enumerate(np.split(np.arange(neuron.size), np.cumsum([site.size for site in neuron.sites])[:-1])):
        rays += [(k, np.array([axis])) for axis in np.intersect1d(places, axes)]
        rays += [(k, places)] if len(places) > 1 or not len(np.intersect1d(places, axes)) else []
    thetas = np.zeros((len(rays), len(both_ways), neuron.size))
    for ray, (_, moved) in zip(thetas, rays, strict=True):
        ray[:, moved] = both_ways[:, None]
    at_all = jax.jit(jax.vmap(jax.vmap(lambda theta: jnp.stack(neuron.evaluate(theta).log_densities))))
    heights = np.asarray(at_all(jnp.asarray(thetas, float)), float)
    tails = []
    for (k, moved), along in zip(rays, heights, strict=True):
        with np.errstate(invalid="ignore"):  # -inf twice in a row tells nothing, and nanmax ignores it
            falls = -np.diff(along[:, k].reshape(2, -1)) / np.diff(np.log(radii))
        power = float(np.nanmax(falls, axis=1, initial=-np.inf).min())
        if math.isfinite(power):
            tails.append((neuron.sites[k].name, power, len(moved)))
    return tails
