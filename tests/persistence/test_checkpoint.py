"""Checkpoints: the same bits after a stop, nothing torn, and what differs refused by name."""

import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import mfpda
from mfpda import Checkpoint, InputError, Record, RunError, Status, Stream
from mfpda.core import schedules
from mfpda.persistence import checkpoint, container
from mfpda.persistence.history_store import FOLDER
from tests.helpers import draw, same


class Stops:
    """A metric that raises when it is called for the k-th time, and is of no further harm."""

    def __init__(self, k):
        self.left = k

    def __call__(self, predict):
        self.left -= 1
        if self.left == 0:
            raise ZeroDivisionError("no more")
        return 0.0


KINDS = {
    "full batch": {"inner_steps": lambda t: 1 + t % 3},
    "certified": {"certify_every": 4},
    "mini-batch": {"batch_size": 6, "rule": "latest", "kernel": mfpda.ULA(schedules.InverseSqrt(0.01))},
    "stream": {"batch_size": 6, "kernel": "mala", "record": Record(every=3, sites=("w",), particles=4)},
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("certified", "stream"))) for kind in KINDS]
)
def test_a_run_resumed_from_its_checkpoint_gives_the_bits_of_the_whole_one(small, tmp_path, kind):
    data = Stream(draw) if kind == "stream" else small.data
    arguments = small.quick | KINDS[kind]
    whole = mfpda.fit(jax.random.key(0), small.model, data, metrics={"mine": Stops(100)}, **arguments)
    with pytest.raises(RunError, match=r"no more.*checkpoint is in .*run"):
        mfpda.fit(
            jax.random.key(0), small.model, data, metrics={"mine": Stops(2 if kind == "stream" else 6)},
            checkpoint=tmp_path / "run", **arguments,
        )  # fmt: skip
    again = {"resume": tmp_path / "run", "metrics": {"mine": Stops(100)}}
    resumed = mfpda.fit(jax.random.key(0), small.model, data, **arguments, **again)
    same(resumed, whole)
    assert resumed.progress.inner_steps == whole.progress.inner_steps
    np.testing.assert_array_equal(resumed.problem.x, whole.problem.x)
    loaded = mfpda.load(tmp_path / "run", small.model, data=None if kind == "stream" else data)
    same(loaded, whole)
    assert loaded.status is Status.FINISHED
    done = mfpda.fit(jax.random.key(0), small.model, data, **arguments, **again)  # nothing is left to do
    same(done, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["underdamped", "blackjax:hmc", "blackjax:nuts", "numpyro:HMC"])
