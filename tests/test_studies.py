"""Studies: grids of runs as data sets, claims in words, and the command that makes them."""

import numpy as np
import pytest
import xarray as xr

from mfpda.cli import main
from mfpda.studies import Claim, Estimate, sweep

STUDY = """
import matplotlib.pyplot as plt
import numpy as np
from mfpda.studies import Claim, Estimate, sweep

def study(quick):
    return sweep(lambda size, seed: {"error": 1 / size + 0.01 * seed}, size=[1, 2], seed=range(2 if quick else 3))

def claims(dataset):
    small, large = (Estimate.of(dataset["error"].isel(size=k)) for k in (0, 1))
    return [Claim("larger is better", large.mean < small.mean, f"{large} against {small}")]

def figure(dataset):
    figure, ax = plt.subplots()
    ax.plot(dataset["size"], dataset["error"])
    return figure
"""


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "sizes.py"
    path.write_text(STUDY)
    return str(path)


def test_the_command_writes_data_figure_and_verdict(study_file, tmp_path, capsys):
    out = tmp_path / "results"
    assert main(["study", study_file, "--quick", "--out", str(out)]) == 0
    verdict = "holds: larger is better (0.505 +- 0.005 against 1 +- 0.005)"
    assert verdict in capsys.readouterr().out
    assert (out / "sizes.txt").read_text() == verdict + "\n"
    assert (out / "sizes.png").read_bytes().startswith(b"\x89PNG")
    dataset = xr.open_dataset(out / "sizes.nc", engine="h5netcdf")
    assert dict(dataset.sizes) == {"size": 2, "seed": 2}
    assert dataset.attrs["study"] == "sizes"
    assert dataset.attrs["quick"] == 1
    assert {"seconds", "mfpda_version", "jax_version", "numpyro_version"} <= set(dataset.attrs)


def test_a_full_study_is_not_quick(study_file, tmp_path):
    assert main(["study", study_file, "--out", str(tmp_path)]) == 0
    dataset = xr.open_dataset(tmp_path / "sizes.nc", engine="h5netcdf")
    assert dataset.sizes["seed"] == 3
    assert dataset.attrs["quick"] == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def claims", "def other", "no claims"),
        ("return sweep", "return 1 or sweep", "Expected an xarray.Dataset from study(quick), found int"),
    ],
)
def test_what_is_no_study_is_refused(tmp_path, capsys, old, new, message):
    path = tmp_path / "broken.py"
    path.write_text(STUDY.replace(old, new))
    assert main(["study", str(path), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_refused_before_anything_runs(study_file, capsys):
    assert main(["study", study_file, "--out", study_file]) == 2
    assert "a folder" in capsys.readouterr().err


def test_runs_of_unequal_length_are_filled_up_with_nan():
    def run(steps, seed):
        return {"risk": xr.DataArray(np.arange(steps) + seed, {"t": 10 * np.arange(steps)}, dims="t"), "last": seed}

    dataset = sweep(run, progress=False, steps=[2, 3], seed=[5, 7])
    assert dataset["last"].dims == ("steps", "seed")
    assert dataset["risk"].sel(steps=3, seed=7).values.tolist() == [7, 8, 9]
    assert dataset["risk"].sel(steps=2, seed=5, t=10) == 6
    assert np.isnan(dataset["risk"].sel(steps=2, seed=5, t=20))


def test_an_estimate_has_the_error_of_a_mean_and_none_for_one_seed():
    values = np.random.default_rng(0).normal(2, 3, 400)
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.error == pytest.approx(3 / 20, rel=0.15)
    assert np.isnan(Estimate.of([1.0]).error)


def test_a_claim_that_fails_says_so():
    assert str(Claim("it is free", False, "cost 3")) == "does not hold: it is free (cost 3)"
