"""Whether a Gibbs density is proper: what V does far away, along curves on which parameters grow.

Write V = E + P, with E(theta) = (1/T) sum_i c_i . h(theta, x_i) and P = -log p0. The prior is proper, so exp(-V) can be
improper only where E falls without bound. Along a curve theta(r), r -> infinity, let E fall like r^a and P grow like
r^b. Then

    a > b    V -> -infinity for every c of that sign: exp(w) or w^3 with a normal w, w with a Cauchy prior
    a = b    V -> -infinity unless c / T is small: a * relu(w . x) with normal priors, w with a Laplace prior
    a < b    V -> +infinity for every c: w with a normal prior, tanh(a) * relu(w . x)

Where V -> -infinity like a power of r, exp(-V) is not integrable even in a cone that narrows like another power. A cone
may narrow faster only where P falls too, into the neck of a funnel. Such curves decide nothing. The orders a and b are
read off the last increments of E and P between those radii 2^0, 2^1, ..., 2^20 at which both are finite, so overflow
decides nothing either. A few steps of descent first turn the curves towards lower V.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.errors import InputError, listed
from mfpda.problem.curves import Curves, Fan, unit
from mfpda.problem.outputs import over_outputs
from mfpda.problem.potential import GibbsPotential
from mfpda.problem.problem import Problem

RADII = 2.0 ** np.arange(21)
DESCENT_RADIUS, DESCENT_STEP = 64.0, 0.3
STEPS_BEFORE, STEPS_DURING = 20, 8  # of descent: before a run, and at each look during it
WINDOW = 5  # E falls and P grows at this many increments before the last, too
SAME = 0.005  # orders that differ by less are equal
A_POWER = 0.5  # log(r) stays small, so on a curve with a v E must fall like a clear power of r
CLEAR = 1e-3  # the share of |E| + |P| by which V must fall: rounding does not make that much


class Found(NamedTuple):
    """What was seen along each curve."""

    improper: Array
    order_of_outputs: Array  # a
    order_of_prior: Array  # b
    excess: Array  # the last increment of E, divided by that of P
    curves: Curves


def check_proper(problem: Problem) -> None:
    """Refuse a problem whose first Gibbs density, with the dual l'(z) at the prior's predictions z, is improper.

    A density that becomes improper only with a later dual is found by ``runs_away`` during the run.
    """
    fan = Fan.of(problem)
    potential = _first(problem, fan.curves.start)
    if not np.isfinite(potential.coefficients).all():
        return  # the run says that h is not finite
    for curves in fan.parts():
        found = jax.device_get(_followed(potential, curves, fan.spread, np.int32(STEPS_BEFORE)))
        if found.improper.any():
            raise _refusal(problem, found, fan.spread)


def runs_away(potential: GibbsPotential, thetas: Array) -> Array:
    """Return, for curves that begin at these particles, whether exp(-V) is seen to be improper along them."""
    fan = Fan.of(potential.problem)
    return _followed(potential, fan.through(thetas), fan.spread, np.int32(STEPS_DURING)).improper


@jax.jit
def _first(problem: Problem, draws: Array) -> GibbsPotential:
    """The potential of the first linearisation."""
    g = problem.derivative(problem.predict(draws))
    return problem.potential(over_outputs(problem.weights, g) * g)


@jax.jit
def _followed(potential: GibbsPotential, curves: Curves, spread: Array, steps: Array) -> Found:
    """Turn u, and move the start of coordinates that have none, towards lower V. Then follow the curves outwards."""
    free = curves.u != 0

    def descend(_, curves):
        slopes = spread * jnp.nan_to_num(jax.vmap(jax.grad(potential))(curves.at(DESCENT_RADIUS)), posinf=0, neginf=0)
        u, length = curves.u / spread, jnp.linalg.norm(curves.u / spread, axis=1, keepdims=True)
        turned = unit(u - DESCENT_STEP * length * unit(jnp.where(free, slopes, 0)))
        moved = curves.start - DESCENT_STEP * spread * unit(jnp.where(free, 0, slopes))
        return Curves(moved, spread * length * turned, curves.v)

    def parts(r):
        thetas = curves.at(r)
        return jax.vmap(potential.data_energy)(thetas), -jax.vmap(potential.problem.log_prior)(thetas)

    curves = jax.lax.fori_loop(0, steps, descend, curves)
    energy, prior = jax.lax.map(parts, jnp.asarray(RADII, float))
    improper, a, b, excess = judged(energy, prior, jnp.any(curves.v != 0, axis=1))
    return Found(improper, a, b, excess, curves)


def judged(energy: Array, prior: Array, bends: Array) -> tuple[Array, Array, Array, Array]:
    """Judge curves (columns) by E and P at all radii (rows). ``bends`` tells which have a v."""
    last = jnp.sum(jnp.cumprod(jnp.isfinite(energy) & jnp.isfinite(prior), axis=0), axis=0) - 1
    at = lambda values, k: jnp.take_along_axis(values, jnp.maximum(k, 0)[None], axis=0)[0]  # noqa: E731
    e, p = jnp.diff(energy, axis=0), jnp.diff(prior, axis=0)
    back = jnp.clip(last - 1, 1, WINDOW)
    step = jnp.arange(1, len(RADII))[:, None]
    monotone = jnp.all((e < 0) & (p > 0) | (step > last) | (step < last - back), axis=0)
    e1, e2, p1, p2 = at(e, last - 2), at(e, last - 1), at(p, last - 2), at(p, last - 1)
    a, b, lasting = jnp.log2(e2 / e1), jnp.log2(p2 / p1), jnp.log2(e2 / at(e, last - 1 - back)) / back
    fast = (a > b - SAME) & (lasting > jnp.where(bends, A_POWER, -SAME))
    falls = e2 + p2 < -CLEAR * (jnp.abs(e2) + jnp.abs(p2))
    lower = at(energy + prior, last) < energy[0] + prior[0]
    return (last >= 2) & monotone & fast & falls & lower, a, b, -e2 / p2


def _refusal(problem: Problem, found: Found, spread: np.ndarray) -> InputError:
    """Make the error, with the line to write, from a curve with a > b if there is one, and with few coordinates."""
    moves = np.hypot(found.curves.u / spread, found.curves.v)
    moves = moves > 0.2 * moves.max(axis=1, keepdims=True)
    steeper = found.order_of_outputs > found.order_of_prior + A_POWER
    k = np.argmin(np.where(found.improper, moves.sum(axis=1) - moves.size * steeper, np.inf))
    places = np.split(moves[k], np.cumsum([site.size for site in problem.neuron.sites])[:-1])
    names = [site.name for site, place in zip(problem.neuron.sites, places, strict=True) if place.any()]
    sites, grow = (f"site {listed(names)}", "grows") if len(names) == 1 else (f"sites {listed(names)}", "grow")
    if steeper[k]:
        advice = (
            "Bound the output, `jnp.tanh(h)`, or all factors but one, `jnp.tanh(a) * jax.nn.relu(w @ x + b)`. Or give "
            f"{sites} lighter tails: Normal for StudentT or Cauchy, HalfNormal for LogNormal or HalfCauchy, Uniform "
            "for Normal. No temperature helps."
        )
    else:
        advice = (
            "Bound one factor: `jnp.tanh(a) * jax.nn.relu(w @ x + b)` in place of `a * jax.nn.relu(w @ x + b)`. Or "
            f"give {sites} lighter tails: Normal for Laplace or Gamma, Uniform for Normal. Or give a temperature well "
            f"above {float(problem.temperature) * found.excess[k]:.2g}."
        )
    expected = "a neuron that grows more slowly than its prior falls (else the fitted density has no finite integral)"
    return InputError(expected, f"outputs that outgrow the prior as {sites} {grow}", advice)