@pytest.mark.parametrize("start", ["warm", "temper"])
def test_every_kind_of_kernel_and_start_resumes(small, tmp_path, kernel, start):
    arguments = small.quick | {"kernel": kernel, "start": start, "outer_steps": 6}
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, **arguments)
    half = arguments | {"outer_steps": 3, "checkpoint": tmp_path / "run"}
    mfpda.fit(jax.random.key(0), small.model, small.data, **half)
    same(mfpda.fit(jax.random.key(0), small.model, small.data, **arguments, resume=tmp_path / "run"), whole)


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    """A run of eight steps, kept in a folder: its arguments, the folder, the fit."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=folder, **small.quick)
    return folder, fit


@pytest.fixture
def copy(run, tmp_path):
    """The folder of that run, to be spoilt."""
    return Path(shutil.copytree(run[0], tmp_path / "copy"))


@pytest.fixture(scope="module")
def streamed(small, tmp_path_factory):
    """The folder of a run of two steps on a stream."""
    folder = tmp_path_factory.mktemp("streams") / "run"
    arguments = small.quick | {"batch_size": 6, "outer_steps": 2}
    mfpda.fit(jax.random.key(0), small.model, Stream(draw), checkpoint=folder, **arguments)
    return folder


def resumed(small, folder, model=None, data=None, key=0, **changed):
    return mfpda.fit(
        jax.random.key(key), model or small.model, data or small.data, resume=folder, **(small.quick | changed)
    )


def with_neuron(small, neuron, temperature=0.02):
    return {"model": mfpda.Model(neuron, small.model.loss, temperature)}


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("particles of the run in .*30, found 31", {"particles": 31}),
        (
            "inner steps of the run in .*, 5 at outer step 2, found 6 at outer step 2",
            {"inner_steps": lambda t: 5 + (t == 2)},
        ),
        ("rule of the run.*dual_averaging.*found.*latest", {"rule": "latest"}),
        ("kernel of the run.*ula.*found.*mala", {"kernel": "mala"}),
        ("step size of the run.*auto, found 0.1", {"kernel": mfpda.ULA(0.1)}),
        ("start of the run.*warm.*found.*resample", {"start": "resample"}),
        ("batch size of the run.*None, found 10", {"batch_size": 10}),
        ("record of the run", {"record": Record(every=2)}),
        ("metrics of the run", {"metrics": {"mine": Stops(100)}}),
        ("certify every of the run", {"certify_every": 3}),
        ("outer_steps for a run without certificates", {"outer_steps": None}),
        ("key of the run", {"key": 1}),
        ("at least the 8 outer steps already done, found 7", {"outer_steps": 7}),
    ],
)
def test_what_differs_is_refused_by_name(small, run, message, change):
    with pytest.raises(InputError, match=message):
        resumed(small, run[0], **change)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("data of the run", lambda small: {"data": (small.x, np.cos(small.x[:, 0]))}),
        (
            "temperature 0.02.*found temperature 0.03",
            lambda small: with_neuron(small, small.model.declaration.neuron, 0.03),
        ),
        (
            r"whose h\(theta, x\) is",
            lambda small: with_neuron(small, lambda x: 1.1 * small.model.declaration.neuron(x)),
        ),
    ],
)
def test_another_problem_is_refused(small, run, message, change):
    with pytest.raises(InputError, match=message):
        resumed(small, run[0], **change(small))


def test_another_precision_is_refused(small, run):
    with jax.enable_x64(True), pytest.raises(InputError, match=r"precision of the run.*float32, found float64"):
        resumed(small, run[0])


def test_another_version_is_refused(small, run, monkeypatch):
    monkeypatch.setattr("mfpda.engine.plan.versions", lambda: {"mfpda_version": "9.9", "jax_version": jax.__version__})
    with pytest.raises(InputError, match=r"mfpda version of the run in .*, found 9.9.*on purpose"):
        resumed(small, run[0])


def test_a_stream_that_draws_another_batch_is_refused(small, streamed):
    other = Stream(lambda key, batch_size: (2 * draw(key, batch_size)[0], draw(key, batch_size)[1]))
    with pytest.raises(InputError, match="the stream of the run that is resumed, found another batch 2"):
        resumed(small, streamed, data=other, batch_size=6)


def test_every_flipped_bit_is_refused(run, tmp_path):
    """All bits of the first 64 bytes, and 300 others of each file; in an array the message names the array."""
    for name in (checkpoint.BEGINNING, checkpoint.CHECKPOINT):
        whole = (run[0] / name).read_bytes()
        random.seed(0)
        for bit in [*range(512), *random.sample(range(8 * len(whole)), 300), 8 * len(whole) - 1]:
            spoilt = bytearray(whole)
            spoilt[bit // 8] ^= 1 << bit % 8
            (tmp_path / name).write_bytes(spoilt)
            with pytest.raises(InputError, match="a bit has changed"):
                container.read(tmp_path / name)
        for length in (0, 10, 40, len(whole) // 2, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:length])
            with pytest.raises(InputError, match="cut short"):
                container.read(tmp_path / name)
        (tmp_path / name).write_bytes(whole + b"\0")
        with pytest.raises(InputError, match="another end"):
            container.read(tmp_path / name)
    theta = container.read(run[0] / name).arrays[".ensemble.theta"].tobytes()
    (tmp_path / name).write_bytes(whole.replace(theta, theta[:-1] + bytes([theta[-1] ^ 1])))
    with pytest.raises(InputError, match=r"another \.ensemble\.theta"):
        container.read(tmp_path / name)


def test_a_folder_of_two_runs_is_refused(small, run, copy, tmp_path):
    mfpda.fit(jax.random.key(1), small.model, small.data, checkpoint=tmp_path / "other", **small.quick)
    shutil.copy(tmp_path / "other" / checkpoint.CHECKPOINT, copy / checkpoint.CHECKPOINT)
    with pytest.raises(InputError, match="the beginning of one and the checkpoint of another"):
        resumed(small, copy)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_a_damaged_history_is_refused(small, copy):
    store = copy / FOLDER
    flipped(store / "particle_history" / "w" / "c.0.4.0.0")
    fit = resumed(small, copy)  # a checksum is looked at when a row is read
    np.testing.assert_array_equal(fit.rows[3].particles["w"].shape, (30, 1))
    with pytest.raises(InputError, match=r"a damaged one.*checksum"):
        fit.rows[4].particles["w"]
    (store / "particle_history" / "w" / "c.0.4.0.0").unlink()
    with pytest.raises(InputError, match="outer step 5 is incomplete"):
        resumed(small, copy)


@pytest.mark.parametrize("spoilt", ["outer_stats/values/c.0.3.0", "outer_stats/values/zarr.json", "zarr.json"])
def test_damaged_numbers_are_refused(small, copy, spoilt):
    path = copy / FOLDER / spoilt
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"the history of a run in .*, found a damaged one"):
        resumed(small, copy)


def test_damaged_anchors_of_a_stream_are_refused(small, streamed, tmp_path):
    spoilt = Path(shutil.copytree(streamed, tmp_path / "run"))
    flipped(spoilt / "anchors.zarr" / "x" / "c.0.0.0")
    with pytest.raises(InputError, match=r"a damaged one.*checksum"):
        resumed(small, spoilt, data=Stream(draw), batch_size=6)


@pytest.fixture
def thesis(tmp_path):
    """A folder of other files."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("hours of work")
    return folder


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("a new or empty folder.*with other files", {"checkpoint": ""}),
        ("the folder of a checkpoint, found no beginning in", {"resume": ""}),
        ("found the file", {"checkpoint": "chapter.tex"}),
        ("found the file.*mfpda.load", {"resume": "chapter.tex"}),
        ("found no folder at.*nothing to resume", {"resume": "nowhere"}),
    ],
)
def test_folders_that_cannot_hold_a_run_are_refused(small, thesis, message, arguments):
    with pytest.raises(InputError, match=message):
        mfpda.fit(
            jax.random.key(0), small.model, small.data,
            **small.quick, **{name: thesis / path for name, path in arguments.items()},
        )  # fmt: skip
    assert os.listdir(thesis) == ["chapter.tex"]
    assert (thesis / "chapter.tex").read_text() == "hours of work"


