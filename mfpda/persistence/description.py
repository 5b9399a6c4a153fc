"""A run's attributes, settings and plugs, converted to a form that files can hold, and back."""

import dataclasses
import functools
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.errors import InputError, Status
from mfpda.judging import Certificate
from mfpda.kernels import KERNELS, Kernel
from mfpda.persistence import fingerprint
from mfpda.persistence.files import FORMAT
from mfpda.problem import Model, Problem
from mfpda.progress import Progress, Row, RunState, Settings, initial_state
from mfpda.registry import Description, Registry
from mfpda.rules import RULES, Rule
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Start

Facts = Mapping[Any, Any]
Plugs = tuple[Kernel, Rule, Start]


@functools.cache
def versions() -> dict[str, str]:
    return {f"{name}_version": importlib.metadata.version(name) for name in ("mfpda", "jax", "numpyro", "arviz")}


def provenance(key: Array, model: Model) -> dict[str, str | int | float]:
    """What is known of a run when it begins: versions, model and key."""
    return {
        "creator": "mfpda",
        "format": FORMAT,
        **versions(),
        "model": repr(model),
        "temperature": float(model.temperature),
        "key": json.dumps(np.asarray(jax.random.key_data(key)).tolist()),
    }


def attributes_of(progress: Progress, status: Status) -> dict[str, Any]:
    """Provenance, settings and status of a run, as ArviZ data and files hold them."""
    settings = json.dumps(dataclasses.asdict(progress.settings))
    return {**progress.provenance, "settings": settings, "status": status.value}


def settings_of(attributes: Facts) -> Settings:
    """The settings in these attributes."""
    return Settings(**json.loads(attributes["settings"]))


def describe(progress: Progress, status: Status) -> dict[str, Any]:
    """What a run needs to continue, besides arrays, in a form that both JSON and netCDF can store."""
    plugs = {
        "kernel": KERNELS.describe(progress.kernel),
        "rule": RULES.describe(progress.rule),
        "start": STARTS.describe(progress.start),
    }
    return {
        "is_stream": int(progress.is_stream),
        "batch_size": progress.settings.batch_size or 0,
        "outer_steps": progress.t,
        "inner_steps": progress.inner_steps,
        "particles": len(progress.state.ensemble.theta),
        "status": status.value,
        "plugs": json.dumps(plugs),
        "certificate": "" if progress.certificate is None else progress.certificate.to_json(),
        **fingerprint.names(progress.problem),
    }


def restore(
    facts: Facts,
    attributes: Facts,
    problem: Problem,
    plugs: Plugs,
    state: RunState,
    initial: dict[str, np.ndarray],
    prior: dict[str, np.ndarray],
    rows: list[Row],
    certified: np.ndarray | None,
) -> Progress:
    """Rebuild the ``Progress`` that ``describe`` and ``attributes_of`` described.

    ``certified`` are the predictions of its certificate, if it has one.
    """
    kernel, rule, start = plugs
    return Progress(
        problem=problem,
        rule=rule,
        kernel=kernel,
        start=start,
        settings=settings_of(attributes),
        is_stream=bool(facts["is_stream"]),
        provenance={str(name): value for name, value in attributes.items() if name not in ("settings", "status")},
        t=int(facts["outer_steps"]),
        inner_steps=int(facts["inner_steps"]),
        state=state,
        initial=initial,
        prior=prior,
        rows=tuple(rows),
        certificate=None if certified is None else Certificate.from_json(facts["certificate"], certified),
    )


def rebuild_plugs(facts: Facts, kernel: object, rule: object, start: object) -> Plugs:
    """The plugs of a saved run: those that the user gives, or those that were described."""
    plugs = json.loads(facts["plugs"])
    found = _rebuild(KERNELS, plugs["kernel"], kernel)
    return tuning.plan(found, 1)[0], _rebuild(RULES, plugs["rule"], rule), _rebuild(STARTS, plugs["start"], start)


def _rebuild(registry: Registry, description: Description, given: object) -> Any:
    plug = registry.rebuild(description) if given is None else registry.resolve(given)
    if registry.name_of(plug) != description["name"]:
        found, advice = registry.name_of(plug), f"Pass the {registry.kind} that the run was made with, or leave it out."
        raise InputError(f"the {registry.kind} of the run, {description['name']}", found, advice)
    return plug


def state_shapes(problem: Problem, facts: Facts, kernel: Kernel, rule: Rule) -> RunState:
    """The shapes of a run's state."""
    size = int(facts["batch_size"])
    batch = jax.ShapeDtypeStruct((size,), jnp.int32) if size else None
    shapes = lambda key, problem, batch: initial_state(key, problem, batch, kernel, rule, int(facts["particles"]))  # noqa: E731
    return jax.eval_shape(shapes, jax.random.key(0), problem, batch)
