"""Whether a model is the one of an earlier run: the same names, and the same values at a few of its particles."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.errors import InputError
from mfpda.problem import Problem

FEW = 4  # particles and examples that are compared
Names = dict[str, str | float]


def names(problem: Problem) -> Names:
    """What can be compared before anything is evaluated, in a form that a file can hold."""
    return {
        "sites": json.dumps([[site.name, list(site.shape)] for site in problem.neuron.sites]),
        "loss": type(problem.loss).__name__,
        "temperature": float(problem.temperature),
    }


def values(problem: Problem, thetas: Array) -> dict[str, Array]:
    """Outputs, prior densities and losses of the first few particles at the first few examples."""
    return _values(problem.at(slice(0, FEW)), thetas[:FEW])


@jax.jit
def _values(problem: Problem, thetas: Array) -> dict[str, Array]:
    outputs = problem.outputs_at(thetas, problem.x)
    return {
        "h(theta, x)": outputs,
        "log p0(theta)": jax.vmap(problem.log_prior)(thetas),
        "loss": problem.per_example(problem.loss.value, jnp.mean(outputs, axis=0)),
    }


VALUES = "h(theta, x)", "log p0(theta)", "loss"


def check_names(problem: Problem, earlier: Names) -> None:
    """Refuse a model with other sites, another loss or another temperature."""
    for what, ours in names(problem).items():
        if earlier[what] != ours:
            raise InputError(
                f"the model of that run, with {what} {earlier[what]}", f"{what} {ours}", "Pass that model."
            )


def check_values(problem: Problem, thetas: Array, earlier: dict[str, Array]) -> None:
    """Refuse a model that computes something else."""
    for what, now in values(problem, thetas).items():
        theirs, ours = np.asarray(earlier[what]), np.asarray(now)
        wrong = ~np.isclose(theirs, ours, rtol=1e-3, atol=1e-4)
        if wrong.any():
            raise InputError(
                f"the model of that run, whose {what} is {theirs[wrong][0]:.6g} at one of its particles",
                f"{ours[wrong][0]:.6g}",
                "Pass the model as it was declared for that run.",
            )
