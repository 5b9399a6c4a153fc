"""Losses l(z, y), convex in the prediction z, each with its derivative and its convex conjugate.

All methods speak of one example: z is a scalar, or a vector for several outputs. The conjugate is

    l*(g, y) = sup_z [ g . z - l(z, y) ]

and is +inf outside its domain; Fenchel's inequality l(z) + l*(g) >= g . z is an equality exactly when g = l'(z), which
is what the certificate rests on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp, xlogy
from jax.typing import ArrayLike

from mfpda.errors import InputError

Shape = tuple[int, ...]


class Loss:
    """A loss: ``value`` is required; derivative and conjugate have defaults that work for any convex value.

    A new loss is a frozen dataclass, so that two of the same settings are equal and compile once:

    >>> @dataclass(frozen=True)
    ... class Cosh(Loss):
    ...     def value(self, z, y):
    ...         return jnp.log(jnp.cosh(z - y))
    >>> print(f"{Cosh().derivative(1.0, 0.0):.4f} {Cosh().conjugate(0.5, 0.0):.4f}")
    0.7616 0.1308
    """

    def value(self, z: ArrayLike, y: Any) -> Array:
        """l(z, y)."""
        raise NotImplementedError

    def derivative(self, z: ArrayLike, y: Any) -> Array:
        """l'(z, y), the derivative in z."""
        return jax.grad(self.value)(_floating(z), y)

    def conjugate(self, g: ArrayLike, y: Any) -> Array:
        """l*(g, y), here found numerically."""
        g = _floating(g)
        if g.ndim == 0:
            return _scalar_conjugate(self.value, g, y)
        return _vector_conjugate(self.value, g, y)

    def domain(self, y: Any) -> tuple[ArrayLike, ArrayLike]:
        """The ends of the smallest box that holds every g at which l*(g, y) is finite."""
        return -jnp.inf, jnp.inf

    def projected(self, g: ArrayLike, y: Any) -> Array:
        """A dual that is in the domain but for rounding, moved into it."""
        return _floating(g)

    def strong_convexity(self, bound: float) -> float:
        """The largest mu for which l(., y) is mu-strongly convex on |z| <= bound; 0 where none is known."""
        return 0.0

    def check_output(self, shape: Shape) -> None:
        """Refuse a neuron whose output has a shape that this loss cannot take."""

    def check_labels(self, y: Any, outputs: Shape) -> Any:
        """The labels as an array of the right type, refused where they are outside the loss's domain."""
        return y

    def over_rows(self, function: Callable[..., Array], z: Array, y: Any) -> Array:
        """``function`` (a method of this loss) at every row of z and y; y may be None."""
        return jax.vmap(function, in_axes=(0, None if y is None else 0))(z, y)


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared distance, 0.5 |z - y|^2, for regression with one or several outputs.

    l'(z) = z - y and l*(g) = g . y + 0.5 |g|^2, finite everywhere.
    """

    def value(self, z, y):
        return 0.5 * jnp.sum(jnp.square(z - y))

    def derivative(self, z, y):
        return jnp.subtract(z, y)

    def conjugate(self, g, y):
        return jnp.sum(jnp.multiply(g, y) + 0.5 * jnp.square(g))

    def strong_convexity(self, bound):
        return 1.0

    def check_labels(self, y, outputs):
        y = _need(y, "a number for each input")
        if y.shape[1:] != outputs:
            raise InputError(
                f"labels y of shape {(len(y), *outputs)}, the output shape of the neuron",
                f"shape {y.shape}",
                "Reshape y (y.squeeze() for a column), or change what the neuron returns.",
            )
        return y.astype(float)


class _Binary(Loss):
    """What the two losses for labels -1 and 1 share."""

    def check_output(self, shape):
        if shape != ():
            advice = "Return a scalar: h[0], say." if shape == (1,) else "Return a scalar, or use losses.Softmax()."
            raise InputError(f"a neuron with a scalar output for {type(self).__name__}", f"shape {shape}", advice)

    def check_labels(self, y, outputs):
        y = _need(y, "a label -1 or 1 for each input", ndim=1)
        wrong = ~np.isin(y, (-1, 1))
        if wrong.any():
            advice = "Use 2 * y - 1." if np.isin(y, (0, 1)).all() else "Map the two classes to -1 and 1."
            raise InputError("labels -1 and 1", _first_wrong(y, wrong), advice)
        return y.astype(float)


@dataclass(frozen=True)
class Logistic(_Binary):
    """log(1 + exp(-y z)) for labels y of -1 and 1.

    l'(z) = -y / (1 + exp(y z)); with a = -y g, l*(g) = a log a + (1 - a) log(1 - a) on 0 <= a <= 1.
    """

    def value(self, z, y):
        return jax.nn.softplus(-y * z)

    def derivative(self, z, y):
        return -y * jax.nn.sigmoid(-y * z)

    def conjugate(self, g, y):
        a = -y * _floating(g)
        inside = jnp.clip(a, 0, 1)
        return jnp.where(
            jnp.abs(a - inside) <= _slack(a), xlogy(inside, inside) + xlogy(1 - inside, 1 - inside), jnp.inf
        )

    def domain(self, y):
        return jnp.minimum(-y, 0), jnp.maximum(-y, 0)

    def projected(self, g, y):
        return jnp.clip(g, *self.domain(y))

    def strong_convexity(self, bound):
        return float(jax.nn.sigmoid(bound) * jax.nn.sigmoid(-bound))


@dataclass(frozen=True)
class SmoothedHinge(_Binary):
    """The paper's smoothed hinge (Appendix D.2): with m = y z, 0 from m = 1/2 on, (1 - 2m)^2 between, 1 - 4m below 0.

    With a = y g, l*(g) = a/2 + a^2/16 on -4 <= a <= 0.
    """

    def value(self, z, y):
        m = y * z
        return jnp.where(m >= 0.5, 0.0, jnp.where(m >= 0, jnp.square(1 - 2 * m), 1 - 4 * m))

    def derivative(self, z, y):
        return -4 * y * jnp.clip(1 - 2 * y * z, 0, 1)

    def conjugate(self, g, y):
        a = y * _floating(g)
        inside = jnp.clip(a, -4, 0)
        return jnp.where(jnp.abs(a - inside) <= 4 * _slack(a), inside / 2 + jnp.square(inside) / 16, jnp.inf)

    def domain(self, y):
        return jnp.minimum(-4 * y, 0), jnp.maximum(-4 * y, 0)

    def projected(self, g, y):
        return jnp.clip(g, *self.domain(y))


@dataclass(frozen=True)
class Softmax(Loss):
    """Cross-entropy after softmax, log sum_k exp(z_k) - z_y, for labels y of 0..C-1 (Appendix E.2 of the paper).

    l'(z) = softmax(z) - e_y; with p = g + e_y, l*(g) = sum_k p_k log p_k on the simplex.
    """

    def value(self, z, y):
        return logsumexp(z) - z[y]

    def derivative(self, z, y):
        return jax.nn.softmax(z) - jax.nn.one_hot(y, len(z), dtype=z.dtype)

    def conjugate(self, g, y):
        p = g + jax.nn.one_hot(y, len(g), dtype=_floating(g).dtype)
        inside = jnp.clip(p, 0, 1)
        distance = jnp.maximum(jnp.max(jnp.abs(p - inside)), jnp.abs(jnp.sum(p) - 1))
        return jnp.where(distance <= len(g) * _slack(p), jnp.sum(xlogy(inside, inside)), jnp.inf)

    def domain(self, y):
        return -1.0, 1.0

    def projected(self, g, y):
        own = jax.nn.one_hot(y, len(g), dtype=_floating(g).dtype)
        p = jnp.clip(g + own, 0, 1)
        return p / jnp.sum(p) - own

    def check_output(self, shape):
        if len(shape) != 1 or shape[0] < 2:
            raise InputError(
                "a neuron with one output per class (a vector of at least 2) for Softmax",
                f"shape {shape}",
                "Return a vector such as a * jnp.tanh(x @ w) with a of shape (C,).",
            )

    def check_labels(self, y, outputs):
        y = _need(y, "a class 0..C-1 for each input", ndim=1)
        classes = outputs[0]
        wrong = (y != np.round(y)) | (y < 0) | (y >= classes)
        if wrong.any():
            advice = "Count classes from 0, or give the neuron as many outputs as there are classes."
            raise InputError(f"labels 0..{classes - 1}, one per output of the neuron", _first_wrong(y, wrong), advice)
        return y.astype(np.int32)


@dataclass(frozen=True)
class FromFunction(Loss):
    """Any function (z, y) -> scalar as a loss: derivative by JAX, conjugate found numerically."""

    function: Callable[[Array, Any], Array]

    def value(self, z, y):
        return self.function(z, y)


DOMAIN_POINTS = (0.0, 1.0, -1.0, 0.01, -0.01, 100.0, -100.0)  # one of them should be in the domain of a user's loss
CONVEX = (Squared, Logistic, SmoothedHinge, Softmax)  # known to be: no need to try


def as_loss(loss: Loss | Callable[[Array, Any], Array]) -> Loss:
    """The loss itself, or a function (z, y) -> scalar made into one."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type):
        raise InputError("a loss object", f"the class {loss.__name__}", f"Call it: {loss.__name__}().")
    if callable(loss):
        return FromFunction(loss)
    raise InputError(
        "a loss from mfpda.losses or a function (z, y) -> scalar",
        repr(loss),
        "Use mfpda.losses.Squared(), for example.",
    )


