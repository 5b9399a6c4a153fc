"""Files: written in one piece, refused where they cannot be written or are not ours."""

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from mfpda import InputError
from mfpda.persistence import files

pytestmark = pytest.mark.quick


def tree(**attributes):
    """The least that a file of a saved fit has."""
    posterior = xr.Dataset({"w": (("chain", "draw"), np.arange(6.0).reshape(1, 6))})
    attributes = {"creator": "mfpda", "format": files.FORMAT, "status": "finished"} | attributes
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), "/posterior": posterior})


def test_a_tree_comes_back(tmp_path):
    files.write(tmp_path / "run.nc", tree(model="Model(neuron)"))
    found = files.read(tmp_path / "run.nc")
    assert found.attrs["model"] == "Model(neuron)"
    xr.testing.assert_identical(found["posterior"].to_dataset(), tree()["posterior"].to_dataset())
    assert os.listdir(tmp_path) == ["run.nc"]
    (tmp_path / "run.nc").unlink()  # it was read whole
    np.testing.assert_array_equal(found["posterior"]["w"].values, np.arange(6.0)[None])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted():
        with files.in_one_piece(path) as unfinished:
            unfinished.write_text("half of the n")
            assert path.read_text() == "old"
            raise error

    with pytest.raises(type(error)):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_appears_when_it_is_finished(tmp_path):
    with files.in_one_piece(tmp_path / "file") as unfinished:
        unfinished.write_text("new")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_name_without_a_folder_is_in_the_present_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write("run.nc", tree())
    assert files.read("run.nc").attrs["creator"] == "mfpda"


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("", "the name of a file to write, found the folder.*run.nc"),
        ("none/run.nc", "a file in a folder that can be written to, found .*none', which does not exist"),
        ("file/run.nc", "a file in a folder that can be written to, found .*file', which does not exist"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(tmp_path, path, match):
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(InputError, match=match):
        files.check_writable(tmp_path / path)
    with pytest.raises(InputError, match=match):
        files.write(tmp_path / path, tree())
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc here")
def test_a_folder_that_takes_no_files_is_refused():
    with pytest.raises(InputError, match="which cannot be written to"):
        files.check_writable("/proc/run.nc")  # there not even root can


def test_checking_leaves_nothing_behind(tmp_path):
    files.check_writable(tmp_path / "run.nc")
    assert os.listdir(tmp_path) == []


def refused(path, match):
    with pytest.raises(InputError, match=match) as caught:
        files.read(path)
    assert str(caught.value).startswith("Expected a file of ")


def test_no_file(tmp_path):
    refused(tmp_path / "run.nc", "found no file at .*run.nc.*Fit.save")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.97])
def test_a_file_that_is_cut_short(tmp_path, share):
    files.write(tmp_path / "run.nc", tree())
    whole = (tmp_path / "run.nc").read_bytes()
    (tmp_path / "run.nc").write_bytes(whole[: int(share * len(whole))])
    refused(tmp_path / "run.nc", f"a file of {int(share * len(whole))} bytes that is no netCDF or is cut short")


def test_a_text(tmp_path):
    (tmp_path / "run.nc").write_text("not a fit at all")
    refused(tmp_path / "run.nc", "a file of 16 bytes that is no netCDF or is cut short")


def test_a_file_of_another_program(tmp_path):
    xr.Dataset({"a": ("b", [1.0])}).to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    refused(tmp_path / "run.nc", "a netCDF file that mfpda did not write.*Fit.save")


def test_a_file_without_particles(tmp_path):
    xr.Dataset(attrs={"creator": "mfpda"}).to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    refused(tmp_path / "run.nc", "a netCDF file that mfpda did not write")


def test_the_data_set_of_a_study(tmp_path):
    files.write_dataset(xr.Dataset({"a": ("b", [1.0])}, attrs={"study": "rules"}), tmp_path / "run.nc")
    refused(tmp_path / "run.nc", "the data set of the study 'rules'.*Open it with xarray")


def test_a_file_of_a_later_format(tmp_path):
    files.write(tmp_path / "run.nc", tree(format=files.FORMAT + 1))
    refused(tmp_path / "run.nc", f"format {files.FORMAT} or older, found format {files.FORMAT + 1}.*newer mfpda")


def test_a_data_set_comes_back(tmp_path):
    dataset = xr.Dataset(
        {
            "float": ("seed", np.array([1.5, np.nan])),
            "int": ("seed", np.array([1, 2])),
            "bool": ("seed", np.array([True, False])),
            "text": ("seed", np.array(["a", "b"], dtype=object)),
            "scalar": ((), 3.0),
        },
        coords={"seed": [0, 1]},
        attrs={"study": "rules", "seconds": 1.5},
    )
    files.write_dataset(dataset, tmp_path / "study.nc")
    found = files.read_dataset(tmp_path / "study.nc")
    xr.testing.assert_equal(found, dataset)
    assert found["bool"].dtype == bool
    assert dict(found.attrs) == dataset.attrs
    assert os.listdir(tmp_path) == ["study.nc"]


def test_a_data_set_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"the data set of a study, found no file at .*Run the study first"):
        files.read_dataset(tmp_path / "study.nc")
