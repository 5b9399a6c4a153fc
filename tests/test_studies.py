"""Studies: grids of runs as data sets, claims in words, and the command that makes them."""

import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy.stats
import xarray as xr

import mfpda
from mfpda import InputError, studies
from mfpda.cli import main
from mfpda.studies import Claim, Estimate, higher, lower, sweep

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
    verdict = (
        "sizes_quick: 2 seeds, +- one standard error. A quick version, to see that it works: its verdicts are not the "
        "study's.\nholds: larger is better (0.505 +- 0.005 against 1 +- 0.005)"
    )
    assert verdict in capsys.readouterr().out
    assert sorted(os.listdir(out)) == ["sizes_quick.nc", "sizes_quick.png", "sizes_quick.txt"]
    assert (out / "sizes_quick.txt").read_text() == verdict + "\n"
    assert (out / "sizes_quick.png").read_bytes().startswith(b"\x89PNG")
    dataset = xr.load_dataset(out / "sizes_quick.nc", engine="h5netcdf")
    assert dict(dataset.sizes) == {"size": 2, "seed": 2}
    assert dataset.attrs["study"] == "sizes"
    assert dataset.attrs["seeds"].tolist() == [0, 1]
    assert dataset.attrs["quick"] == 1
    assert {"seconds", "mfpda_version", "jax_version", "numpyro_version", "numpy_version"} <= set(dataset.attrs)


