"""The layout of section 7 of the design, on the ArviZ that is installed."""

import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
import xarray as xr

import mfpda
from mfpda import InputError
from mfpda.persistence import SavedRun
from mfpda.persistence.saved_fit import RUN_STATE
from mfpda.progress.state import current_potential
from mfpda.results import arviz_data

OLD = importlib.metadata.version("arviz").startswith("0.")


def neuron(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("class", 3):
        a = numpyro.sample("a", dist.Normal(0, 1))
    return 3 * a * jnp.tanh(x @ w)


@pytest.fixture(scope="module")
def fits():
    coords = {"feature": ["left", "right"], "class": [10, 20, 30]}
    model = mfpda.Model(neuron, mfpda.losses.Softmax(), 0.05, dims={"w": ["feature"]}, coords=coords)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
    arguments = {"rule": "dual_averaging", "particles": 25, "outer_steps": 6, "inner_steps": 4, "progress": False}
    return [mfpda.fit(jax.random.key(k), model, data, record=mfpda.Record(every=2), **arguments) for k in range(3)]


LAYOUT = {
    "posterior": {"w": ("chain", "draw", "feature"), "a": ("chain", "draw", "class")},
    "sample_stats": {name: ("chain", "draw") for name in ("lp", "acceptance_rate", "diverging")},
    "particle_history": {
        "w": ("chain", "outer_step", "draw", "feature"),
        "a": ("chain", "outer_step", "draw", "class"),
    },
    "outer_stats": {
        name: ("chain", "outer_step")
        for name in (
            "risk",
            "second_moment",
            "stiffness",
            "particles",
            "step_size",
            "inner_steps",
            "acceptance_rate",
            "diverging",
            "gradients",
            "seconds",
        )
    },
    "prior": {"w": ("chain", "draw", "feature"), "a": ("chain", "draw", "class")},
    "initial_particles": {"w": ("chain", "draw", "feature"), "a": ("chain", "draw", "class")},
    "observed_data": {"y": ("anchor",)},
    "constant_data": {
        "x": ("anchor", "x_dim_0"),
        "coefficients": ("chain", "anchor", "output"),
        "duals": ("chain", "anchor", "output"),
        "predictions": ("chain", "anchor", "output"),
    },
}


def test_groups_have_their_dims_coords_and_attributes(fits):
    groups = arviz_data.groups_of(fits[0].idata)
    assert {name: {str(v): group[v].dims for v in group} for name, group in groups.items()} == LAYOUT
    assert groups["posterior"]["feature"].values.tolist() == ["left", "right"]
    assert groups["posterior"]["class"].values.tolist() == [10, 20, 30]
    assert groups["particle_history"]["outer_step"].values.tolist() == [2, 4, 6]
    assert groups["posterior"].sizes["draw"] == 25
    attributes = groups["posterior"].attrs
    assert {
        "creator",
        "mfpda_version",
        "jax_version",
        "arviz_version",
        "key",
        "settings",
        "temperature",
        "status",
    } <= set(attributes)
    np.testing.assert_array_equal(groups["posterior"]["w"][0], fits[0].particles["w"])
    np.testing.assert_array_equal(groups["initial_particles"]["w"][0], fits[0].progress.initial["w"])
    xr.testing.assert_identical(groups["prior"], groups["initial_particles"])  # the model has no init
    potential = current_potential(fits[0].problem, fits[0].rule, fits[0].state)
    np.testing.assert_allclose(groups["sample_stats"]["lp"][0, 3], -potential(fits[0].thetas[3]), rtol=1e-5)


def test_it_is_the_installed_arvizs_own_type(fits):
    assert type(fits[0].idata).__name__ == ("InferenceData" if OLD else "DataTree")


def test_runs_stack_as_chains_and_rhat_compares_them(fits):
    together = mfpda.to_inference_data(*fits)
    groups = arviz_data.groups_of(together)
    assert groups["posterior"].sizes["chain"] == 3
    assert groups["outer_stats"]["risk"].dims == ("chain", "outer_step")
    assert groups["constant_data"]["x"].dims == ("anchor", "x_dim_0")
    assert groups["constant_data"]["duals"].dims == ("chain", "anchor", "output")
    np.testing.assert_array_equal(groups["posterior"]["a"][2], fits[2].particles["a"])
    table = arviz_data.summary(groups["posterior"], diagnostics=True)
    assert np.isfinite(table["r_hat"].astype(float)).all()
    moved = [groups["posterior"].isel(chain=[0]), groups["posterior"].isel(chain=[1]) + 5]
    apart = arviz_data.summary(xr.concat(moved, "chain", join="outer"), diagnostics=True)
    assert (apart["r_hat"].astype(float) > 1.5).all()


def test_runs_of_different_width_do_not_stack(fits):
    data = fits[0].problem.x, fits[0].problem.y
    other = mfpda.fit(jax.random.key(0), fits[0].model, data, particles=4, outer_steps=2, progress=False)
    with pytest.raises(InputError, match="the same number of particles"):
        mfpda.to_inference_data(fits[0], other)


def test_nothing_does_not_stack():
    with pytest.raises(InputError, match="at least one fit"):
        mfpda.to_inference_data()


def test_runs_that_stopped_at_different_steps_stack(fits):
    data = fits[0].problem.x, fits[0].problem.y
    shorter = mfpda.fit(
        jax.random.key(9), fits[0].model, data, particles=25, outer_steps=4, inner_steps=4,
        record=mfpda.Record(every=2), progress=False,
    )  # fmt: skip
    groups = arviz_data.groups_of(mfpda.to_inference_data(fits[0], shorter))
    assert groups["outer_stats"]["risk"].isnull().values.tolist() == [[False, False, False], [False, False, True]]


def same(a, b):
    """Equal values, dims, coords and attributes, in every group."""
    assert set(a) == set(b)
    for name in a:
        xr.testing.assert_identical(a[name], b[name])


@pytest.mark.parametrize("several", [False, True])
def test_netcdf_round_trip_keeps_everything(fits, several, tmp_path):
    idata = mfpda.to_inference_data(*fits) if several else fits[0].idata
    idata.to_netcdf(tmp_path / "by_arviz.nc")
    back = arviz_data.import_arviz().from_netcdf(tmp_path / "by_arviz.nc")
    same(arviz_data.groups_of(back), arviz_data.groups_of(idata))
    assert dict(back.attrs)["creator"] == "mfpda"


def test_a_saved_fit_is_a_file_that_arviz_reads(fits, tmp_path):
    fits[0].save(tmp_path / "run.nc")
    groups = arviz_data.groups_of(arviz_data.import_arviz().from_netcdf(tmp_path / "run.nc"))
    assert groups.pop(RUN_STATE)
    same(groups, arviz_data.groups_of(fits[0].idata))


@pytest.fixture(scope="module")
def with_init(small):
    """A run whose first particles are far from the prior in one of two sites."""
    declared = small.model.declaration
    init = {"b": dist.Normal(5, 0.1)}
    model = mfpda.Model(declared.neuron, small.model.loss, 0.02, init=init)
    arguments = small.quick | {"particles": 400, "outer_steps": 2}
    return model, arguments, mfpda.fit(jax.random.key(0), model, small.data, **arguments)


def test_the_prior_is_drawn_from_the_prior_whatever_init_is(with_init):
    """Each Kolmogorov-Smirnov test fails one correct sampler in 1000."""
    groups = arviz_data.groups_of(with_init[2].idata)
    prior, first = groups["prior"], groups["initial_particles"]
    for site in ("w", "b"):
        assert scipy.stats.kstest(prior[site].values.ravel(), scipy.stats.norm.cdf).pvalue > 0.001
        assert prior[site].dims == first[site].dims
        assert prior[site].shape == first[site].shape
    assert scipy.stats.kstest(first["b"].values.ravel(), scipy.stats.norm(5, 0.1).cdf).pvalue > 0.001
    correlation = np.corrcoef(prior["w"].values.ravel(), first["w"].values.ravel())[0, 1]
    assert abs(correlation) < 3.3 / np.sqrt(400)  # a site that init does not name is drawn again


@pytest.mark.parametrize("has_init", [False, True])
def test_prior_and_first_particles_stay_the_same(with_init, small, has_init, tmp_path):
    """In a file, in a checkpoint, and in runs resumed from them, also with another key."""
    model = with_init[0] if has_init else small.model
    fit = lambda seed=0, **more: mfpda.fit(jax.random.key(seed), model, small.data, **with_init[1] | more)  # noqa: E731
    whole = fit(checkpoint=tmp_path / "run")
    whole.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", model)
    runs = [
        fit(),
        loaded,
        mfpda.load(tmp_path / "run", model, data=small.data),
        fit(outer_steps=3, resume=tmp_path / "run"),
        fit(outer_steps=3, resume=loaded, checkpoint=tmp_path / "other"),
        mfpda.load(tmp_path / "other", model, data=small.data),
        fit(seed=1, outer_steps=3, resume=whole),
    ]
    for run in runs:
        for name in ("prior", "initial_particles"):
            xr.testing.assert_identical(run.groups[name].drop_attrs(), whole.groups[name].drop_attrs())
    for name in ("run", "other"):
        stored = SavedRun.read(tmp_path / name).beginning.arrays
        assert [site for site in stored if site.startswith("prior: ")] == ["prior: w", "prior: b"] * has_init