def test_the_folder_of_an_earlier_run_is_refused(small, run):
    with pytest.raises(InputError, match="found that of an earlier run"):
        mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=run[0], **small.quick)


def test_a_folder_that_cannot_be_written_is_refused(small, tmp_path):
    (tmp_path / "locked").mkdir()
    with (
        unwritable(tmp_path / "locked"),
        pytest.raises(InputError, match=r"a folder that can be written, found .*Permission denied"),
    ):
        mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "locked" / "run", **small.quick)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (r"Checkpoint\.every", {"every": 0}),
        (r"Checkpoint\.seconds", {"seconds": -1}),
        ("the name of a folder", {"folder": 3}),
    ],
)
def test_a_checkpoint_of_wrong_numbers_is_refused(message, arguments):
    with pytest.raises(InputError, match=message):
        Checkpoint(**({"folder": "run"} | arguments))


class unwritable:
    """Inside, the folder cannot be written to; not even by root, who becomes somebody else for the time."""

    def __init__(self, *folders):
        self.folders, self.user = folders, os.geteuid()

    def __enter__(self):
        for folder in self.folders:
            folder.chmod(0o555)
            for parent in folder.parents:  # what is above has to be passable for everybody
                if parent.stat().st_uid == self.user and str(parent) != "/":
                    parent.chmod(parent.stat().st_mode | 0o055)
        if self.user == 0:
            os.seteuid(65534)

    def __exit__(self, *_):
        os.seteuid(self.user)
        for folder in self.folders:
            folder.chmod(0o755)


def test_an_empty_folder_is_a_new_one_and_an_interrupted_beginning_leaves_none(small, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / ".run.unfinished").mkdir()  # of a run that was killed while it made its folder
    (tmp_path / ".run.unfinished" / "checkpoint").write_text("half")
    mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **small.quick)
    assert sorted(os.listdir(tmp_path / "run")) == ["beginning", "checkpoint", "history.zarr"]
    assert os.listdir(tmp_path) == ["run"]

    def fails(path, contents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", fails)
    with pytest.raises(OSError, match="No space"):
        mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "other", **small.quick)
    assert os.listdir(tmp_path) == ["run"]


def test_history_is_read_from_disk_when_it_is_asked_for(small, run, tmp_path):
    folder, fit = run
    in_memory = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    same(fit, in_memory)
    history = fit.idata["particle_history"]
    lazy = resumed(small, folder).groups["particle_history"]
    assert not lazy["w"].variable._in_memory
    assert list(history.data_vars) == list(in_memory.idata["particle_history"].data_vars)
    np.testing.assert_array_equal(history["w"][0, 2], in_memory.rows[2].particles["w"])
    assert fit.select(jax.random.key(3)).outer_step == in_memory.select(jax.random.key(3)).outer_step
    fit.save(tmp_path / "run.nc")
    same(mfpda.load(tmp_path / "run.nc", small.model), in_memory)


