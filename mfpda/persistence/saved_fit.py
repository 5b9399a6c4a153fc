"""A run in a netCDF file that ArviZ reads: its state is in a group of its own, from which the run can continue."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from mfpda.errors import InputError, Status
from mfpda.persistence import fingerprint, trees
from mfpda.persistence.description import Plugs, describe, rebuild_plugs, restore, settings_of, state_shapes
from mfpda.problem import Blocks, Model, Problem
from mfpda.progress import Progress, rows_from

RUN_STATE = "run_state"


def state_group(progress: Progress, status: Status) -> xr.Dataset:
    """The group that a run can continue from."""
    problem = progress.problem
    values = fingerprint.values(problem, progress.state.ensemble.theta)
    buffer = (problem.x, problem.y) if progress.is_stream else ()
    certified = () if progress.certificate is None else (progress.certificate.predictions,)
    packed = trees.pack({"state": progress.state, "fingerprint": values, "buffer": buffer, "certified": certified})
    return packed.assign_attrs(describe(progress, status))


def read(tree: xr.DataTree, model: Model, kernel: object, rule: object, start: object) -> tuple[Progress, Status]:
    """The run in a tree that ``Fit.save`` wrote, with its own plugs or those that are given."""
    if RUN_STATE not in tree.children:
        raise InputError("a file of one saved fit", "several runs stacked as chains", "Read it with arviz.from_netcdf.")
    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    packed = groups.pop(RUN_STATE)
    facts, blocks = packed.attrs, Blocks(settings_of(tree.attrs).block_rows)
    plugs = rebuild_plugs(facts, kernel, rule, start)
    x = jnp.asarray(groups["constant_data"]["x"].values)
    y = jnp.asarray(groups["observed_data"]["y"].values) if "observed_data" in groups else None
    problem = Problem.of(model, x, y, blocks)
    fingerprint.check_names(problem, facts)
    extra = trees.unpack(packed, _template(problem, packed, plugs))
    if facts["is_stream"]:
        problem = Problem.of(model, *extra["buffer"]).in_blocks(blocks)
    fingerprint.check_values(problem, extra["state"].ensemble.theta, extra["fingerprint"])
    groups.setdefault("initial_particles", groups["prior"])  # files of earlier versions have no such group
    initial, prior = (
        {str(site): groups[name][site].values[0] for site in groups[name]} for name in ("initial_particles", "prior")
    )
    rows = rows_from(groups["particle_history"], groups["outer_stats"])
    certified = np.asarray(extra["certified"][0]) if extra["certified"] else None
    progress = restore(facts, tree.attrs, problem, plugs, extra["state"], initial, prior, rows, certified)
    return progress, Status(facts["status"])


def _template(problem: Problem, packed: xr.Dataset, plugs: Plugs) -> dict[str, Any]:
    """The shapes of what was packed, worked out from the model and the plugs."""
    buffer: tuple[Any, ...] = ()
    if packed.attrs["is_stream"]:
        leaves = [leaf for leaf in packed.data_vars.values() if leaf.attrs["place"].startswith("['buffer']")]
        empty = [jnp.zeros(leaf.shape, jnp.result_type(leaf.dtype)) for leaf in leaves]
        buffer = (empty[0], empty[1] if len(empty) > 1 else None)
        problem = Problem.of(problem.model, *buffer)
    kernel, rule, _ = plugs
    state = state_shapes(problem, packed.attrs, kernel, rule)
    values = jax.eval_shape(fingerprint.values, problem, state.ensemble.theta)
    predictions = jax.ShapeDtypeStruct((len(problem.x), *problem.neuron.output), jnp.result_type(float))
    certified = (predictions,) if packed.attrs.get("certificate") else ()
    return {"state": state, "fingerprint": values, "buffer": buffer, "certified": certified}
