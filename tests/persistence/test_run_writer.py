"""What a run writes while it advances, and that a folder holds a whole run at any time."""

import dataclasses
import os
import time

import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import Checkpoint, Status
from mfpda.persistence import HistoryStore, RunWriter, SavedRun, checkpoint, container
from mfpda.progress import Row
from tests.helpers import begun

pytestmark = pytest.mark.quick

IDENTITY = {"record": {"every": 1, "sites": None, "particles": None}, "certify_every": 0}


@pytest.fixture(scope="module")
def progress(small):
    return begun(small.model, *small.data)


def at(progress, t):
    """The run after t outer steps."""
    return dataclasses.replace(progress, t=t, inner_steps=3 * t)


def row_of(t, **stats):
    particles = {"w": np.full((5, 1), t, np.float32), "b": np.arange(5, dtype=np.float32) + t}
    return Row(t, {"risk": 1 / t, "seconds": float(t)} | stats, particles)


def created(folder, progress, every=1, seconds=None, steps=(1, 2, 3, 4), ends=(4,), statistics=(), origin=None):
    given = Checkpoint(folder, every, seconds, origin or {})
    return RunWriter.create(given, progress, IDENTITY, list(steps), list(ends), list(statistics))


def facts(folder):
    return container.read(folder / checkpoint.CHECKPOINT).facts


def test_a_new_folder_holds_a_checkpoint_of_step_0(progress, tmp_path):
    writer = created(tmp_path / "run", progress, origin={"file": "model.py"})
    assert sorted(os.listdir(tmp_path / "run")) == ["beginning", "checkpoint"]
    assert os.listdir(tmp_path) == ["run"]
    beginning = container.read(tmp_path / "run" / checkpoint.BEGINNING)
    assert beginning.facts["identity"] == IDENTITY
    assert beginning.facts["origin"] == {"file": "model.py"}
    assert (beginning.facts["begun"], beginning.facts["recorded"]) == (0, [])
    np.testing.assert_array_equal(beginning.arrays["initial: w"], progress.initial["w"])
    np.testing.assert_array_equal(beginning.arrays["thetas"], progress.thetas[:4])
    np.testing.assert_array_equal(beginning.arrays["x"], progress.problem.x[:4])
    np.testing.assert_array_equal(beginning.arrays["y"], progress.problem.y[:4])
    found = facts(tmp_path / "run")
    assert (found["run"], found["ends"]) == (writer.name, [4])
    assert (found["outer_steps"], found["status"]) == (0, "interrupted")
    assert writer.store.folder == tmp_path / "run"


def test_two_runs_have_two_names(progress, tmp_path):
    assert created(tmp_path / "a", progress).name != created(tmp_path / "b", progress).name


def test_a_run_that_has_rows_brings_them_along(progress, tmp_path):
    earlier = dataclasses.replace(at(progress, 2), rows=(row_of(1), row_of(2)))
    writer = created(tmp_path / "run", earlier)
    rows = writer.store.rows(2)
    assert [row.outer_step for row in rows] == [1, 2]
    np.testing.assert_array_equal(rows[1].particles["b"], row_of(2).particles["b"])
    assert container.read(tmp_path / "run" / checkpoint.BEGINNING).facts["recorded"] == [1, 2]


def test_a_beginning_that_fails_leaves_no_folder(progress, tmp_path, monkeypatch):
    def full(path, contents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", full)
    with pytest.raises(OSError, match="No space"):
        created(tmp_path / "run", progress)
    assert os.listdir(tmp_path) == []


def test_rows_are_written_and_read_from_disk(progress, tmp_path):
    writer = created(tmp_path / "run", progress, statistics=["gap"])
    written = writer.row(row_of(1), progress.problem.neuron)
    assert not isinstance(written.particles, dict)  # it reads them when they are asked for
    np.testing.assert_array_equal(written.particles["w"], row_of(1).particles["w"])
    (found,) = writer.store.rows(1)
    assert found.stats.pop("risk") == 1.0
    assert np.isnan(found.stats.pop("gap"))
    assert found.stats == {"seconds": 1.0}
    with pytest.raises(mfpda.InputError, match="outer step 2 is incomplete"):
        writer.store.rows(2)


def test_numbers_of_a_row_are_written_again(progress, tmp_path):
    writer = created(tmp_path / "run", progress, statistics=["gap"])
    written = writer.row(row_of(1), progress.problem.neuron)
    writer.stats(written._replace(stats=written.stats | {"gap": 0.125}))
    (found,) = writer.store.rows(1)
    assert (found.stats["gap"], found.stats["risk"]) == (0.125, 1.0)
    np.testing.assert_array_equal(found.particles["b"], row_of(1).particles["b"])


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (10, [])])
def test_checkpoints_are_due_every_so_many_steps(tmp_path, every, expected):
    writer = RunWriter(Checkpoint(tmp_path, every), "name", HistoryStore(tmp_path, []), [6], [])
    assert [t for t in range(1, 7) if writer.due(t)] == expected


