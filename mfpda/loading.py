"""From a file back to a Fit: the model is code, so it is given again and checked to be the one of the run."""

import json
import os
from typing import Any

import jax
import jax.numpy as jnp

from mfpda import arviz_data, fingerprint, history, storage, tuning
from mfpda.data import Examples
from mfpda.errors import InputError, Status
from mfpda.fitted import Fit, initial_state
from mfpda.kernels import KERNELS, Kernel
from mfpda.model import Model
from mfpda.registry import Registry
from mfpda.rules import RULES, Rule
from mfpda.starts import STARTS, Start


def load(
    path: str | os.PathLike[str],
    model: Model,
    *,
    kernel: Kernel | None = None,
    rule: Rule | None = None,
    start: Start | None = None,
) -> Fit:
    """A saved fit, which predicts, samples and goes on (``fit(..., resume=loaded)``) as the original did.

    The model is code and is not in the file: give the one it was made with. Kernel, rule and start are found by their
    registered names; give those that are not registered.
    """
    if not isinstance(model, Model):
        raise InputError("the Model of the run", repr(model), "Call load(path, model).")
    tree = storage.read(path)
    if storage.RUN_STATE not in tree.children:
        raise InputError("a file of one saved fit", "several runs stacked as chains", "Read it with arviz.from_netcdf.")
    groups = arviz_data.groups_of(tree)
    packed = groups.pop(storage.RUN_STATE)
    stored = packed.attrs
    plugs = json.loads(stored["plugs"])
    kernel = _rebuilt(KERNELS, plugs["kernel"], kernel)
    rule = _rebuilt(RULES, plugs["rule"], rule)
    start = _rebuilt(STARTS, plugs["start"], start)
    x = groups["constant_data"]["x"].values
    y = groups["observed_data"]["y"].values if "observed_data" in groups else None
    fingerprint.check_names(model, jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stored)
    is_stream, batch_size = bool(stored["is_stream"]), int(stored["batch_size"]) or None
    examples = Examples(jnp.asarray(x), None if y is None else jnp.asarray(y))
    particles = groups["posterior"].sizes["draw"]
    template = _template(model, examples, packed, is_stream, batch_size, kernel, rule, particles)
    extra = storage.unpack(packed, template)
    if is_stream:
        examples = Examples(*extra["buffer"])
    fingerprint.check_values(model, extra["state"].ensemble.theta, examples, extra["fingerprint"])
    return Fit(
        model=model,
        rule=rule,
        kernel=kernel,
        start=start,
        examples=examples,
        is_stream=is_stream,
        batch_size=batch_size,
        outer_steps=int(stored["outer_steps"]),
        inner_steps=int(stored["inner_steps"]),
        state=extra["state"],
        initial={str(name): groups["prior"][name].values[0] for name in groups["prior"]},
        rows=tuple(history.rows_from(groups["particle_history"], groups["outer_stats"])),
        status=Status(stored["status"]),
        attributes={str(name): value for name, value in tree.attrs.items()},
    )


def _rebuilt(registry: Registry, description: dict[str, Any], given: Any) -> Any:
    plug = registry.rebuilt(description) if given is None else registry.resolve(given)
    if registry.name_of(plug) != description["name"]:
        found, advice = registry.name_of(plug), f"Pass the {registry.kind} it was made with, or none."
        raise InputError(f"the {registry.kind} of the run, {description['name']}", found, advice)
    return tuning.plan(plug, 1)[0] if registry is KERNELS else plug


def _template(model, examples, packed, is_stream, batch_size, kernel, rule, particles) -> Any:
    """The shapes of what was packed, worked out from the model and the plugs."""
    buffer: tuple[Any, ...] = ()
    if is_stream:
        leaves = [leaf for leaf in packed.data_vars.values() if leaf.attrs["place"].startswith("['buffer']")]
        buffer = tuple(jax.ShapeDtypeStruct(leaf.shape, jnp.result_type(leaf.dtype)) for leaf in leaves)
        examples = Examples(*(buffer + (None,) * (2 - len(buffer))))
        buffer = tuple(examples)
    batch = None if batch_size is None else jax.ShapeDtypeStruct((batch_size,), jnp.int32)

    def shapes(key, examples, batch):
        state = initial_state(key, model, examples, batch, kernel, rule, particles)
        return {"state": state, "fingerprint": fingerprint.values(model, state.ensemble.theta, examples)}

    return jax.eval_shape(shapes, jax.random.key(0), examples, batch) | {"buffer": buffer}
