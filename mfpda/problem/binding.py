"""Bind a user's examples to a model, with every check of one against the other."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.errors import InputError, NotConvexWarning, reason
from mfpda.problem.losses import seen_convex
from mfpda.problem.model import Model
from mfpda.problem.neuron import trace
from mfpda.problem.problem import Problem

CHECKED = 2**20  # numbers that are checked at a time, to save memory
COMPARED = 64  # inputs at which priors must agree


def bind(model: Model, x: object, y: object, warn: bool = True) -> Problem:
    """Return the problem of a model and its examples. Refuse examples that the model cannot use."""
    inputs, labels = _as_numpy(x, "x"), None if y is None else _as_numpy(y, "y")
    if inputs.ndim == 0 or len(inputs) == 0:
        expected = "inputs x with at least one example, first axis over examples"
        raise InputError(expected, f"shape {inputs.shape}", "Check the data.")
    if labels is not None and (labels.ndim == 0 or len(labels) != len(inputs)):
        found = f"{len(inputs)} inputs and " + (f"{len(labels)} labels" if labels.ndim else "a scalar label")
        raise InputError("x and y of equal length", found, "Check how the data was split.")
    _refuse_non_finite("x", inputs)
    if labels is not None:
        _refuse_non_finite("y", labels)
    rows = as_array(inputs)
    outputs = trace(model.declaration, rows[0]).output
    if len(outputs) > 1 or (labels is not None and labels.ndim > 2):
        found = f"outputs of shape {outputs}" + ("" if labels is None else f" and labels of shape {labels.shape}")
        raise InputError("a scalar or a vector for every example", found, "Flatten them: h.ravel(), y.reshape(n, -1).")
    labels = model.loss.check_labels(labels, outputs)
    problem = Problem.of(model, rows, None if labels is None else as_array(labels))
    _check_loss(problem)
    if warn and not model.loss.convex and not seen_convex(model.loss, problem.y, outputs):
        found = "The loss is not convex in its prediction where it was tried."
        advice = "A minimum may be local, and a certificate would not hold. Use a convex loss for global optimality."
        warnings.warn(f"{found} {advice}", NotConvexWarning, stacklevel=4)
    _refuse_prior_of_x(problem)
    return problem


def as_array(a: np.ndarray) -> Array:
    """Copy the array to JAX. If it is read-only (a memory map of mode "r") and of the right type, use it in place."""
    kind = float if np.issubdtype(a.dtype, np.floating) else None
    usable = not a.flags.writeable and a.dtype == jnp.result_type(kind or a.dtype)
    return jax.device_put(a) if usable else jnp.array(a, kind)


def _as_numpy(a: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(a)
    except ValueError as error:
        raise InputError(f"an array {name}", f"ragged rows ({error})", "Give every example the same shape.") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"a real numeric array {name}", f"type {array.dtype}", "Encode its values as numbers.")
    return array


def _refuse_non_finite(name: str, a: np.ndarray) -> None:
    if not np.issubdtype(a.dtype, np.inexact):
        return
    count, first = 0, ""
    rows = max(1, CHECKED * len(a) // max(a.size, 1))
    for start in range(0, len(a), rows):
        bad = ~np.isfinite(a[start : start + rows])
        if bad.any():
            row, *others = np.argwhere(bad)[0]
            first = first or ", ".join(str(int(i)) for i in (start + row, *others))
            count += int(bad.sum())
    if count:
        found = f"{count} NaN or infinite of {a.size}, the first at {name}[{first}]"
        raise InputError(f"finite values in {name}", found, "Drop those examples or fill them in.")


def _check_loss(problem: Problem) -> None:
    """Refuse a loss that does not return a scalar for one example."""
    outputs, y = problem.neuron.output, problem.y
    z = jax.ShapeDtypeStruct(outputs, jnp.result_type(float))
    try:
        value = jax.eval_shape(problem.loss.value, z, None if y is None else y[0])
    except Exception as error:
        expected = f"a loss (z, y) -> scalar for one prediction z of shape {outputs}"
        advice = "It sees one example at a time, and must use jax.numpy so that JAX can trace it."
        raise InputError(expected, reason(error), advice) from error
    if value.shape != ():
        expected = "a loss that returns a scalar for one example"
        raise InputError(expected, f"shape {value.shape}", "Sum over the outputs in it.")


def _refuse_prior_of_x(problem: Problem) -> None:
    """Refuse priors whose log-density differs between inputs by more than rounding. At most 64 rows are compared."""
    rows = np.unique(np.linspace(0, len(problem.x) - 1, COMPARED).astype(int))
    for site, at in zip(problem.neuron.sites, np.asarray(_log_densities(problem.at(rows)), float), strict=True):
        differ = ~np.isclose(at, at[0], rtol=1e-4, atol=1e-4, equal_nan=True)
        if differ.any():
            other = int(differ.argmax())
            found = f"site {site.name!r} with log-density {at[0]:.6g} at x[0], {at[other]:.6g} at x[{rows[other]}]"
            advice = "theta belongs to the neuron, not to an example. Let only the output depend on x, and sample no y."
            raise InputError("priors that do not depend on the input", found, advice)


@jax.jit
def _log_densities(problem: Problem) -> Array:
    """Return log p0 of every site at one theta, on every input."""
    theta = jnp.full(problem.neuron.size, 0.1)
    return jax.vmap(lambda x: jnp.stack(problem.neuron.evaluate(theta, x).log_densities), out_axes=1)(problem.x)
