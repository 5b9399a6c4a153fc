"""Anchors looked at block by block, so that particles x anchors need not fit in memory.

Only sums and means over particles or anchors are ever wanted of the M x n outputs and of what their gradient passes
through. Both can be had from M x rows at a time, equal to the whole within rounding.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError
from mfpda.problem.model import Declaration, Model

GIB = 2**30
SHARE = 4  # one of so many parts of the memory that is free is taken where no budget is given
UNKNOWN = 4 * GIB  # supposed to be free where the system does not say
FEWEST_ROWS = 8  # fewer would be all overhead


@jax.tree_util.register_static
@dataclass(frozen=True)
class Blocks:
    """At most so many rows (anchors) are looked at together; None for all of them, in one evaluation without a loop.

    n rows are cut into ceil(n / rows) blocks of equal length, the last of which begins a few rows early: x is neither
    copied nor padded.

    >>> Blocks(2).mapped(lambda x: 10 * x, jnp.arange(5.0))
    Array([ 0., 10., 20., 30., 40.], dtype=float32)
    >>> float(Blocks(2).summed(jnp.dot, jnp.ones(5), jnp.arange(5.0)))
    10.0
    """

    rows: int | None = None

    def over(self, n: int) -> "Blocks":
        """These blocks for n rows: no blocks, if they are one."""
        return Blocks() if self.whole(n) else self

    def whole(self, n: int) -> bool:
        """Whether n rows are looked at all at once."""
        return self.rows is None or self.rows >= n

    def mapped(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """function(*arrays), whose results have a row for each row of the arrays, found from blocks of their rows."""
        n = _length(arrays)
        if self.whole(n):
            return function(*arrays)
        count, length = self._cut(n)

        def write(k, results):
            start = jnp.minimum(k * length, n - length)
            found = function(*_rows(arrays, start, length))
            put = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)  # noqa: E731
            return jax.tree.map(put, results, found)

        shapes = jax.eval_shape(lambda: function(*_rows(arrays, 0, length)))
        empty = jax.tree.map(lambda part: jnp.zeros((n, *part.shape[1:]), part.dtype), shapes)
        return jax.lax.fori_loop(0, count, write, empty)

    def summed(self, function: Callable[..., Any], weights: Array, *arrays: Any) -> Any:
        """function(weights, *arrays), a sum over rows, each in proportion to its weight, found from blocks of rows.

        A row that two blocks share has weight 0 in the second.
        """
        n = len(weights)
        if self.whole(n):
            return function(weights, *arrays)
        count, length = self._cut(n)

        def add(k, total):
            start = jnp.minimum(k * length, n - length)
            these, *others = _rows((weights, *arrays), start, length)
            new = (start + jnp.arange(length) >= k * length).reshape(-1, *(1,) * (weights.ndim - 1))
            return jax.tree.map(jnp.add, total, function(jnp.where(new, these, 0), *others))

        shapes = jax.eval_shape(lambda: function(*_rows((weights, *arrays), 0, length)))
        zero = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
        return jax.lax.fori_loop(0, count, add, zero)

    def _cut(self, n: int) -> tuple[int, int]:
        """How many blocks n rows make, and their length."""
        assert self.rows is not None
        count = -(-n // self.rows)
        return count, -(-n // count)


def _length(arrays: Any) -> int:
    return len(jax.tree.leaves(arrays)[0])


def _rows(arrays: Any, start: Any, length: int) -> Any:
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, length), arrays)


def within(memory: float | None, model: Model, x: Any, particles: int) -> Blocks:
    """Blocks whose intermediate results take at most ``memory`` GiB, or a quarter of what is free; of 8 rows at least.

    x is one input. The number of rows is a power of two, so that small changes in what is free change nothing.
    """
    rows = int(_budget(memory) // _row(model, x, particles))
    return Blocks(2 ** (max(rows, FEWEST_ROWS).bit_length() - 1))


def check_budget(memory: float, model: Model, x: Any, particles: int) -> None:
    """Refuse a budget in which not even 8 rows fit."""
    budget, smallest = memory, FEWEST_ROWS * _row(model, x, particles) / GIB
    if budget < smallest:
        found = f"{budget:.3g} GiB"
        advice = "Allow more (memory=), or take fewer particles."
        raise InputError(f"at least {smallest:.3g} GiB of memory for {particles} particles", found, advice)


def default_budget() -> float:
    """A quarter of what is free, in GiB."""
    return free_memory() / SHARE / GIB


def _budget(memory: float | None) -> float:
    """In bytes."""
    return (default_budget() if memory is None else memory) * GIB


def _row(model: Model, x: Any, particles: int) -> int:
    """What the particles take at one anchor, in bytes."""
    return particles * bytes_per_output(model, x)


def free_memory() -> int:
    """How many bytes the system can still give."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


def bytes_per_output(model: Model, x: Any) -> int:
    """The size of all intermediate results of the gradient of sum_i c_i . h(theta, x_i) that one more anchor brings.

    What a particle and an anchor take together: an upper bound, as the compiler fuses most of them. It sees how deep a
    neuron is.
    """
    return _bytes_per_output(model.declaration, jnp.shape(x), jnp.result_type(x), jnp.result_type(float))


@functools.lru_cache(maxsize=256)
def _bytes_per_output(declaration: Declaration, shape: tuple[int, ...], kind: Any, floating: Any) -> int:
    model = Model.tree_unflatten(declaration, (1.0,))
    structure = model.structure(jax.ShapeDtypeStruct(shape, kind))

    def energy(theta, c, x):
        return jnp.sum(c * jax.vmap(model.output, in_axes=(None, 0))(theta, x))

    def size(anchors):
        arguments = [((structure.size,), floating), ((anchors, *structure.output), floating), ((anchors, *shape), kind)]
        return _size(jax.make_jaxpr(jax.grad(energy))(*(jax.ShapeDtypeStruct(*each) for each in arguments)).jaxpr)

    return size(2) - size(1)


def _size(jaxpr: Any) -> int:
    """Of the results of every equation, in bytes, those of inner programs included."""
    total = 0
    for equation in jaxpr.eqns:
        total += sum(each.aval.size * each.aval.dtype.itemsize for each in equation.outvars)
        total += sum(
            _size(inner) for inner in jax.tree.leaves(list(equation.params.values())) if hasattr(inner, "eqns")
        )
    return total