def test_checkpoints_are_due_after_so_many_seconds(tmp_path):
    writer = RunWriter(Checkpoint(tmp_path, every=1, seconds=60), "name", HistoryStore(tmp_path, []), [6], [])
    writer.saved_at = time.monotonic()
    assert not any(writer.due(t) for t in range(1, 7))
    writer.saved_at -= 61
    assert all(writer.due(t) for t in range(1, 7))


def test_a_checkpoint_says_where_the_run_is(progress, tmp_path):
    writer = created(tmp_path / "run", progress)
    moved = progress.state._replace(factor=jnp.asarray(2.5))
    writer.write(dataclasses.replace(at(progress, 3), state=moved), Status.FINISHED)
    writer.wait()
    assert writer.saved_step == 3
    found = container.read(tmp_path / "run" / checkpoint.CHECKPOINT)
    assert (found.facts["outer_steps"], found.facts["inner_steps"], found.facts["status"]) == (3, 9, "finished")
    assert found.arrays[".factor"] == 2.5
    np.testing.assert_array_equal(found.arrays[".ensemble.theta"], progress.thetas)


def test_a_checkpoint_that_cannot_be_written_is_an_error_once(progress, tmp_path, monkeypatch):
    writer = created(tmp_path / "run", progress)

    def full(path, contents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "write", full)
    writer.write(at(progress, 1), Status.INTERRUPTED)  # in another thread
    with pytest.raises(OSError, match="No space"):
        writer.wait()
    writer.wait()
    monkeypatch.undo()
    assert facts(tmp_path / "run")["outer_steps"] == 0  # the last good one
    writer.write(at(progress, 2), Status.INTERRUPTED)
    writer.wait()
    assert facts(tmp_path / "run")["outer_steps"] == 2


def test_anchors_of_a_stream_are_written_before_the_checkpoint(small, tmp_path):
    x, y = small.data
    stream = begun(small.model, x, y, batch_size=5, is_stream=True)
    writer = created(tmp_path / "run", stream)
    assert sorted(os.listdir(tmp_path / "run")) == ["beginning", "checkpoint"]
    writer.write(at(stream, 2), Status.INTERRUPTED)  # two steps since the last one
    writer.wait()
    anchors = writer.store.anchors(2)
    np.testing.assert_array_equal(anchors[0], stream.problem.x[:10])
    np.testing.assert_array_equal(anchors[1], stream.problem.y[:10])
    with pytest.raises(mfpda.InputError, match="batch 3 is incomplete"):
        writer.store.anchors(3)


def test_a_run_that_continues_makes_room_for_more_steps(progress, tmp_path):
    writer = created(tmp_path / "run", progress)
    for t in range(1, 5):
        writer.row(row_of(t), progress.problem.neuron)
    writer.write(at(progress, 4), Status.FINISHED)
    writer.wait()
    saved = SavedRun.read(tmp_path / "run")
    again = RunWriter.reopen(Checkpoint(tmp_path / "run"), saved, [4, 6], [])
    assert (again.name, again.saved_step) == (writer.name, 4)
    for t in (5, 6):
        again.row(row_of(t), progress.problem.neuron)
    again.write(at(progress, 6), Status.FINISHED)
    again.wait()
    assert facts(tmp_path / "run")["ends"] == [4, 6]
    rows = SavedRun.read(tmp_path / "run").store().rows(6)
    assert [row.outer_step for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        np.testing.assert_array_equal(row.particles["w"], row_of(row.outer_step).particles["w"])


def test_another_process_writes_nothing(progress, tmp_path, monkeypatch):
    writer = created(tmp_path / "run", progress)
    monkeypatch.setattr("mfpda.persistence.run_writer.is_writer", lambda: False)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    row = writer.row(row_of(1), progress.problem.neuron)
    writer.stats(row)
    writer.write(at(progress, 1), Status.INTERRUPTED)
    writer.wait()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert writer.saved_step == 1  # it keeps count, so that all ask for the same
