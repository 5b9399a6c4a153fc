"""Pytrees as named arrays: every structure comes back, and another one is refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from mfpda import InputError
from mfpda.persistence import trees

pytestmark = pytest.mark.quick


class State(NamedTuple):
    theta: object
    batch: object
    rule: object


def state():
    return State(
        theta=jnp.arange(6.0).reshape(2, 3),
        batch=None,
        rule={"mass": jnp.ones(2), "more": (jnp.asarray(3), [jnp.array([True, False]), jnp.zeros((0, 2))])},
    )


def alike(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


def test_leaves_are_named_by_their_places():
    leaves = trees.leaves(state())
    assert list(leaves) == [
        ".theta", ".rule['mass']", ".rule['more'][0]", ".rule['more'][1][0]", ".rule['more'][1][1]",
    ]  # fmt: skip
    assert all(type(leaf) is np.ndarray for leaf in leaves.values())
    assert leaves[".rule['more'][0]"].shape == ()


@pytest.mark.parametrize("template", [state, lambda: jax.eval_shape(state)], ids=["arrays", "shapes"])
def test_a_tree_is_rebuilt_from_its_leaves(template):
    alike(trees.rebuild(trees.leaves(state()), template()), state())


@pytest.mark.parametrize("template", [state, lambda: jax.eval_shape(state)], ids=["arrays", "shapes"])
def test_a_tree_is_unpacked_from_its_data_set(template):
    alike(trees.unpack(trees.pack(state()), template()), state())


def test_a_packed_tree_survives_a_file(tmp_path):
    trees.pack(state()).to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    alike(trees.unpack(xr.load_dataset(tmp_path / "tree.nc", engine="h5netcdf"), state()), state())


def test_more_than_ten_leaves_keep_their_order():
    many = [jnp.full(2, float(k)) for k in range(25)]
    alike(trees.unpack(trees.pack(many), many), many)


def test_leaves_take_the_type_of_the_template():
    found = trees.rebuild({"['a']": np.arange(3, dtype=np.int64)}, {"a": jax.ShapeDtypeStruct((3,), jnp.float32)})
    assert found["a"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ({"a": np.zeros(2)}, r"a run state of 1 arrays .*, found 2 arrays: .*\[2\].*\[3\]"),
        ({"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)}, "a run state of 3 arrays .*, found 2 arrays"),
        ({"a": np.zeros(2), "b": np.zeros(4)}, "a run state of 2 arrays of the shapes .*, found 2 arrays"),
        ({"a": np.zeros(2), "other": np.zeros(3)}, "a run state of 2 arrays of the shapes .*, found 2 arrays"),
        ({"a": np.zeros(2), "b": np.zeros((3, 1))}, "Load with the kernel and the rule of the run"),
    ],
)
def test_another_structure_is_refused(template, match):
    given = {"a": np.ones(2), "b": np.ones(3)}
    with pytest.raises(InputError, match=match):
        trees.rebuild(trees.leaves(given), template)
    with pytest.raises(InputError, match=match):
        trees.unpack(trees.pack(given), template)
