"""The number of rows that fit in memory."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfpda.errors import InputError
from mfpda.problem.blocks import Blocks
from mfpda.problem.neuron import Neuron

GIB = 2**30
SHARE = 4  # the default budget is 1/4 of the free memory
UNKNOWN = 4 * GIB  # the assumed free memory, if the system does not report it
FEWEST_ROWS = 8  # with fewer rows the overhead of a block dominates


def blocks_within(memory: float, neuron: Neuron, particles: int) -> Blocks:
    """Return blocks of at least 8 rows whose intermediate results take at most ``memory`` GiB."""
    rows = int(memory * GIB // _row_bytes(neuron, particles))
    return Blocks(2 ** (max(rows, FEWEST_ROWS).bit_length() - 1))  # small changes of the budget change nothing


def check_budget(memory: float, neuron: Neuron, particles: int) -> None:
    """Refuse a budget in GiB that does not hold 8 rows."""
    smallest = FEWEST_ROWS * _row_bytes(neuron, particles) / GIB
    if memory < smallest:
        expected = f"at least {smallest:.3g} GiB of memory for {particles} particles"
        raise InputError(expected, f"{memory:.3g} GiB", "Allow more (memory=), or use fewer particles.")


def default_budget() -> float:
    """Return a quarter of the free memory, in GiB."""
    return free_memory() / SHARE / GIB


def free_memory() -> int:
    """Return the bytes of memory that are available."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


def _row_bytes(neuron: Neuron, particles: int) -> int:
    """Return the bytes that all particles need at one anchor."""
    return particles * bytes_per_output(neuron, jnp.result_type(float))


@functools.lru_cache(maxsize=256)
def bytes_per_output(neuron: Neuron, floating: np.dtype) -> int:
    """Return the bytes that one particle needs at one anchor, an upper bound because the compiler fuses most results.

    They are what one more anchor adds to computing the gradient of sum_i c_i . h(theta, x_i).
    """

    def energy(theta, c, x):
        return jnp.sum(c * jax.vmap(lambda x: neuron.evaluate(theta, x).output)(x))

    def size(anchors):
        theta = jax.ShapeDtypeStruct((neuron.size,), floating)
        c = jax.ShapeDtypeStruct((anchors, *neuron.output), floating)
        x = jax.ShapeDtypeStruct((anchors, *neuron.input.shape), neuron.input.dtype)
        return _result_bytes(jax.make_jaxpr(jax.grad(energy))(theta, c, x).jaxpr)

    return size(2) - size(1)


def _result_bytes(jaxpr: Any) -> int:
    """Return the bytes of the results of all equations, inner programs included."""
    total = 0
    for equation in jaxpr.eqns:
        total += sum(each.aval.size * each.aval.dtype.itemsize for each in equation.outvars)
        inner = jax.tree.leaves(list(equation.params.values()))
        total += sum(_result_bytes(program) for program in inner if hasattr(program, "eqns"))
    return total
