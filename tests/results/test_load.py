"""Saved fits: a loaded one does what the original does, and what does not belong to it is refused."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError, Status, Stream
from mfpda.core import schedules
from tests.helpers import draw, same

CASES = {
    "full batch": {},
    "mini-batch, latest": {"batch_size": 10, "rule": "latest"},
    "schedule, resample": {"kernel": mfpda.ULA(step_size=schedules.InverseSqrt(0.01)), "start": "resample"},
    "stream": {"batch_size": 6, "kernel": mfpda.ULA(step_size=0.003)},
    "thinned": {"record": mfpda.Record(every=2, sites=("b",), particles=4)},
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case == "stream")) for case in CASES])
def test_a_loaded_fit_predicts_samples_and_goes_on_as_the_original(case, small, tmp_path):
    data = Stream(draw) if case == "stream" else small.data
    arguments = small.quick | CASES[case]
    fit = mfpda.fit(jax.random.key(0), small.model, data, **arguments)
    fit.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", small.model)
    assert list(tmp_path.iterdir()) == [tmp_path / "run.nc"]
    assert repr(loaded) == repr(fit)
    assert loaded.status is Status.FINISHED
    np.testing.assert_array_equal(loaded.predict(small.x), fit.predict(small.x))
    np.testing.assert_array_equal(loaded.potential.coefficients, fit.potential.coefficients)
    key = jax.random.key(7)
    for name, draws in fit.sample(key, 12).items():
        np.testing.assert_array_equal(loaded.sample(key, 12)[name], draws)
    if case != "thinned":
        assert loaded.select(key).outer_step == fit.select(key).outer_step
    more = arguments | {"outer_steps": 11}
    np.testing.assert_array_equal(
        mfpda.fit(jax.random.key(0), small.model, data, **more, resume=loaded).thetas,
        mfpda.fit(jax.random.key(0), small.model, data, **more).thetas,
    )


def saved_twice(folder, small, **plugs):
    """A fit, the file that it was saved to, and the folder of its checkpoint."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=folder / "run", **small.quick | plugs)
    fit.save(folder / "run.nc")
    return SimpleNamespace(fit=fit, file=folder / "run.nc", folder=folder / "run")


def load_from(place, saved, small, model=None, **plugs):
    """From the file, or from the folder, which needs its data again."""
    path, data = (saved.file, None) if place == "file" else (saved.folder, small.data)
    return mfpda.load(path, small.model if model is None else model, data=data, **plugs)


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    return saved_twice(tmp_path_factory.mktemp("saved"), small)


class Mine(mfpda.ULA):
    """A kernel of one's own."""


class MyRule(mfpda.DualAveraging):
    """A rule of one's own."""


class MyStart(mfpda.Warm):
    """A start of one's own."""


OWN = {"kernel": Mine(0.01), "rule": MyRule(), "start": MyStart()}
NAMES = {"kernel": "Mine", "rule": "MyRule", "start": "MyStart"}


@pytest.fixture(scope="module")
def of_ones_own(small, tmp_path_factory):
    return saved_twice(tmp_path_factory.mktemp("own"), small, **OWN)


@pytest.mark.parametrize("place", ["file", "folder"])
def test_registered_plugs_are_found_by_name(small, saved, place):
    found = load_from(place, saved, small)
    same(found, saved.fit)
    assert (found.rule, found.kernel, found.start) == (mfpda.DualAveraging(), mfpda.ULA(), mfpda.Warm())
    assert found.settings == saved.fit.settings
    assert found.status is Status.FINISHED
    assert (found.folder is None) == (place == "file")


@pytest.mark.parametrize("place", ["file", "folder"])
def test_plugs_of_ones_own_are_given(small, of_ones_own, place):
    found = load_from(place, of_ones_own, small, **OWN)
    same(found, of_ones_own.fit)
    assert (found.rule, found.start) == (MyRule(), MyStart())
    assert type(found.kernel) is Mine
    np.testing.assert_array_equal(found.thetas, of_ones_own.fit.thetas)


@pytest.mark.parametrize("place", ["file", "folder"])
@pytest.mark.parametrize("kind", OWN)
def test_a_plug_of_ones_own_that_is_not_given_is_refused(small, of_ones_own, place, kind):
    others = {name: plug for name, plug in OWN.items() if name != kind}
    with pytest.raises(InputError, match=rf"registered {kind}.*made with {NAMES[kind]}.*{kind}="):
        load_from(place, of_ones_own, small, **others)


