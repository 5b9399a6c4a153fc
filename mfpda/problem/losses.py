"""Losses l(z, y), convex in the prediction z, each with its derivative and its convex conjugate.

All methods take one example: z is a scalar, or a vector if there are several outputs. The conjugate is

    l*(g, y) = sup_z [ g . z - l(z, y) ]

and +inf outside its domain. Fenchel's inequality l(z) + l*(g) >= g . z is an equality exactly if g = l'(z). The
certificate rests on this.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp, xlogy
from jax.typing import ArrayLike

from mfpda.errors import InputError

Shape = tuple[int, ...]
Label = ArrayLike | None  # y of one example
Function = Callable[..., Array]  # (z, y) -> scalar


@dataclass_transform(frozen_default=True)
class Loss:
    """A loss l(z, y). A subclass must define ``value``; everything else has a default.

    Every subclass is made a frozen dataclass, so two losses with the same settings are equal and compile once.
    Set ``convex = True`` if the loss is convex in z. Otherwise a few points are tried, and a loss that is not convex
    there brings a warning and no certificate.

    >>> class Cosh(Loss):
    ...     scale: float = 1.0
    ...     convex = True
    ...     def value(self, z, y):
    ...         return jnp.log(jnp.cosh((z - y) / self.scale))
    >>> print(f"{Cosh().derivative(1.0, 0.0):.4f} {Cosh().conjugate(0.5, 0.0):.4f} {Cosh(scale=2.0)}")
    0.7616 0.1308 Cosh(scale=2.0)
    """

    convex = False

    def __init_subclass__(cls) -> None:
        earlier = next(base for base in cls.__mro__[1:] if "value" in vars(base))
        if "value" in vars(cls) and earlier is not Loss:  # another value: no formula is inherited
            for name in ("convex", "derivative", "conjugate", "domain", "projected", "strong_convexity"):
                if name not in vars(cls):
                    setattr(cls, name, vars(Loss)[name])
        if "__init__" in vars(cls):  # two losses would be equal whatever their settings are
            advice = "Declare each as `name: float = 1.0` in the class. Check their values in __post_init__."
            raise InputError(f"the settings of {cls.__name__} as fields", "an __init__", advice)
        dataclass(frozen=True)(cls)

    def value(self, z: ArrayLike, y: Label) -> Array:
        """Return l(z, y)."""
        raise NotImplementedError

    def derivative(self, z: ArrayLike, y: Label) -> Array:
        """Return l'(z, y), the derivative in z."""
        return jax.grad(self.value)(_floating(z), y)

    def conjugate(self, g: ArrayLike, y: Label) -> Array:
        """Return l*(g, y). The default maximises numerically."""
        g = _floating(g)
        return (_vector_conjugate if g.ndim else _scalar_conjugate)(self.value, g, y)

    def domain(self, y: Label) -> tuple[ArrayLike, ArrayLike]:
        """Return the ends of the smallest box that contains every g with a finite l*(g, y)."""
        return -jnp.inf, jnp.inf

    def projected(self, g: ArrayLike, y: Label) -> Array:
        """Move a dual back into the domain if rounding took it out."""
        return jnp.clip(_floating(g), *self.domain(y))

    def strong_convexity(self, bound: float) -> float:
        """Return the largest mu for which l(., y) is mu-strongly convex on |z| <= bound, or 0 if none is known."""
        return 0.0

    def check_output(self, shape: Shape) -> None:
        """Refuse a neuron if this loss cannot take the shape of its output."""

    def check_labels(self, y: np.ndarray | None, outputs: Shape) -> np.ndarray | None:
        """Return all labels as an array of the right type. Refuse labels that this loss does not allow."""
        return y

    def over_rows(self, function: Function, z: Array, y: Label) -> Array:
        """Map ``function``, a method of this loss, over the rows of z and y. y may be None."""
        return jax.vmap(function, in_axes=(0, None if y is None else 0))(z, y)