def weighted(weights: Array, values: Array) -> Array:
    """The sum of w_i value_i over examples; one of weight 0, a free place of a stream's buffer, may have any value."""
    return jnp.sum(jnp.where(weights > 0, weights * values, 0))


def seen_convex(loss: Loss, y: Any, outputs: Shape, reach: float = 10.0) -> bool:
    """Whether l(., y) was convex wherever tried: along fixed directions up to |z| = reach, for a few labels."""
    size = int(np.prod(outputs))
    axes = np.eye(size) if size <= 16 else np.eye(size)[:16]
    directions = np.concatenate([axes, np.cos(np.outer(np.arange(1, 5), np.arange(1, size + 1)))])
    line = np.linspace(-reach, reach, 81)
    z = jnp.asarray((directions[:, None, :] * line[:, None]).reshape(-1, *outputs), float)

    def bend(label):
        values = jax.vmap(loss.value, (0, None))(z, label).reshape(len(directions), len(line))
        second = values[:, 2:] - 2 * values[:, 1:-1] + values[:, :-2]
        second = second + 1e-5 * (1 + jnp.abs(values[:, 1:-1]))
        return jnp.min(jnp.where(jnp.isfinite(second), second, 0))  # a loss may have a domain, as -log z has

    labels = [None] if y is None else jnp.sort(y, axis=0)[np.linspace(0, len(y) - 1, 8).astype(int)]
    return all(not bend(label) < 0 for label in labels)