def test_a_full_study_is_not_quick(study_file, tmp_path):
    assert main(["study", study_file, "--out", str(tmp_path)]) == 0
    dataset = xr.load_dataset(tmp_path / "sizes.nc", engine="h5netcdf")
    assert dataset.sizes["seed"] == 3
    assert dataset.attrs["quick"] == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def claims", "def other", "no claims"),
        ("return sweep", "return 1 or sweep", "Expected an xarray.Dataset from study(quick), found int"),
        ("import numpy", "import no_such_library", "the library 'no_such_library'"),
        ('{"error": 1 / size + 0.01 * seed}', "1 / size", "numbers by name from every run of a sweep, found float"),
        ("return [Claim", "return 'yes' or [Claim", "claims(dataset) that returns claims, found str"),
        ("return figure", "return None", "a matplotlib figure to save, found NoneType"),
    ],
)
def test_what_is_no_study_is_refused(tmp_path, capsys, old, new, message):
    path = tmp_path / "broken.py"
    path.write_text(STUDY.replace(old, new))
    assert main(["study", str(path), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_claims_and_figure_are_made_again_from_the_data_set(tmp_path, capsys):
    path = tmp_path / "sizes.py"
    path.write_text(STUDY)
    assert main(["study", str(path), "--out", str(tmp_path), "--redraw"]) == 2
    assert "Run the study first" in capsys.readouterr().err
    assert main(["study", str(path), "--out", str(tmp_path)]) == 0
    made = (tmp_path / "sizes.nc").stat().st_mtime_ns
    path.write_text(STUDY.replace("larger is better", "smaller is worse"))
    assert main(["study", str(path), "--out", str(tmp_path), "--redraw"]) == 0
    assert "holds: smaller is worse" in (tmp_path / "sizes.txt").read_text()
    assert (tmp_path / "sizes.nc").stat().st_mtime_ns == made
    assert main(["summary", str(tmp_path / "sizes.nc")]) == 2
    assert "the data set of the study 'sizes'" in capsys.readouterr().err


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


KILLED = """
import os, signal
import mfpda.studies

def study(quick):
    return mfpda.studies.sweep(one, seed=range(4))

def one(seed):
    with open("begun", "a") as file:
        file.write(str(seed))
    if seed == 2 and not os.path.exists("again"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"value": 10.0 * seed}

def claims(dataset):
    return []

def figure(dataset):
    import matplotlib.pyplot as plt
    return plt.figure()
"""


def test_a_study_that_was_killed_goes_on_from_its_finished_runs(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, "-m", "mfpda", "study", "killed.py", "--out", "out"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == -signal.SIGKILL
    (tmp_path / "again").touch()
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    assert (tmp_path / "begun").read_text() == "01223"
    dataset = xr.load_dataset(tmp_path / "out" / "killed.nc", engine="h5netcdf")
    assert dataset["value"].values.tolist() == [0, 10, 20, 30]
    assert sorted(os.listdir(tmp_path / "out")) == ["killed.nc", "killed.png", "killed.txt"]


def test_only_code_that_a_study_imports_makes_it_begin_anew(tmp_path):
    def code():
        return studies._code_of(tmp_path / "one.py")

    (tmp_path / "one.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("size = 1\n")
    before = code()
    (tmp_path / "other.py").write_text("size = 2\n")
    assert code() == before
    (tmp_path / "helper.py").write_text("size = 3\n")
    assert code() != before


def test_ctrl_c_stops_the_sweep_where_a_fit_returns_what_it_has(small):
    seen = []

    def run(seed):
        if seed == 1:
            metrics = {"stop": lambda predict: signal.raise_signal(signal.SIGINT) or 0.0}
        fit = mfpda.fit(jax.random.key(seed), small.model, small.data, metrics=metrics if seed else None, **small.quick)
        seen.append(fit.status)
        return {"risk": 0.0}

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep(run, progress=False, seed=range(3))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [mfpda.Status.FINISHED, mfpda.Status.INTERRUPTED]


def test_a_sweep_over_nothing_is_refused():
    with pytest.raises(InputError, match="none of 'seed'"):
        sweep(lambda size, seed: {"value": 1.0}, progress=False, size=[1], seed=[])


def test_an_estimate_has_the_error_of_a_mean_and_none_for_one_seed():
    values = np.random.default_rng(0).normal(2, 3, 400)
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.error == pytest.approx(3 / 20, rel=0.15)
    assert np.isnan(Estimate.of([1.0]).error)
    assert not Estimate.of([1.0]).above(0)


def test_splits_of_one_set_have_a_larger_error():
    values = [1.0, 2.0, 3.0, 4.0]
    assert Estimate.of(values, test_share=1.0).error == pytest.approx(Estimate.of(values).error * np.sqrt(5))


def test_numbers_of_several_dimensions_are_no_seeds():
    with pytest.raises(InputError, match="dimensions 't', 'seed'"):
        Estimate.of(xr.DataArray(np.zeros((3, 2)), dims=("t", "seed")))


def test_above_is_students_test():
    """Of samples whose mean is 0, 2.5 % are found above 0; at 2 standard errors 9 % of 3 seeds would be."""
    samples = np.random.default_rng(0).normal(size=(4000, 3))
    found = sum(Estimate.of(sample).above(0) for sample in samples)
    assert abs(found - 100) < 4 * np.sqrt(100)
    t, p = scipy.stats.ttest_1samp(samples[0], -1.0)
    assert Estimate.of(samples[0]).above(-1.0) == (t > 0 and p < 0.05)


def test_lower_is_judged_seed_by_seed():
    spread = np.array([0.0, 10.0, 20.0, 30.0])
    assert lower("paired", spread, spread + np.array([1.0, 1.1, 0.9, 1.0])).holds
    assert lower("the other way", spread + np.array([1.0, 1.1, 0.9, 1.0]), spread).holds is False
    assert lower("not paired", spread, spread[::-1] + 1).holds is None
    found = higher("paired", spread + np.array([1.0, 1.1, 0.9, 1.0]), spread)
    assert found.holds
    assert found.measured.startswith("16 +- 6.4 against 15 +- 6.5")
    with pytest.raises(InputError, match="4 and 3 numbers"):
        lower("unequal", spread, spread[:3])


def test_a_claim_that_fails_says_so():
    assert str(Claim("it is free", False, "cost 3")) == "does not hold: it is free (cost 3)"
    assert str(Claim("it is free", None, "cost 0 +- 1")) == "undecided: it is free (cost 0 +- 1)"
