"""How many rows fit in a budget of memory."""

import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.errors import InputError
from mfpda.problem import memory
from mfpda.problem.blocks import Blocks
from mfpda.problem.memory import GIB, UNKNOWN, blocks_within, bytes_per_output, check_budget, free_memory
from mfpda.problem.neuron import trace

pytestmark = pytest.mark.quick

D, M = 3, 37
SITES = {"w": dist.Normal(0, 1).expand([D]).to_event(1), "b": dist.Normal(0, 1)}


def scalar(theta, x):
    return jnp.tanh(x @ theta["w"] + theta["b"])


def deep(theta, x):
    return jnp.sum(jnp.tanh(jnp.tanh(jnp.outer(jnp.ones(20), x) @ theta["w"] + theta["b"]) ** 2))


SCALAR, DEEP = (
    trace(mfpda.Model.from_function(h, SITES, mfpda.losses.Squared(), 0.1).declaration, jnp.zeros(D))
    for h in (scalar, deep)
)


def bytes_of(neuron):
    return bytes_per_output(neuron, jnp.result_type(float))


def budget(neuron, particles, rows):
    """GiB in which so many rows just fit."""
    return particles * rows * bytes_of(neuron) / GIB


def test_rows_shrink_with_particles_and_depth():
    assert blocks_within(1.0, SCALAR, 1000).rows == 2 * blocks_within(1.0, SCALAR, 2000).rows
    assert bytes_of(DEEP) > 20 * bytes_of(SCALAR)
    rows = blocks_within(1.0, SCALAR, 1000).rows
    assert budget(SCALAR, 1000, rows) <= 1.0 < budget(SCALAR, 1000, 2 * rows)


def test_too_small_a_budget_is_refused():
    """Eight rows are the fewest, and a budget in which they just fit gives them."""
    smallest = budget(SCALAR, M, 8)
    assert blocks_within(smallest, SCALAR, M) == Blocks(8)
    check_budget(smallest, SCALAR, M)
    with pytest.raises(InputError, match=f"at least {smallest:.3g} GiB of memory for {M} particles.*fewer particles"):
        check_budget(0.9 * smallest, SCALAR, M)


def test_free_memory_where_the_system_says_less_and_less(monkeypatch):
    assert 2**20 < free_memory() < 2**50

    def refuse(*_):
        raise OSError

    monkeypatch.setattr("builtins.open", refuse)
    assert 2**20 < free_memory() < 2**50
    monkeypatch.setattr(memory.os, "sysconf", refuse)
    assert free_memory() == UNKNOWN
