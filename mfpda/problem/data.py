"""Where examples come from: a data set, whole or in shuffled batches, or a stream of fresh draws.

Both feeds answer the same two questions at outer step t: which anchors are there and which of them are the batch I_t
(None for all), and on which examples the state after step t is judged.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core.schedules import positive_count
from mfpda.errors import InputError, NotConvexWarning, reason
from mfpda.problem.blocks import Blocks
from mfpda.problem.losses import CONVEX, seen_convex
from mfpda.problem.model import Model

STREAM_BATCH = 50  # the paper's
CHECKED = 2**20  # numbers that are looked at together, to see whether they are finite


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


class Examples(NamedTuple):
    """Inputs and labels, first axis over examples; y may be None. ``blocks`` says how many are looked at together."""

    x: Array
    y: Any
    blocks: Blocks = Blocks()


class DataSet:
    """A fixed set of n examples: the anchors of every outer step."""

    is_stream = False
    blocks = Blocks()

    def __init__(self, key: Array, examples: Examples, batch_size: int | None):
        n = len(examples.x)
        batch_size = None if batch_size is None else positive_count(batch_size, "batch_size")
        if batch_size is not None and batch_size > n:
            raise InputError(
                f"a batch_size of at most n = {n}", str(batch_size), "Use batch_size=None for the full batch."
            )
        self.key, self.examples, self.batch_size = key, examples, batch_size
        self._epoch, self._order = -1, np.empty(0, int)

    def at(self, t: int) -> tuple[Examples, Array | None]:
        """The anchors and the batch of step t: the full set, or the next slice of this epoch's permutation.

        The n mod b examples at the end of a permutation wait for another epoch.
        """
        examples = self.judged_on(t)
        if self.batch_size is None:
            return examples, None
        n, b = len(self.examples.x), self.batch_size
        epoch, place = divmod(t - 1, n // b)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.asarray(jax.random.permutation(jax.random.fold_in(self.key, epoch), n))
        return examples, jnp.asarray(self._order[place * b : (place + 1) * b])

    def check_drawn_again(self, t: int) -> None:
        """There is nothing to draw."""

    def judged_on(self, t: int) -> Examples:
        """All the data: risk is the empirical risk."""
        return _in_blocks(self.examples, self.blocks)


class StreamFeed:
    """A stream's anchors: every step adds a batch to a buffer.

    The buffer's capacity is 4, 8, 16, ... batches, a function of t alone: a run compiles once per capacity, pays from
    its third step on for at most twice the anchors it has, and gives the same bits when it is resumed. Free places
    repeat the first example and have coefficient 0.
    """

    is_stream = True
    blocks = Blocks()

    def __init__(
        self,
        key: Array,
        model: Model,
        stream: Stream,
        batch_size: int | None,
        buffer: Examples | None = None,
        filled: int = 0,
    ):
        self.key, self.model, self.stream = key, model, stream
        self.batch_size = STREAM_BATCH if batch_size is None else positive_count(batch_size, "batch_size")
        self._drawn: tuple[int, Examples] = (filled + 1, self._draw(filled + 1))
        self._buffer, self._filled = buffer or self._drawn[1], filled

    def at(self, t: int) -> tuple[Examples, Array]:
        """The buffer with batch t in it, and the places of that batch."""
        start = (t - 1) * self.batch_size
        if self._filled < t:
            buffer = enlarged(self._buffer, capacity(t, self.batch_size))
            self._buffer = Examples(
                *(_written(old, new, start) for old, new in zip(buffer[:2], self._batch(t)[:2], strict=True))
            )
            self._filled = t
        return _in_blocks(self._buffer, self.blocks), jnp.arange(start, start + self.batch_size)

    def check_drawn_again(self, t: int) -> None:
        """Refuse a stream that does not draw batch t, which is in the buffer, as it was drawn before."""
        places = slice((t - 1) * self.batch_size, t * self.batch_size)
        for old, new in zip(self._buffer[:2], self._draw(t)[:2] if t else (), strict=bool(t)):
            if new is not None and not np.array_equal(np.asarray(old[places]), np.asarray(new)):
                advice = "Pass the same Stream; its draw(key, batch_size) has to be a function of the key."
                raise InputError("the stream of the run that is resumed", f"another batch {t}", advice)

    def judged_on(self, t: int) -> Examples:
        """The next batch, which the state after step t has not seen: its risk is unbiased for the expected risk."""
        return _in_blocks(self._batch(t + 1), self.blocks)

    def _batch(self, t: int) -> Examples:
        if self._drawn[0] != t:
            self._drawn = (t, self._draw(t))
        return self._drawn[1]

    def _draw(self, t: int) -> Examples:
        try:
            x, y = self.stream.draw(jax.random.fold_in(self.key, t), self.batch_size)
        except (TypeError, ValueError) as error:
            raise InputError(
                "a draw(key, batch_size) that returns (x, y)",
                f"{type(error).__name__}: {error}",
                "Correct the Stream's draw.",
            ) from error
        examples = check_examples(self.model, x, y, warn=t == 1)
        if len(examples.x) != self.batch_size:
            raise InputError(
                f"{self.batch_size} examples from the Stream's draw", str(len(examples.x)), "Draw batch_size of them."
            )
        return examples


def feed(
    key: Array, model: Model, data: Any, batch_size: int | None, buffer: Examples | None = None, filled: int = 0
) -> DataSet | StreamFeed:
    """The feed for what the user gave as data; ``buffer`` holds the ``filled`` batches of a stream that is resumed."""
    if isinstance(data, Stream):
        return StreamFeed(key, model, data, batch_size, buffer, filled)
    data = data[:2] if isinstance(data, Examples) else data
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise InputError("data as (x, y) or mfpda.Stream(draw)", type(data).__name__, "Pass a pair of arrays.")
    return DataSet(key, check_examples(model, *data), batch_size)


def check_examples(model: Model, x: Any, y: Any, warn: bool = True) -> Examples:
    """The examples as JAX arrays, refused where the model cannot use them."""
    x = _as_numpy(x, "x")
    if x.ndim == 0 or len(x) == 0:
        raise InputError(
            "inputs x with at least one example, first axis over examples", f"shape {x.shape}", "Check the data."
        )
    _refuse_non_finite("x", x)
    if y is not None:
        y = _as_numpy(y, "y")
        if y.ndim == 0 or len(y) != len(x):
            found = f"{len(x)} inputs and " + (f"{len(y)} labels" if y.ndim else "a scalar label")
            raise InputError("x and y of equal length", found, "Check how the data was split.")
        _refuse_non_finite("y", y)
    x = as_array(x)
    outputs = model.structure(x[0]).output
    if len(outputs) > 1 or (y is not None and y.ndim > 2):
        found = f"outputs of shape {outputs}" + ("" if y is None else f" and labels of shape {y.shape}")
        raise InputError("a scalar or a vector for every example", found, "Flatten them: h.ravel(), y.reshape(n, -1).")
    y = model.loss.check_labels(y, outputs)
    y = y if y is None else as_array(y)
    z = jax.ShapeDtypeStruct(outputs, jnp.result_type(float))
    try:
        value = jax.eval_shape(model.loss.value, z, None if y is None else y[0])
    except Exception as error:
        raise InputError(
            f"a loss (z, y) -> scalar for one prediction z of shape {outputs}",
            reason(error),
            "It sees one example at a time, and must use jax.numpy so that JAX can trace it.",
        ) from error
    if value.shape != ():
        raise InputError(
            "a loss that returns a scalar for one example", f"shape {value.shape}", "Sum over the outputs in it."
        )
    if warn and type(model.loss) not in CONVEX and not seen_convex(model.loss, y, outputs):
        warnings.warn(
            "The loss is not convex in its prediction where it was tried: a minimum may be local, and a certificate "
            "would not hold. Use a convex loss if you need that claim.",
            NotConvexWarning,
            stacklevel=4,
        )
    _refuse_prior_of_x(model, x)
    return Examples(x, y)


def _as_numpy(a: Any, name: str) -> np.ndarray:
    try:
        a = np.asarray(a)
    except ValueError as error:
        raise InputError(f"an array {name}", f"ragged rows ({error})", "Give every example the same shape.") from None
    if not (np.issubdtype(a.dtype, np.integer) or np.issubdtype(a.dtype, np.floating) or a.dtype == bool):
        raise InputError(f"a real numeric array {name}", f"type {a.dtype}", "Encode its values as numbers.")
    return a


def as_array(a: np.ndarray) -> Array:
    """As JAX has it. What cannot be written to, a memory map of mode "r" say, is used where it lies if it is aligned
    and of the right type; all else is copied, so that nothing changes when the user changes it."""
    kind = float if np.issubdtype(a.dtype, np.floating) else None
    usable = not a.flags.writeable and a.dtype == jnp.result_type(kind or a.dtype)
    return jax.device_put(a) if usable else jnp.array(a, kind)


def _in_blocks(examples: Examples, blocks: Blocks) -> Examples:
    return examples._replace(blocks=blocks.over(len(examples.x)))


def capacity(t: int, batch_size: int) -> int:
    """How many anchors a stream's buffer has room for at step t."""
    steps = 4
    while steps < t:
        steps *= 2
    return steps * batch_size


