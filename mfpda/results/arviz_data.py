"""The container for a fit's groups: an InferenceData where ArviZ is 0.x, a DataTree from 1.0 on.

This is the only file that knows which ArviZ is installed. Groups are plain ``xarray.Dataset``s until the last moment.
"""

import importlib.metadata
import warnings
from collections.abc import Sequence
from typing import Any

import xarray as xr

from mfpda.errors import InputError

Groups = dict[str, xr.Dataset]


def container(groups: Groups, attributes: dict[str, Any]) -> Any:
    """The groups as the installed ArviZ knows them, with the attributes on the whole."""
    tree = as_tree(groups, attributes)
    if importlib.metadata.version("arviz").startswith("0."):
        inference_data = _arviz().InferenceData(**{name: node.to_dataset() for name, node in tree.children.items()})
        inference_data.attrs.update(attributes)
        return inference_data
    return tree


def as_tree(groups: Groups, attributes: dict[str, Any]) -> xr.DataTree:
    tree = xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    tree.attrs.update(attributes)
    return tree


def groups_of(inference_data: Any) -> Groups:
    """The groups as data sets, of an InferenceData, a DataTree or a Fit."""
    if isinstance(inference_data, xr.DataTree):
        return {name: node.to_dataset() for name, node in inference_data.children.items()}
    groups = getattr(inference_data, "groups", None)
    if isinstance(groups, dict):
        return groups
    if not callable(groups):
        raise InputError("a fit or its idata", type(inference_data).__name__, "Pass fit.idata, or load the file first.")
    return {name: inference_data[name] for name in groups()}


def stacked(runs: Sequence[Groups]) -> Groups:
    """Independent runs as chains. What differs between them gets a chain dim; what is the same stays as it is."""
    first = runs[0]
    for run in runs[1:]:
        for name in ("posterior", "prior"):
            if {v: first[name][v].shape for v in first[name]} != {v: run[name][v].shape for v in run[name]}:
                raise InputError(
                    "fits of one model with equally many particles",
                    f"{name} of sizes {dict(first[name].sizes)} and {dict(run[name].sizes)}",
                    "Stack only runs that differ in their key.",
                )
    together = {}
    for name in first:
        parts = [
            run[name].assign_coords(chain=[k]) if "chain" in run[name].dims else run[name] for k, run in enumerate(runs)
        ]
        which = "different" if name in ("observed_data", "constant_data") else "all"
        together[name] = xr.concat(
            parts, "chain", data_vars=which, coords="minimal", compat="equals", join="outer", combine_attrs="override"
        )
    return together


def summary(dataset: xr.Dataset, diagnostics: bool) -> Any:
    """ArviZ's table of a group's variables, as a pandas DataFrame, with or without R-hat and ESS."""
    return _arviz().summary(dataset, kind="all" if diagnostics else "stats", round_to="none")


def r_hat(dataset: xr.Dataset) -> xr.Dataset:
    """R-hat of every coordinate of every variable, between chains."""
    return _arviz().rhat(dataset)


def effective_sample_size(dataset: xr.Dataset) -> xr.Dataset:
    """The bulk effective sample size of every coordinate of every variable, over all chains."""
    return _arviz().ess(dataset)


def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # ArviZ's own notice at import, once a day
        import arviz  # takes about 2 s, hence late

    return arviz