class Squared(Loss):
    """Half the squared distance, 0.5 |z - y|^2, for regression with one or several outputs.

    l'(z) = z - y. l*(g) = g . y + 0.5 |g|^2 is finite everywhere.
    """

    convex = True

    def value(self, z, y):
        return 0.5 * jnp.sum(jnp.square(z - y))

    def derivative(self, z, y):
        return jnp.subtract(z, y)

    def conjugate(self, g, y):
        return jnp.sum(jnp.multiply(g, y) + 0.5 * jnp.square(g))

    def strong_convexity(self, bound):
        return 1.0

    def check_labels(self, y, outputs):
        y = _required(y, "a number for each input")
        if y.shape[1:] != outputs:
            advice = "Reshape y (y.squeeze() for a column), or change what the neuron returns."
            raise InputError(f"labels y of the neuron's shape {(len(y), *outputs)}", f"shape {y.shape}", advice)
        return y.astype(float)


class _Binary(Loss):
    """A loss for labels y of -1 and 1, whose duals have -y g between 0 and ``steepest``."""

    convex = True
    steepest = 1

    def domain(self, y):
        return jnp.minimum(-self.steepest * y, 0), jnp.maximum(-self.steepest * y, 0)

    def check_output(self, shape):
        if shape != ():
            advice = "Return a scalar, h[0]." if shape == (1,) else "Return a scalar, or use losses.Softmax()."
            raise InputError(f"a neuron with a scalar output for {type(self).__name__}", f"shape {shape}", advice)

    def check_labels(self, y, outputs):
        y = _required(y, "a label -1 or 1 for each input", ndim=1)
        advice = "Use 2 * y - 1." if np.isin(y, (0, 1)).all() else "Map the two classes to -1 and 1."
        _refuse(y, ~np.isin(y, (-1, 1)), "labels -1 and 1", advice)
        return y.astype(float)


class Logistic(_Binary):
    """log(1 + exp(-y z)) for labels y of -1 and 1.

    l'(z) = -y / (1 + exp(y z)). With a = -y g, l*(g) = a log a + (1 - a) log(1 - a) on 0 <= a <= 1.
    """

    def value(self, z, y):
        return jax.nn.softplus(-y * z)

    def derivative(self, z, y):
        return -y * jax.nn.sigmoid(-y * z)

    def conjugate(self, g, y):
        a = -y * _floating(g)
        inside = jnp.clip(a, 0, 1)
        entropy = xlogy(inside, inside) + xlogy(1 - inside, 1 - inside)
        return jnp.where(jnp.abs(a - inside) <= _slack(a), entropy, jnp.inf)

    def strong_convexity(self, bound):
        return float(jax.nn.sigmoid(bound) * jax.nn.sigmoid(-bound))


class SmoothedHinge(_Binary):
    """The paper's smoothed hinge (Appendix D.2). With m = y z: 0 if m >= 1/2, 1 - 4m if m < 0, (1 - 2m)^2 between.

    With a = y g, l*(g) = a/2 + a^2/16 on -4 <= a <= 0.
    """

    steepest = 4

    def value(self, z, y):
        m = y * z
        return jnp.where(m >= 0.5, 0.0, jnp.where(m >= 0, jnp.square(1 - 2 * m), 1 - 4 * m))

    def derivative(self, z, y):
        return -4 * y * jnp.clip(1 - 2 * y * z, 0, 1)

    def conjugate(self, g, y):
        a = y * _floating(g)
        inside = jnp.clip(a, -4, 0)
        return jnp.where(jnp.abs(a - inside) <= 4 * _slack(a), inside / 2 + jnp.square(inside) / 16, jnp.inf)


