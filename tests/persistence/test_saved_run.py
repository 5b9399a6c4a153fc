"""A run read back from its folder: what it was given, where it is, and what is refused."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import Checkpoint, InputError, Status
from mfpda.persistence import RunWriter, SavedRun, checkpoint
from mfpda.progress import Row
from tests.helpers import begun

pytestmark = pytest.mark.quick

IDENTITY = {"record": {"every": 2, "sites": None, "particles": None}, "certify_every": 3, "key": [0, 0]}


def written(folder, progress, t, ends=(5,)):
    """A folder of this run after t steps, with the rows that it recorded."""
    steps = [step for step in range(1, max(ends) + 1) if step % 2 == 0 or step % 3 == 0 or step in ends]
    origin = {"file": "model.py", "options": {}}
    writer = RunWriter.create(Checkpoint(folder, origin=origin), progress, IDENTITY, steps, list(ends), [])
    for step in steps:
        if step <= t:
            particles = {name: np.asarray(value) + step for name, value in progress.initial.items()}
            writer.row(Row(step, {"risk": 1 / step}, particles), progress.problem.neuron)
    writer.write(dataclasses.replace(progress, t=t, inner_steps=3 * t), Status.DIVERGED)
    writer.wait()
    return folder


@pytest.fixture(scope="module")
def progress(small):
    return begun(small.model, *small.data)


@pytest.fixture(scope="module")
def folder(progress, tmp_path_factory):
    return written(tmp_path_factory.mktemp("saved") / "run", progress, t=4)


def test_what_the_run_was_given_and_where_it_is(folder, progress):
    saved = SavedRun.read(folder)
    assert saved.folder == folder
    assert saved.identity == IDENTITY
    assert saved.origin == {"file": "model.py", "options": {}}
    assert saved.settings == progress.settings
    assert saved.blocks.rows is None
    assert (saved.outer_steps, saved.status, saved.is_stream, saved.ends) == (4, Status.DIVERGED, False, [5])
    assert SavedRun.read(str(folder)).identity == IDENTITY


def test_its_rows_have_their_places(folder):
    saved = SavedRun.read(folder)
    assert saved.store().steps == [2, 3, 4, 5]
    assert saved.store([5, 8]).steps == [2, 3, 4, 5, 6, 8]
    assert [row.outer_step for row in saved.store().rows(4)] == [2, 3, 4]


def test_the_run_comes_back(folder, progress):
    found = SavedRun.read(folder).progress(progress.problem, (progress.kernel, progress.rule, progress.start))
    assert (found.t, found.inner_steps, found.settings, found.is_stream) == (4, 12, progress.settings, False)
    assert found.provenance == progress.provenance
    assert jax.tree.structure(found.state) == jax.tree.structure(progress.state)
    for ours, theirs in zip(jax.tree.leaves(found.state), jax.tree.leaves(progress.state), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert list(found.initial) == list(progress.initial)
    for name, value in progress.initial.items():
        np.testing.assert_array_equal(found.initial[name], value)
    assert [row.outer_step for row in found.rows] == [2, 3, 4]
    np.testing.assert_array_equal(found.rows[1].particles["w"], progress.initial["w"] + 3)


def test_a_state_of_another_kernel_is_refused(folder, progress):
    with pytest.raises(InputError, match=r"a run state of .* arrays of the shapes that this kernel and rule have"):
        SavedRun.read(folder).progress(progress.problem, (mfpda.MALA(0.1), progress.rule, progress.start))


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("temperature 0.02, found temperature 0.5", {"temperature": 0.5}),
        ("loss Squared, found loss Logistic", {"loss": mfpda.losses.Logistic()}),
        (r"whose h\(theta, x\) is", {"neuron": lambda neuron: lambda x: 1.1 * neuron(x)}),
    ],
)
def test_another_model_is_refused(folder, small, match, change):
    given = {"neuron": lambda neuron: neuron, "loss": small.model.loss, "temperature": 0.02} | change
    model = mfpda.Model(given["neuron"](small.model.declaration.neuron), given["loss"], given["temperature"])
    with pytest.raises(InputError, match=match):
        SavedRun.read(folder).check_model(model)


def test_the_run_does_not_come_back_with_another_model(folder, progress, small):
    hotter = mfpda.Model(small.model.declaration.neuron, small.model.loss, 0.5)
    problem = dataclasses.replace(progress.problem, model=hotter)
    with pytest.raises(InputError, match=r"temperature 0.02, found temperature 0.5"):
        SavedRun.read(folder).progress(problem, (progress.kernel, progress.rule, progress.start))


def test_the_same_model_is_accepted(folder, small):
    SavedRun.read(folder).check_model(mfpda.Model(small.model.declaration.neuron, small.model.loss, 0.02))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run.nc").write_text("a fit")
    with pytest.raises(InputError, match=r"found the file .*run.nc.*mfpda.load\(path, model\)"):
        SavedRun.read(tmp_path / "run.nc")


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"found no folder at .*Without it there is nothing to resume"):
        SavedRun.read(tmp_path / "run")


@pytest.mark.parametrize("missing", [checkpoint.BEGINNING, checkpoint.CHECKPOINT])
def test_a_folder_without_one_of_its_files(folder, tmp_path, missing):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / missing).unlink()
    with pytest.raises(InputError, match=f"the folder of a checkpoint, found no {missing} in "):
        SavedRun.read(copy)


@pytest.mark.parametrize("swapped", [checkpoint.BEGINNING, checkpoint.CHECKPOINT])
def test_a_folder_of_two_runs(folder, progress, tmp_path, swapped):
    other = written(tmp_path / "other", progress, t=0)
    shutil.copy(folder / swapped, other / swapped)
    with pytest.raises(InputError, match="found the beginning of one and the checkpoint of another"):
        SavedRun.read(other)


@pytest.mark.parametrize(("t", "capacity"), [(1, 4), (4, 4), (5, 8)])
def test_the_buffer_of_a_stream_comes_back_with_its_room(small, tmp_path, t, capacity):
    x, y = small.data
    stream = begun(small.model, x, y, batch_size=3, is_stream=True)
    buffer = SavedRun.read(written(tmp_path / "run", stream, t, ends=(6,))).stream_buffer(small.model)
    assert len(buffer.x) == 3 * capacity
    filled = 3 * t
    np.testing.assert_array_equal(buffer.x[:filled], stream.problem.x[:filled])
    np.testing.assert_array_equal(buffer.y[:filled], stream.problem.y[:filled])
    np.testing.assert_array_equal(buffer.x[filled:], np.repeat(stream.problem.x[:1], 3 * capacity - filled, axis=0))
    np.testing.assert_allclose(jnp.sum(buffer.weights), 1, rtol=1e-6)
    assert buffer.model is small.model


def test_what_has_no_buffer(small, folder, tmp_path):
    assert SavedRun.read(folder).stream_buffer(small.model) is None
    stream = begun(small.model, *small.data, batch_size=3, is_stream=True)
    assert SavedRun.read(written(tmp_path / "run", stream, t=0)).stream_buffer(small.model) is None
