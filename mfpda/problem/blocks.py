"""Sums and means of the M x n outputs in blocks of anchors, so that all outputs need not fit in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_static
@dataclass(frozen=True)
class Blocks:
    """The number of rows (anchors) that are evaluated together. None means all of them, without a loop.

    n rows make ceil(n / rows) blocks of equal length. The last block begins a few rows early, so that x is neither
    copied nor padded.

    >>> Blocks(2).mapped(lambda x: 10 * x, jnp.arange(5.0))
    Array([ 0., 10., 20., 30., 40.], dtype=float32)
    >>> float(Blocks(2).summed(jnp.dot, jnp.ones(5), jnp.arange(5.0)))
    10.0
    """

    rows: int | None = None

    def over(self, n: int) -> "Blocks":
        """Return these blocks for n rows: no loop if one block holds them all."""
        return Blocks() if self.whole(n) else self

    def whole(self, n: int) -> bool:
        """Whether n rows fit in one block."""
        return self.rows is None or self.rows >= n

    def mapped(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Compute function(*arrays) block by block. Its results have one row for each row of the arrays."""
        n = len(jax.tree.leaves(arrays)[0])
        if self.whole(n):
            return function(*arrays)
        count, length = self._cut(n)

        def write(k, results):
            start = jnp.minimum(k * length, n - length)
            put = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)  # noqa: E731
            return jax.tree.map(put, results, function(*_rows(arrays, start, length)))

        shapes = jax.eval_shape(lambda: function(*_rows(arrays, 0, length)))
        empty = jax.tree.map(lambda part: jnp.zeros((n, *part.shape[1:]), part.dtype), shapes)
        return jax.lax.fori_loop(0, count, write, empty)

    def summed(self, function: Callable[..., Any], weights: Array, *arrays: Any) -> Any:
        """Compute function(weights, *arrays) block by block. It must be a sum over rows, linear in their weights."""
        n = len(weights)
        if self.whole(n):
            return function(weights, *arrays)
        count, length = self._cut(n)

        def add(k, total):
            start = jnp.minimum(k * length, n - length)
            these, *others = _rows((weights, *arrays), start, length)  # a row in two blocks has weight 0 in the second
            new = (start + jnp.arange(length) >= k * length).reshape(-1, *(1,) * (weights.ndim - 1))
            return jax.tree.map(jnp.add, total, function(jnp.where(new, these, 0), *others))

        shapes = jax.eval_shape(lambda: function(*_rows((weights, *arrays), 0, length)))
        zero = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
        return jax.lax.fori_loop(0, count, add, zero)

    def _cut(self, n: int) -> tuple[int, int]:
        """Return the number of blocks of n rows, and their length."""
        assert self.rows is not None
        count = -(-n // self.rows)
        return count, -(-n // count)


def _rows(arrays: Any, start: Any, length: int) -> Any:
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, length), arrays)