class Softmax(Loss):
    """Cross-entropy after softmax, log sum_k exp(z_k) - z_y, for labels y of 0..C-1 (Appendix E.2 of the paper).

    l'(z) = softmax(z) - e_y. With p = g + e_y, l*(g) = sum_k p_k log p_k on the simplex.
    """

    convex = True

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
            expected = "a neuron with one output per class (a vector of at least 2) for Softmax"
            advice = "Return a vector such as a * jnp.tanh(x @ w) with a of shape (C,)."
            raise InputError(expected, f"shape {shape}", advice)

    def check_labels(self, y, outputs):
        y = _required(y, "a class 0..C-1 for each input", ndim=1)
        wrong = (y != np.round(y)) | (y < 0) | (y >= outputs[0])
        expected = f"labels 0..{outputs[0] - 1}, one per output of the neuron"
        _refuse(y, wrong, expected, "Count classes from 0, and give the neuron one output per class.")
        return y.astype(np.int32)


class FromFunction(Loss):
    """A function (z, y) -> scalar as a loss. JAX differentiates it, and its conjugate is found numerically."""

    function: Function

    def value(self, z, y):
        return self.function(z, y)


HALVINGS = 24  # of an interval on which l' changes
DOMAIN_POINTS = (0.0, 1.0, -1.0, 0.01, -0.01, 100.0, -100.0)  # at least one should be in a loss's domain


def as_loss(loss: Loss | Function) -> Loss:
    """Return the loss itself, or make one from a function (z, y) -> scalar."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type):
        raise InputError("a loss object", f"the class {loss.__name__}", f"Call it: {loss.__name__}().")
    if callable(loss):
        return FromFunction(loss)
    expected = "a loss from mfpda.losses or a function (z, y) -> scalar"
    raise InputError(expected, repr(loss), "Use mfpda.losses.Squared(), for example.")


def seen_convex(loss: Loss, y: Array | None, outputs: Shape, radius: float = 10.0) -> bool:
    """Try a few labels and fixed directions up to |z| = radius. Return whether l(., y) was convex on all of them."""
    directions = _directions(outputs)
    line = np.linspace(-radius, radius, 81)
    z = jnp.asarray((directions[:, None, :] * line[:, None]).reshape(-1, *outputs), float)

    def bend(label):
        values = jax.vmap(loss.value, (0, None))(z, label).reshape(len(directions), len(line))
        second = values[:, 2:] - 2 * values[:, 1:-1] + values[:, :-2]
        second = second + 1e-5 * (1 + jnp.abs(values[:, 1:-1]))
        return jnp.min(jnp.where(jnp.isfinite(second), second, 0))  # outside its domain a loss is not finite: -log z

    return all(not bend(label) < 0 for label in _few_labels(y))


def seen_only_kinks(loss: Loss, y: Array | None, outputs: Shape) -> bool:
    """Return whether l' changes only in jumps, with l'' = 0 at all points tried, as for |z - y| and the hinge.

    The points are on lines through 0, for a few labels. Intervals on which l' changes are halved until even a narrow
    curved piece is found.
    """
    if loss.strong_convexity(1.0) > 0:
        return False
    reach = 10.0 if y is None or not np.size(y) else 10.0 + 2 * float(jnp.max(jnp.abs(jnp.asarray(y))))
    line = jnp.linspace(-reach, reach, 81)
    directions = jnp.asarray(_directions(outputs).reshape(-1, *outputs), float)
    tried = [_slopes(loss, directions, line, label) for label in _few_labels(y)]
    return any(bool(changes) for changes, _ in tried) and not any(bool(curved) for _, curved in tried)


@functools.partial(jax.jit, static_argnames="loss")
def _slopes(loss: Loss, directions: Array, line: Array, label: Label) -> tuple[Array, Array]:
    """Return whether l' changes along z = s direction, and whether l'' differs from 0 at a point tried there."""

    def along(s, direction):
        slope = lambda s: jnp.sum(direction * loss.derivative(s * direction, label))  # noqa: E731
        return jax.jvp(slope, (s,), (jnp.ones_like(s),))

    derivatives = jax.vmap(jax.vmap(along, (0, None)))

    def halve(_, carry):
        low, high, at_low, curved = carry
        middle = (low + high) / 2
        at_middle, second = derivatives(middle, directions)
        left = at_middle != at_low  # the change, or the first of several
        low, at_low = jnp.where(left, low, middle), jnp.where(left, at_low, at_middle)
        return low, jnp.where(left, middle, high), at_low, curved | jnp.any(jnp.isfinite(second) & (second != 0))

    points = jnp.broadcast_to(line, (len(directions), len(line)))
    slopes, _ = derivatives(points, directions)
    steps = jnp.diff(slopes, axis=1)
    begun = points[:, :-1], points[:, 1:], slopes[:, :-1], jnp.zeros((), bool)
    return jnp.any(jnp.isfinite(steps) & (steps != 0)), jax.lax.fori_loop(0, HALVINGS, halve, begun)[-1]


