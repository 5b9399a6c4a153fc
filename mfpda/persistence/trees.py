"""Pytrees as named arrays, and back."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from mfpda.errors import InputError

Tree = TypeVar("Tree")


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their places in it."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def rebuild(found: Mapping[str, np.ndarray], template: Tree) -> Tree:
    """A pytree of the template's structure with leaves that ``leaves`` gave."""
    places, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(path): kind for path, kind in places}
    if list(wanted) != list(found) or any(found[place].shape != kind.shape for place, kind in wanted.items()):
        raise InputError(
            f"a run state of {len(wanted)} arrays of the shapes that this kernel and rule have",
            f"{len(found)} arrays: {json.dumps({place: list(leaf.shape) for place, leaf in found.items()})}",
            "Load with the kernel and the rule of the run.",
        )
    return jax.tree_util.tree_unflatten(
        structure, [jnp.asarray(found[place], kind.dtype) for place, kind in wanted.items()]
    )


def pack(tree: Any) -> xr.Dataset:
    """The leaves of a pytree as variables that name their places."""
    return xr.Dataset(
        {
            f"leaf_{k}": ([f"leaf_{k}_dim_{axis}" for axis in range(leaf.ndim)], leaf, {"place": place})
            for k, (place, leaf) in enumerate(leaves(tree).items())
        }
    )


def unpack(dataset: xr.Dataset, template: Tree) -> Tree:
    """A pytree of the template's structure with the leaves that ``pack`` stored."""
    stored = [dataset[f"leaf_{k}"] for k in range(len(dataset.data_vars))]
    return rebuild({leaf.attrs["place"]: leaf.values for leaf in stored}, template)
