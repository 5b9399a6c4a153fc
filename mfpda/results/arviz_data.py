"""The container for a fit's groups: an InferenceData with ArviZ 0.x, a DataTree from ArviZ 1.0.

Only this file depends on the version of ArviZ. Everywhere else, groups are plain ``xarray.Dataset``s.
"""

import importlib.metadata
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import xarray as xr

from mfpda.errors import InputError

if TYPE_CHECKING:
    from arviz import InferenceData

Groups = dict[str, xr.Dataset]
RunData: TypeAlias = "xr.DataTree | InferenceData | HasGroups"  # a fit or its idata


class HasGroups(Protocol):
    """The part of a Fit that its ArviZ data come from."""

    @property
    def groups(self) -> Groups: ...


def container(groups: Groups, attributes: Mapping[str, object]) -> "xr.DataTree | InferenceData":
    """Put the groups into the container of the installed ArviZ, with these attributes."""
    tree = as_tree(groups, attributes)
    if not importlib.metadata.version("arviz").startswith("0."):
        return tree
    inference_data = import_arviz().InferenceData(**groups_of(tree))
    inference_data.attrs.update(attributes)
    return inference_data


def as_tree(groups: Groups, attributes: Mapping[str, object]) -> xr.DataTree:
    tree = xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    tree.attrs.update(attributes)
    return tree


def groups_of(inference_data: RunData) -> Groups:
    """Return the groups of an InferenceData, a DataTree or a Fit as data sets."""
    if isinstance(inference_data, xr.DataTree):
        return {name: node.to_dataset() for name, node in inference_data.children.items()}
    groups = getattr(inference_data, "groups", None)
    if isinstance(groups, dict):
        return groups
    if not callable(groups):
        raise InputError("a fit or its idata", type(inference_data).__name__, "Pass fit.idata, or load the file first.")
    return {name: getattr(inference_data, name) for name in groups()}


def stacked(runs: Sequence[Groups]) -> Groups:
    """Stack independent runs as chains. Arrays that differ between runs get a chain dim, and equal ones stay as is."""
    first = runs[0]
    for run in runs[1:]:
        for name in ("posterior", "initial_particles"):
            one, other = first[name], run[name]
            if {site: one[site].shape for site in one} != {site: other[site].shape for site in other}:
                found = f"{name} of sizes {dict(one.sizes)} and {dict(other.sizes)}"
                expected = "fits of one model with the same number of particles"
                raise InputError(expected, found, "Stack only runs that differ in their key.")
    together = {}
    for name in first:
        groups = [run[name] for run in runs]
        parts = [each.assign_coords(chain=[k]) if "chain" in each.dims else each for k, each in enumerate(groups)]
        which = "different" if name in ("observed_data", "constant_data") else "all"
        together[name] = xr.concat(
            parts, "chain", data_vars=which, coords="minimal", compat="equals", join="outer", combine_attrs="override"
        )
    return together


def summary(dataset: xr.Dataset, diagnostics: bool) -> Any:
    """Return ArviZ's table of a group's variables as a pandas DataFrame, with or without R-hat and ESS."""
    return import_arviz().summary(dataset, kind="all" if diagnostics else "stats", round_to="none")


def import_arviz() -> ModuleType:
    """Import ArviZ late, because that takes about 2 s."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # ArviZ 0.x shows a notice once a day
        import arviz

    return arviz