def test_labels_of_dims_come_back(small, tmp_path):
    model = mfpda.Model(
        small.model.declaration.neuron, small.model.loss, 0.02, dims={"w": ["feature"]}, coords={"feature": ["height"]}
    )
    arguments = small.quick | {"outer_steps": 2}
    fit = mfpda.fit(jax.random.key(0), model, small.data, checkpoint=tmp_path / "run", **arguments)
    assert fit.idata["particle_history"]["feature"].values.tolist() == ["height"]
    fit.save(tmp_path / "run.nc")
    opened = xr.open_zarr(tmp_path / "run" / "history.zarr", group="particle_history", chunks=None, consolidated=False)
    assert [str(label) for label in opened["feature"].values] == ["height"]


def test_the_history_of_a_run_that_goes_on_can_be_read(small, tmp_path):
    """At step t rows 1 to t - 1 are there, whole; the others are NaN."""
    seen = []

    def metric(predict):
        store = tmp_path / "run" / "history.zarr"
        if (store / "particle_history").exists():
            particles = xr.open_zarr(store, group="particle_history", chunks=None, consolidated=False)
            numbers = xr.open_zarr(store, group="outer_stats", chunks=None, consolidated=False)["values"]
            finite = np.isfinite(particles["w"].values[0]).all(axis=(1, 2))
            np.testing.assert_array_equal(finite, np.isfinite(numbers.sel(statistic="risk").values[0]))
            seen.append(int(finite.sum()))
            assert particles.sizes["outer_step"] == 8
            assert finite[: seen[-1]].all()
        return 0.0

    mfpda.fit(
        jax.random.key(0), small.model, small.data, metrics={"m": metric}, checkpoint=tmp_path / "run", **small.quick
    )
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_checkpoints_are_as_rare_as_asked_for(small, tmp_path, monkeypatch):
    written = []
    original = container.write

    def spy(path, contents):
        original(path, contents)
        if path.name == checkpoint.CHECKPOINT:
            written.append(contents.facts["outer_steps"])

    monkeypatch.setattr(container, "write", spy)
    for kept in (
        Checkpoint(tmp_path / "a", every=3),
        Checkpoint(tmp_path / "b", seconds=1e-9),
        Checkpoint(tmp_path / "c", seconds=1e9),
    ):
        mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=kept, **small.quick)
    assert written == [0, 3, 6, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0, 8]


def test_a_run_goes_on_longer_than_was_asked_for_at_first(small, copy):
    longer = small.quick | {"outer_steps": 11}
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, **longer)
    same(resumed(small, copy, outer_steps=11), whole)
    same(mfpda.load(copy, small.model, data=small.data), whole)


def test_a_run_goes_on_with_another_step_on_purpose_in_another_folder(small, copy, tmp_path):
    """What is refused under resume=folder is possible with the fit of that folder, as with any fit."""
    loaded = mfpda.load(copy, small.model, data=small.data)
    arguments = small.quick | {"outer_steps": 10, "kernel": mfpda.ULA(0.001)}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, resume=loaded, checkpoint=tmp_path / "new", **arguments)
    assert [row.outer_step for row in fit.rows] == list(range(1, 11))
    assert fit.rows[-1].stats["step_size"] == pytest.approx(0.001)
    same(mfpda.load(tmp_path / "new", small.model, data=small.data), fit)
    np.testing.assert_array_equal(fit.rows[2].particles["w"], loaded.rows[2].particles["w"])


def test_loading_a_folder_needs_its_data(small, run):
    with pytest.raises(InputError, match="the data of the run, found none"):
        mfpda.load(run[0], small.model)


def test_loading_a_folder_with_other_data_is_refused(small, run):
    with pytest.raises(InputError, match="data of the run in"):
        mfpda.load(run[0], small.model, data=(small.x, np.cos(small.x[:, 0])))


def test_a_row_that_is_not_there_has_no_particles(run):
    row = run[1].rows[0]
    assert sorted(row.particles) == ["b", "w"]
    with pytest.raises(KeyError):
        row.particles["v"]


def test_double_precision_is_kept(small, tmp_path):
    with jax.enable_x64(True):
        whole = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **small.quick)
        loaded = mfpda.load(tmp_path / "run", small.model, data=small.data)
        assert loaded.thetas.dtype == jnp.float64
        same(loaded, whole)