def enlarged(examples: Examples, capacity: int) -> Examples:
    """The examples with room for more: free places repeat the first."""
    missing = capacity - len(examples.x)
    if missing <= 0:
        return examples
    pad = lambda a: jnp.concatenate([a, jnp.broadcast_to(a[:1], (missing, *a.shape[1:]))])  # noqa: E731
    return examples._replace(x=pad(examples.x), y=None if examples.y is None else pad(examples.y))


def _written(buffer: Any, batch: Any, start: int) -> Any:
    return buffer if buffer is None else jax.lax.dynamic_update_slice_in_dim(buffer, batch, start, 0)


def _refuse_non_finite(name: str, a: np.ndarray) -> None:
    if not np.issubdtype(a.dtype, np.inexact):
        return
    count, first = 0, ""
    rows = max(1, CHECKED * len(a) // max(a.size, 1))
    for start in range(0, len(a), rows):  # no temporary array of the size of the data
        bad = ~np.isfinite(a[start : start + rows])
        if bad.any():
            row, *others = np.argwhere(bad)[0]
            first = first or ", ".join(str(int(i)) for i in (start + row, *others))
            count += int(bad.sum())
    if count:
        raise InputError(
            f"finite values in {name}",
            f"{count} NaN or infinite of {a.size}, the first at {name}[{first}]",
            "Drop those examples or fill them in.",
        )


@jax.jit
def _log_densities_at(model: Model, x: Array) -> list[Array]:
    return model.log_densities(jnp.full(model.structure(x).size, 0.1), x)


def _refuse_prior_of_x(model: Model, x: Array) -> None:
    first, last = (_log_densities_at(model, row) for row in (x[0], x[-1]))
    for site, a, b in zip(model.structure(x[0]).sites, first, last, strict=True):
        if float(a) != float(b) and not (np.isnan(a) and np.isnan(b)):
            raise InputError(
                "priors that do not depend on the input",
                f"site {site.name!r}, of log-density {float(a):.6g} at the first input and {float(b):.6g} at the last",
                "theta belongs to the neuron, not to an example: let only the output depend on x, without sites for y.",
            )
