"""A run as facts: attributes, settings and plugs, in a form that files can hold, and back."""

import dataclasses
import importlib.metadata
import json

import jax
import numpy as np
import pytest

import mfpda
from mfpda import InputError, Status
from mfpda.persistence import description
from mfpda.persistence.files import FORMAT
from mfpda.progress import Settings
from tests.helpers import begun

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def progress(small):
    return begun(small.model, *small.data, rule=mfpda.DualAveraging(gamma=1.0), kernel=mfpda.MALA(0.25), batch_size=7)


def test_versions_are_those_installed():
    versions = description.versions()
    assert list(versions) == ["mfpda_version", "jax_version", "numpyro_version", "arviz_version"]
    assert versions["jax_version"] == jax.__version__
    assert versions["mfpda_version"] == importlib.metadata.version("mfpda")


def test_provenance_says_who_made_a_run(small):
    found = description.provenance(jax.random.key(3), small.model)
    assert found == {
        "creator": "mfpda", "format": FORMAT, **description.versions(), "model": repr(small.model),
        "temperature": 0.02, "key": "[0, 3]",
    }  # fmt: skip


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
def test_attributes_are_provenance_settings_and_status(progress, status):
    found = description.attributes_of(progress, status)
    assert list(found) == [*progress.provenance, "settings", "status"]
    assert found["status"] == status.value
    assert all(isinstance(value, str | int | float) for value in found.values())  # what netCDF can hold
    assert description.settings_of(found) == progress.settings


def test_settings_are_held_by_name(progress):
    settings = json.loads(description.attributes_of(progress, Status.FINISHED)["settings"])
    assert settings == {
        "rule": "DualAveraging(gamma=1.0)", "overshoots": True, "kernel": "MALA(step_size=0.25)", "start": "Warm()",
        "particles": 5, "outer_steps": 4, "inner_steps": 3, "batch_size": 7, "memory": 0.5, "block_rows": None,
        "until_certified": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"inner_steps": "Linear(slope=1)"}, {"batch_size": None}, {"block_rows": 64}, {"overshoots": False}]
)
def test_all_kinds_of_settings_come_back(progress, change):
    settings = dataclasses.replace(progress.settings, **change)
    changed = dataclasses.replace(progress, settings=settings)
    found = description.settings_of(description.attributes_of(changed, Status.FINISHED))
    assert found == settings
    assert isinstance(found, Settings)


def test_a_run_is_described_and_restored(progress):
    stepped = dataclasses.replace(progress, t=3, inner_steps=9)
    facts = description.describe(stepped, Status.DIVERGED)
    assert json.loads(json.dumps(facts)) == facts
    assert all(isinstance(value, str | int | float) for value in facts.values())
    plugs = description.rebuild_plugs(facts, None, None, None)
    attributes = description.attributes_of(stepped, Status.DIVERGED)
    drawn = stepped.initial, stepped.prior
    restored = description.restore(
        facts, attributes, stepped.problem, plugs, stepped.state, *drawn, list(stepped.rows), None
    )
    for field in dataclasses.fields(stepped):
        assert getattr(restored, field.name) == getattr(stepped, field.name), field.name
    assert facts["status"] == "diverged"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_kind_of_data_and_batches_are_described(progress, is_stream, batch_size):
    settings = dataclasses.replace(progress.settings, batch_size=batch_size)
    changed = dataclasses.replace(progress, settings=settings, is_stream=is_stream)
    facts = description.describe(changed, Status.FINISHED)
    assert (facts["is_stream"], facts["batch_size"]) == (int(is_stream), batch_size or 0)
    assert (facts["outer_steps"], facts["inner_steps"], facts["particles"]) == (0, 0, 5)
    assert (facts["loss"], facts["temperature"]) == ("Squared", 0.02)


def test_shapes_are_those_of_the_state(progress):
    facts = description.describe(progress, Status.FINISHED)
    shapes = description.state_shapes(progress.problem, facts, progress.kernel, progress.rule)
    assert jax.tree.structure(shapes) == jax.tree.structure(progress.state)
    for shape, leaf in zip(jax.tree.leaves(shapes), jax.tree.leaves(progress.state), strict=True):
        assert (shape.shape, shape.dtype) == (leaf.shape, leaf.dtype)


@pytest.fixture
def facts(progress):
    return description.describe(progress, Status.FINISHED)


def test_plugs_are_found_by_their_names(facts):
    kernel, rule, start = description.rebuild_plugs(facts, None, None, None)
    assert (rule, start) == (mfpda.DualAveraging(gamma=1.0), mfpda.Warm())
    assert type(kernel) is mfpda.MALA
    assert kernel.step_size == np.float32(0.25)


def test_plugs_that_are_given_are_taken(facts):
    kernel, rule, start = description.rebuild_plugs(facts, mfpda.MALA(0.5), "dual_averaging", mfpda.Warm())
    assert kernel.step_size == np.float32(0.5)
    assert (rule, start) == (mfpda.DualAveraging(), mfpda.Warm())


@pytest.mark.parametrize(
    ("match", "given"),
    [
        (
            "the kernel of the run, mala, found ula.*Pass the kernel that the run was made with, or leave it out",
            {"kernel": "ula"},
        ),
        ("the rule of the run, dual_averaging, found latest", {"rule": mfpda.Latest()}),
        ("the start of the run, warm, found resample", {"start": "resample"}),
        ("a kernel, found 3", {"kernel": 3}),
    ],
)
def test_other_plugs_are_refused(facts, match, given):
    with pytest.raises(InputError, match=match):
        description.rebuild_plugs(facts, **({"kernel": None, "rule": None, "start": None} | given))


class Mine(mfpda.Start):
    """A start that is not registered."""

    def __call__(self, key, thetas, old, new):
        return mfpda.starts.Moved(thetas)


def test_a_plug_that_is_not_registered_has_to_be_given(progress):
    facts = description.describe(dataclasses.replace(progress, start=Mine()), Status.FINISHED)
    with pytest.raises(
        InputError, match=r"a registered start .*, found a run made with Mine.*load\(path, model, start="
    ):
        description.rebuild_plugs(facts, None, None, None)
    assert description.rebuild_plugs(facts, None, None, Mine())[2] == Mine()


def test_a_schedule_that_is_code_has_to_be_given(progress):
    kernel = mfpda.MALA(step_size=lambda t: 0.1)
    facts = description.describe(dataclasses.replace(progress, kernel=kernel), Status.FINISHED)
    with pytest.raises(InputError, match=r"found a run made with mala and a 'step_size' that is your own code"):
        description.rebuild_plugs(facts, None, None, None)