def _directions(outputs: Shape) -> np.ndarray:
    """Return a few fixed directions of z, as rows."""
    size = int(np.prod(outputs))
    return np.concatenate([np.eye(size)[:16], np.cos(np.outer(np.arange(1, 5), np.arange(1, size + 1)))])


def _few_labels(y: Array | None) -> Any:
    return [None] if y is None else jnp.sort(y, axis=0)[np.linspace(0, len(y) - 1, 8).astype(int)]


def _floating(z: ArrayLike) -> Array:
    return jnp.asarray(z, jnp.result_type(z, float))


def _slack(a: Array) -> float:
    """Return how far rounding alone can move a dual out of its domain."""
    return 64 * float(jnp.finfo(a.dtype).eps)


def _required(y: object, what: str, ndim: int | None = None) -> np.ndarray:
    if y is None:
        raise InputError(what, "y = None", "Give data as (x, y).")
    y = np.asarray(y)
    if ndim is not None and y.ndim != ndim:
        raise InputError(f"{what}, an array of {ndim} dimension", f"shape {y.shape}", "Try y.squeeze() or y.argmax(1).")
    return y


def _refuse(y: np.ndarray, wrong: np.ndarray, expected: str, advice: str) -> None:
    if wrong.any():
        others = "1 other label" if wrong.sum() == 1 else f"{int(wrong.sum())} other labels"
        found = f"{others}, the first y[{int(np.argmax(wrong))}] = {y[wrong][0]}"
        raise InputError(expected, found, advice)


def _scalar_conjugate(value: Function, g: Array, y: Label) -> Array:
    """Maximise the concave g u - l(u, y) by bisection on the sign of g - l'(u, y), which works at kinks too.

    The bracket starts at a point of the loss's domain and doubles outwards, up to 2^40. Where the loss is not finite
    (outside its domain, or by overflow), the slope is taken to point back inside. If the slope at the last point still
    points outwards by more than rounding, the supremum is infinite.
    """
    derivative = jax.grad(value)
    known = lambda u: jnp.isfinite(value(u, y)) & jnp.isfinite(derivative(u, y))  # noqa: E731
    tried = jnp.asarray(DOMAIN_POINTS, g.dtype)
    inside = tried[jnp.argmax(jax.vmap(known)(tried))]
    slope = lambda u: jnp.where(known(u), g - derivative(u, y), jnp.sign(inside - u))  # noqa: E731

    def end(sign):  # move outwards while the objective rises
        rises = lambda width: (sign * slope(inside + sign * width) > 0) & (width < 2.0**40)  # noqa: E731
        return inside + sign * jax.lax.while_loop(rises, lambda width: 2 * width, jnp.ones((), g.dtype))

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


def _vector_conjugate(value: Function, g: Array, y: Label) -> Array:
    """Maximise the concave g . u - l(u, y) by damped Newton steps. Return inf if the gradient stays away from 0."""
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
