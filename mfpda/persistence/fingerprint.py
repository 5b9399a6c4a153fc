"""Whether a model is the one of an earlier run: the same names, and the same values at a few of its particles."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.errors import InputError
from mfpda.problem.data import Examples
from mfpda.problem.model import Model
from mfpda.problem.outputs import outputs_at

FEW = 4  # particles and examples that are compared
VALUES = "h(theta, x)", "log p0(theta)", "loss"


def names(model: Model, x: Any) -> dict[str, Any]:
    """What can be compared before anything is evaluated, in a form that a file can hold."""
    return {
        "sites": json.dumps([[site.name, list(site.shape)] for site in model.structure(x).sites]),
        "loss": type(model.loss).__name__,
        "temperature": float(model.temperature),
    }


def values(model: Model, thetas: Array, examples: Examples) -> dict[str, Array]:
    """Outputs, prior densities and losses of the first few particles at the first few examples."""
    return _values(model, thetas[:FEW], examples.x[:FEW], None if examples.y is None else examples.y[:FEW])


@jax.jit
def _values(model: Model, thetas: Array, x: Array, y: Any) -> dict[str, Array]:
    outputs = outputs_at(model, thetas, x)
    log_densities = jax.vmap(model.log_prior, in_axes=(0, None))(thetas, x[0])
    losses = model.loss.over_rows(model.loss.value, jnp.mean(outputs, axis=0), y)
    return dict(zip(VALUES, (outputs, log_densities, losses), strict=True))


def check_names(model: Model, x: Any, earlier: dict[str, Any]) -> None:
    """Refuse a model with other sites, another loss or another temperature."""
    for what, ours in names(model, x).items():
        if earlier[what] != ours:
            raise InputError(
                f"the model of that run, with {what} {earlier[what]}", f"{what} {ours}", "Pass that model."
            )


def check_values(model: Model, thetas: Array, examples: Examples, earlier: dict[str, Array]) -> None:
    """Refuse a model that computes something else."""
    for what, now in values(model, thetas, examples).items():
        theirs, ours = np.asarray(earlier[what]), np.asarray(now)
        wrong = ~np.isclose(theirs, ours, rtol=1e-3, atol=1e-4)
        if wrong.any():
            raise InputError(
                f"the model of that run, whose {what} is {theirs[wrong][0]:.6g} at one of its particles",
                f"{ours[wrong][0]:.6g}",
                "Pass the model as it was declared for that run.",
            )