def _floating(z: ArrayLike) -> Array:
    return jnp.asarray(z, jnp.result_type(z, float))


def _slack(a: Array) -> float:
    """How far outside its domain a dual may be by rounding alone."""
    return 64 * float(jnp.finfo(a.dtype).eps)


def _need(y: Any, what: str, ndim: int | None = None) -> np.ndarray:
    if y is None:
        raise InputError(what, "y = None", "Give data as (x, y).")
    y = np.asarray(y)
    if ndim is not None and y.ndim != ndim:
        raise InputError(f"{what}, an array of {ndim} dimension", f"shape {y.shape}", "Try y.squeeze() or y.argmax(1).")
    return y


def _first_wrong(y: np.ndarray, wrong: np.ndarray) -> str:
    return f"{int(wrong.sum())} other, the first y[{int(np.argmax(wrong))}] = {y[wrong][0]}"


def _scalar_conjugate(value: Callable[..., Array], g: Array, y: Any) -> Array:
    """Maximise the concave g u - l(u, y) by bisection on the sign of g - l'(u, y): right for kinks too.

    The bracket doubles outwards from a point of the loss's domain, up to 2^40. Where the loss is not finite, outside
    its domain or past overflow, the way up is back. If the slope at the last point still exceeds rounding, outwards,
    the supremum is infinite.
    """
    steepness = jax.grad(value)
    known = lambda u: jnp.isfinite(value(u, y)) & jnp.isfinite(steepness(u, y))  # noqa: E731
    tried = jnp.asarray(DOMAIN_POINTS, g.dtype)
    inside = tried[jnp.argmax(jax.vmap(known)(tried))]
    slope = lambda u: jnp.where(known(u), g - steepness(u, y), jnp.sign(inside - u))  # noqa: E731

    def end(sign):  # further while it pays
        pays = lambda width: (sign * slope(inside + sign * width) > 0) & (width < 2.0**40)  # noqa: E731
        return inside + sign * jax.lax.while_loop(pays, lambda width: 2 * width, jnp.ones((), g.dtype))

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    lower, upper = end(-1), end(1)
    slack = _slack(g) * (1 + jnp.abs(g))
    low, high = jax.lax.fori_loop(0, 120, halve, (lower, upper))
    unbounded = (slope(upper) > slack) | (slope(lower) < -slack)
    unbounded |= known(low) & ~known(high) & (slope(low) > slack) | known(high) & ~known(low) & (slope(high) < -slack)
    best = jnp.maximum(*(jnp.where(known(u), g * u - value(u, y), -jnp.inf) for u in (low, high)))
    return jnp.where(unbounded, jnp.inf, best)


def _vector_conjugate(value: Callable[..., Array], g: Array, y: Any) -> Array:
    """Maximise the concave g . u - l(u, y) by damped Newton steps; infinite where its gradient stays off 0."""
    shape, eye = g.shape, jnp.eye(g.size, dtype=g.dtype)
    objective = lambda u: jnp.sum(g * u.reshape(shape)) - value(u.reshape(shape), y)  # noqa: E731
    gradient, hessian = jax.grad(objective), jax.hessian(objective)

    def step(_, carry):
        u, damping = carry
        new = u + jnp.linalg.solve(damping * eye - hessian(u), gradient(u))
        better = objective(new) >= objective(u)
        damping = jnp.clip(jnp.where(better, damping / 4, damping * 8), 1e-6, 1e8)
        return jnp.where(better, new, u), damping

    u, _ = jax.lax.fori_loop(0, 200, step, (jnp.zeros(g.size, g.dtype), jnp.ones((), g.dtype)))
    flat = jnp.linalg.norm(gradient(u)) <= jnp.sqrt(_slack(g)) * (1 + jnp.linalg.norm(g))
    return jnp.where(flat, objective(u), jnp.inf)
