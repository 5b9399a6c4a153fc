"""Outer steps of a rule on a grid of nodes: what ``Quadrature.run`` does, from any state, and compiled once."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda.exact import Law, Quadrature
from mfpda.problem.problem import Problem
from mfpda.rules import Coefficients
from tests.helpers import reference

NAMES = ["tanh_squared", "tanh_logistic", "sine_squared"]


@functools.cache
def grid_of(name, points=61):
    """A reference problem on a coarse grid, whose nodes and masses are a problem of their own."""
    problem = reference(name)
    return Quadrature.of(problem.model, problem.data, problem.bounds, points)


@functools.cache
def classes(points=61):
    """Three classes, a vector of outputs."""
    h = lambda theta, x: 2 * jnp.stack([jnp.tanh(theta["w"] * x), jnp.tanh(theta["b"]), 0.0])  # noqa: E731
    prior = dist.Normal(0, 1)
    model = mfpda.Model.from_function(h, {"w": prior, "b": prior}, mfpda.losses.Softmax(), 0.05)
    x = np.linspace(-2, 2, 15)
    return Quadrature.of(model, (x, (x > -1).astype(int) + (x > 1)), (-10, 10), points)


def named(name, points=61):
    return classes(points) if name == "classes" else grid_of(name, points)


def problem_with(y, loss, temperature, outputs=()):
    """A problem with these labels, for outputs that are given as numbers; its own neuron is never evaluated."""
    h = lambda theta, x: jnp.full(outputs, theta["w"] * x)  # noqa: E731
    model = mfpda.Model.from_function(h, {"w": dist.Normal(0, 1)}, loss, temperature)
    return Problem.of(model, jnp.arange(float(len(y))), y)


def law_of(grid, g):
    """q_g; unlike ``Quadrature.gibbs`` also where the grid cuts it off, as here the nodes are all there is."""
    return grid._gibbs(np.asarray(g) / len(grid.x))[0]


def view_of(grid, law):
    return grid._seen(law, None, None)


def gap(grid, g):
    """L(q_g) - D(g)."""
    return grid.fenchel_young(np.asarray(g), grid.predictions(law_of(grid, g)))


def dual_value(grid, g):
    """D(g)."""
    _, log_normaliser = grid._gibbs(np.asarray(g) / len(grid.x))
    return -float(np.mean(grid._rows("conjugate", np.asarray(g)))) - grid.temperature * log_normaliser


class Walked(NamedTuple):
    state: object
    g: np.ndarray
    gap: float


def walk(grid, rule, outer_steps, state=None, key=None, particles=None, batch=None, between=lambda state: state):
    """A ``Walked`` after every outer step, from the prior or from a state and the law of its dual."""
    path = []
    with jax.enable_x64(True):
        key = jax.random.key(0) if key is None else key
        law = Law(np.exp(grid.log_prior), None) if state is None else law_of(grid, rule.dual(state).g)
        state = rule.init(len(grid.x), grid.outputs.shape[2:]) if state is None else state
        chosen = Coefficients(jnp.asarray(rule.dual(state).g) / len(grid.x), jnp.ones(()))
        for t in range(1, outer_steps + 1):
            rule_key, draw_key = jax.random.split(jax.random.fold_in(key, t))
            now, view = jnp.asarray(float(t)), grid._seen(law, draw_key, particles)
            state, chosen = grid._stepped(rule, rule_key, between(state), chosen, now, view, batch, particles)
            law = grid._gibbs(np.asarray(chosen.c), float(chosen.gamma))[0]
            g = np.asarray(rule.dual(state).g)
            path.append(Walked(jax.tree.map(np.asarray, state), g, gap(grid, g)))
    return path