@pytest.mark.parametrize("place", ["file", "folder"])
@pytest.mark.parametrize(
    ("plug", "message"),
    [
        (
            {"kernel": "mala"},
            "the kernel of the run, ula, found mala. Pass the kernel that the run was made with, or leave it out",
        ),
        ({"kernel": Mine(0.01)}, "the kernel of the run, ula, found Mine"),
        ({"rule": "latest"}, "the rule of the run, dual_averaging, found latest"),
        ({"rule": MyRule()}, "the rule of the run, dual_averaging, found MyRule"),
        ({"start": mfpda.Resample()}, "the start of the run, warm, found resample"),
        ({"rule": mfpda.MALA()}, r"a rule, found MALA\(.*subclass of mfpda.Rule"),
    ],
    ids=["another kernel", "my kernel", "another rule", "my rule", "another start", "a kernel as rule"],
)
def test_another_plug_is_refused(small, saved, place, plug, message):
    with pytest.raises(InputError, match=message):
        load_from(place, saved, small, **plug)


def with_sites(small, sites):
    """A model like the small one, with other sites."""
    h = lambda theta, x: x[0] * sum(value.sum() for value in theta.values())  # noqa: E731
    return mfpda.Model.from_function(h, sites, small.model.loss, 0.02)


NORMAL = dist.Normal(0, 1)
OTHER_MODELS = {
    "another temperature": (
        lambda small: mfpda.Model(small.model.declaration.neuron, small.model.loss, 0.03),
        "the model of that run, with temperature 0.02, found temperature 0.03",
    ),
    "another loss": (
        lambda small: mfpda.Model(small.model.declaration.neuron, lambda z, y: (z - y) ** 2, 0.02),
        "the model of that run, with loss Squared, found loss FromFunction",
    ),
    "other names": (
        lambda small: with_sites(small, {"v": NORMAL.expand([1]).to_event(1), "b": NORMAL}),
        r'with sites \[\["w", \[1\]\].*found sites \[\["v"',
    ),
    "other shapes": (
        lambda small: with_sites(small, {"w": NORMAL.expand([2]).to_event(1), "b": NORMAL}),
        r'with sites \[\["w", \[1\]\].*found sites \[\["w", \[2\]\]',
    ),
    "another neuron": (
        lambda small: mfpda.Model(lambda x: 1.1 * small.model.declaration.neuron(x), small.model.loss, 0.02),
        r"the model of that run, whose h\(theta, x\) is",
    ),
    "no model": (lambda small: "model.py", "the Model of the run, found 'model.py'"),
}


@pytest.mark.parametrize("place", ["file", "folder"])
@pytest.mark.parametrize(("model", "message"), OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_another_model_is_refused(small, saved, place, model, message):
    with pytest.raises(InputError, match=message):
        load_from(place, saved, small, model(small))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda small: None, r"the data of the run, found none.*data=\(x, y\)"),
        (lambda small: (small.x, np.cos(small.x[:, 0])), "the data of the run in .*run"),
        (lambda small: (small.x[:30], small.data[1][:30]), "the data of the run in .*run"),
    ],
    ids=["none", "other labels", "fewer"],
)
def test_a_folder_without_its_data_is_refused(small, saved, data, message):
    with pytest.raises(InputError, match=message):
        mfpda.load(saved.folder, small.model, data=data(small))


def stacked(saved, path):
    mfpda.to_inference_data(saved.fit, saved.fit).to_netcdf(path)


def of_someone_else(saved, path):
    saved.fit.groups["posterior"].drop_attrs().to_netcdf(path, engine="h5netcdf")


def cut_short(saved, path):
    path.write_bytes(saved.file.read_bytes()[:2000])


def missing(saved, path):
    pass


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (stacked, "a file of one saved fit, found several runs stacked as chains. Read it with arviz"),
        (of_someone_else, "a file of a saved fit, found a netCDF file that mfpda did not write"),
        (cut_short, "a file of a saved fit, found a file of 2000 bytes that is no netCDF or is cut short"),
        (missing, "a file of a saved fit, found no file at"),
    ],
)
def test_a_file_of_no_saved_fit_is_refused(small, saved, tmp_path, made, message):
    made(saved, tmp_path / "other.nc")
    with pytest.raises(InputError, match=message):
        mfpda.load(tmp_path / "other.nc", small.model)


def test_a_folder_of_no_checkpoint_is_refused(small, tmp_path):
    with pytest.raises(InputError, match="the folder of a checkpoint, found no"):
        mfpda.load(tmp_path, small.model, data=small.data)
