"""Where examples come from: a data set, whole or in shuffled batches, or a stream of fresh draws."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import positive_count
from mfpda.errors import InputError
from mfpda.problem.binding import bind
from mfpda.problem.blocks import Blocks
from mfpda.problem.model import Model
from mfpda.problem.problem import Problem

STREAM_BATCH = 50  # the paper's


@dataclass(frozen=True)
class Stream:
    """One pass over a data distribution: ``draw(key, batch_size) -> (x, y)`` gives fresh examples (expected risk).

    >>> def draw(key, batch_size):
    ...     x = jax.random.normal(key, (batch_size,))
    ...     return x, jnp.tanh(x)
    >>> Stream(draw)  # doctest: +ELLIPSIS
    Stream(draw=<function draw at ...>)
    """

    draw: Callable[[Array, int], tuple[Any, Any]]


class Feed:
    """The examples of every outer step t: the anchors of the potential, and the batch I_t among them."""

    is_stream = False
    batch_size: int | None
    blocks = Blocks()

    def at(self, t: int) -> tuple[Problem, Array | None]:
        """Return the problem of step t, and the indices of its batch, or None for all examples."""
        raise NotImplementedError

    def judged_on(self, t: int) -> Problem:
        """Return the problem that judges the state after step t."""
        raise NotImplementedError

    def check_drawn_again(self, t: int) -> None:
        """Refuse a feed that draws other examples than the run that is resumed."""


class DataSet(Feed):
    """A fixed set of n examples: the anchors of every outer step."""

    def __init__(self, key: Array, problem: Problem, batch_size: int | None):
        n = len(problem.x)
        batch_size = None if batch_size is None else positive_count(batch_size, "batch_size")
        if batch_size is not None and batch_size > n:
            advice = "Use batch_size=None for the full batch."
            raise InputError(f"a batch_size of at most n = {n}", str(batch_size), advice)
        self.key, self.problem, self.batch_size = key, problem, batch_size
        self._epoch, self._order = -1, np.empty(0, int)

    def at(self, t: int) -> tuple[Problem, Array | None]:
        """Return all examples. The batch is the epoch's next b examples in random order; n mod b are left over."""
        if self.batch_size is None:
            return self.judged_on(t), None
        n, b = len(self.problem.x), self.batch_size
        epoch, place = divmod(t - 1, n // b)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.asarray(jax.random.permutation(jax.random.fold_in(self.key, epoch), n))
        return self.judged_on(t), jnp.asarray(self._order[place * b : (place + 1) * b])

    def judged_on(self, t: int) -> Problem:
        """Return all the data, so the risk is the empirical risk."""
        return self.problem.in_blocks(self.blocks)


class StreamFeed(Feed):
    """The anchors of a stream: every step adds a batch to a buffer.

    The buffer has room for 4, 8, 16, ... batches, depending on t alone. So a run compiles once per size, and gives the
    same bits when it is resumed. Free places repeat the first example and have coefficient 0.
    """

    is_stream = True
    batch_size: int

    def __init__(
        self, key: Array, model: Model, stream: Stream, batch_size: int | None, buffer: Problem | None, filled: int
    ):
        self.key, self.model, self.stream = key, model, stream
        self.batch_size = STREAM_BATCH if batch_size is None else positive_count(batch_size, "batch_size")
        self._batch = functools.lru_cache(maxsize=1)(self._draw)  # ``judged_on`` draws the batch that ``at`` adds next
        self._buffer, self._filled = buffer or self._batch(filled + 1), filled

    def at(self, t: int) -> tuple[Problem, Array]:
        """Return the buffer with batch t in it, and the indices of that batch."""
        start = (t - 1) * self.batch_size
        if self._filled < t:
            buffer, batch = enlarged(self._buffer, capacity(t, self.batch_size)), self._batch(t)
            write = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)  # noqa: E731
            x, y = jax.tree.map(write, (buffer.x, buffer.y), (batch.x, batch.y))  # y may be None
            self._buffer, self._filled = replace(buffer, x=x, y=y), t
        return self._buffer.in_blocks(self.blocks), jnp.arange(start, start + self.batch_size)

    def check_drawn_again(self, t: int) -> None:
        """Refuse a stream whose batch t differs from the one in the buffer."""
        if not t:
            return
        places, batch = slice((t - 1) * self.batch_size, t * self.batch_size), self._draw(t)
        for old, new in ((self._buffer.x, batch.x), (self._buffer.y, batch.y)):
            if new is not None and not np.array_equal(np.asarray(old[places]), np.asarray(new)):
                advice = "Pass the same Stream. Its draw(key, batch_size) must be a function of the key."
                raise InputError("the stream of the run that is resumed", f"another batch {t}", advice)

    def judged_on(self, t: int) -> Problem:
        """Return the next batch. The state after step t has not seen it, so its risk is unbiased."""
        return self._batch(t + 1).in_blocks(self.blocks)

    def _draw(self, t: int) -> Problem:
        try:
            x, y = self.stream.draw(jax.random.fold_in(self.key, t), self.batch_size)
        except (TypeError, ValueError) as error:
            expected, found = "a draw(key, batch_size) that returns (x, y)", f"{type(error).__name__}: {error}"
            raise InputError(expected, found, "Correct the Stream's draw.") from error
        problem = bind(self.model, x, y, warn=t == 1)
        if len(problem.x) != self.batch_size:
            expected = f"{self.batch_size} examples from the Stream's draw"
            raise InputError(expected, str(len(problem.x)), "Draw batch_size of them.")
        return problem


def feed(
    key: Array, model: Model, data: object, batch_size: int | None, buffer: Problem | None = None, filled: int = 0
) -> Feed:
    """Make the feed of the user's data. ``buffer`` has the first ``filled`` batches of a stream that is resumed."""
    if isinstance(data, Stream):
        return StreamFeed(key, model, data, batch_size, buffer, filled)
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise InputError("data as (x, y) or mfpda.Stream(draw)", type(data).__name__, "Pass a pair of arrays.")
    return DataSet(key, bind(model, *data), batch_size)


def capacity(t: int, batch_size: int) -> int:
    """Return the number of anchors that a stream's buffer has room for at step t: a power of two batches."""
    return batch_size * max(4, 2 ** (t - 1).bit_length())


def enlarged(problem: Problem, capacity: int) -> Problem:
    """Return the problem with room for more examples. Free places repeat the first example."""
    n = len(problem.x)
    if capacity <= n:
        return problem
    places = jnp.where(jnp.arange(capacity) < n, jnp.arange(capacity), 0)
    x, y = jax.tree.map(lambda part: part[places], (problem.x, problem.y))  # y may be None
    return Problem.of(problem.model, x, y, problem.blocks)
