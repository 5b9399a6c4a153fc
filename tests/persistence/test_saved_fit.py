"""Saved fits: the same run from a file, and files that are not ours, are cut short, or belong to another model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr

import mfpda
from mfpda import InputError, Model, Status, Stream
from mfpda.persistence import files, saved_fit
from mfpda.problem import losses
from tests.helpers import draw, same

NORMAL = dist.Normal(0, 1)


@pytest.fixture(scope="module")
def fit(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)


@pytest.fixture
def path(fit, tmp_path):
    fit.save(tmp_path / "run.nc")
    return tmp_path / "run.nc"


def test_a_fit_comes_back(fit, path, small):
    loaded = mfpda.load(path, small.model)
    same(loaded, fit)
    assert loaded.status is Status.FINISHED
    assert loaded.settings == fit.settings
    assert loaded.attributes == fit.attributes
    assert (loaded.outer_steps, loaded.progress.inner_steps) == (fit.outer_steps, fit.progress.inner_steps)
    np.testing.assert_array_equal(loaded.problem.x, fit.problem.x)
    np.testing.assert_array_equal(loaded.problem.y, fit.problem.y)
    np.testing.assert_array_equal(loaded.dual, fit.dual)


def test_a_file_of_an_earlier_version_comes_back(fit, path, small):
    """It has no certificate, and its first particles are in the group of the prior."""
    tree = xr.open_datatree(path, engine="h5netcdf").load()
    tree.close()
    del tree["initial_particles"]
    del tree["run_state"].attrs["certificate"]
    older = path.with_name("older.nc")
    tree.to_netcdf(older, engine="h5netcdf")
    loaded = mfpda.load(older, small.model)
    same(loaded, fit)
    assert loaded.certificate is None


def test_the_buffer_of_a_stream_comes_back(small, tmp_path):
    arguments = small.quick | {"outer_steps": 2, "batch_size": 5}
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), **arguments)
    fit.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", small.model)
    same(loaded, fit)
    assert loaded.progress.is_stream
    for part in ("x", "y", "weights"):
        np.testing.assert_array_equal(getattr(loaded.problem, part), getattr(fit.problem, part))
    assert len(loaded.problem.x) == 20  # room for four batches, two of them drawn


def test_a_loss_without_labels_comes_back(small, tmp_path):
    model = Model(small.model.declaration.neuron, lambda z, y: (z - 1) ** 2, 0.02)
    arguments = small.quick | {"outer_steps": 1}
    fit = mfpda.fit(jax.random.key(0), model, (small.x, None), **arguments)
    fit.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", model)
    same(loaded, fit)
    assert loaded.problem.y is None


def test_the_state_is_a_group_of_its_own(fit, path):
    tree = files.read(path)
    assert set(tree.children) == {*fit.groups, saved_fit.RUN_STATE}
    assert tree[saved_fit.RUN_STATE].attrs["outer_steps"] == 8


def test_no_file(small, tmp_path):
    with pytest.raises(InputError, match="no file at"):
        mfpda.load(tmp_path / "none.nc", small.model)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.97])
def test_a_truncated_file(path, small, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"cut short.*Fit.save"):
        mfpda.load(path, small.model)


def test_a_file_of_something_else(path, small):
    path.write_text("not a fit at all")
    with pytest.raises(InputError, match="no netCDF"):
        mfpda.load(path, small.model)


def test_a_netcdf_file_of_another_program(path, small):
    xr.Dataset({"a": ("b", [1.0])}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(InputError, match="mfpda did not write"):
        mfpda.load(path, small.model)


def test_stacked_runs(path, small):
    fits = [mfpda.fit(jax.random.key(k), small.model, small.data, **small.quick) for k in range(2)]
    mfpda.to_inference_data(*fits).to_netcdf(path)
    with pytest.raises(InputError, match="stacked as chains"):
        mfpda.load(path, small.model)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"loss": losses.Logistic()}, "loss Squared, found loss Logistic"),
        ({"temperature": 0.5}, "temperature 0.02, found temperature 0.5"),
        ({"sites": {"w": NORMAL.expand([1]).to_event(1), "c": NORMAL}}, 'sites.*"b".*found sites'),
        ({"sites": {"w": dist.Normal(0, 3).expand([1]).to_event(1), "b": NORMAL}}, "log p0"),
        ({"h": lambda theta, x: 3 * jnp.tanh(x @ theta["w"] + theta["b"])}, "h.theta, x"),
    ],
)
def test_another_model(path, change, match):
    given = {
        "h": lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta.get("b", 0.0)),
        "sites": {"w": NORMAL.expand([1]).to_event(1), "b": NORMAL},
        "loss": losses.Squared(),
        "temperature": 0.02,
    }
    with pytest.raises(InputError, match=match):
        mfpda.load(path, Model.from_function(**(given | change)))


def test_no_model(path):
    with pytest.raises(InputError, match="the Model of the run, found 3"):
        mfpda.load(path, 3)


@pytest.mark.parametrize(
    ("match", "given"),
    [
        ("the kernel of the run, ula, found mala", {"kernel": "mala"}),
        ("the rule of the run, dual_averaging, found latest", {"rule": "latest"}),
        ("the start of the run, warm, found resample", {"start": mfpda.Resample()}),
    ],
)
def test_other_plugs(path, small, match, given):
    with pytest.raises(InputError, match=match):
        mfpda.load(path, small.model, **given)


@pytest.mark.parametrize(("place", "match"), [("none/run.nc", "which does not exist"), ("", "the folder")])
def test_files_that_cannot_be_written(fit, tmp_path, place, match):
    with pytest.raises(InputError, match=match):
        fit.save(tmp_path / place)
