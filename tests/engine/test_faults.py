"""What a run survives: signals, full disks, folders that vanish from under it, NaN, and code that raises.

Each ends in a clear message; what was recorded can be read, and the run goes on from its last good step.
"""

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import RunError, Status, Stream
from mfpda.engine import run as running
from mfpda.persistence import checkpoint, container, files
from tests.helpers import draw, same
from tests.kill_and_resume import compare_rows, compare_states, kill_and_resume, left_alone
from tests.persistence.test_checkpoint import unwritable


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A model file, and the folder of a run of it that nothing disturbed."""
    sizes = {"particles": 100, "outer_steps": 400, "inner_steps": 20, "examples": 60}
    return left_alone(tmp_path_factory.mktemp("alone"), stream=False, **sizes)


@pytest.mark.slow
def test_five_kills_at_random_moments(alone, tmp_path):
    report = kill_and_resume(tmp_path, *alone, kills=5, seed=1)
    assert report.rows == 400
    assert report.resumed >= 3


@pytest.mark.slow
def test_kills_of_a_run_on_a_stream(tmp_path):
    sizes = {"particles": 100, "outer_steps": 200, "inner_steps": 20, "examples": 0}
    file, alone = left_alone(tmp_path, stream=True, **sizes)
    report = kill_and_resume(tmp_path, file, alone, kills=6, seed=2)
    assert report.rows == 200
    assert report.resumed >= 4


COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job of the background it is ignored
from mfpda.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_signals_end_a_run_which_goes_on_with_the_same_bits(alone, tmp_path):
    """SIGTERM to `mfpda run`, Ctrl-C to `mfpda resume`, then to the end, beside a run that was left alone."""
    file, undisturbed = alone
    folder, state = tmp_path / "run", tmp_path / "run" / checkpoint.CHECKPOINT

    def ended_by(number, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments, "--quiet", "--out", str(tmp_path / "out.nc")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        earlier = state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None and (not state.exists() or state.stat().st_mtime_ns == earlier):
            time.sleep(0.01)
        process.send_signal(number)
        out, errors = process.communicate(timeout=120)
        t = container.read(state).facts["outer_steps"]
        assert f"`mfpda resume {folder}` continues after outer step {t}" in errors
        assert "interrupted" in out
        assert files.read(tmp_path / "out.nc").attrs["status"] == "interrupted"
        return process.returncode, errors, t

    code, errors, first = ended_by(signal.SIGTERM, "run", str(file), "--checkpoint", str(folder))
    assert code == 143
    assert f"SIGTERM ended the run after outer step {first}" in errors
    code, errors, second = ended_by(signal.SIGINT, "resume", str(folder))
    assert (code, "SIGTERM" in errors) == (130, False)
    assert first < second < 400
    subprocess.run([sys.executable, "-m", "mfpda", "resume", str(folder), "--quiet"], check=True, capture_output=True)
    compare_states(undisturbed / checkpoint.CHECKPOINT, state)
    assert compare_rows(undisturbed, folder) == 400


def test_sigterm_outside_of_a_run_and_handlers_of_the_program_are_left_alone(small):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    called = []
    earlier = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        metrics = {"kill": lambda predict: os.kill(os.getpid(), signal.SIGTERM) or 0.0}
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, **small.quick)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert (len(called), fit.status) == (8, Status.FINISHED)
    with pytest.raises(mfpda.Terminated) as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, **small.quick)
    assert (caught.value.code, caught.value.fit.status) == (143, Status.INTERRUPTED)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_as_soon_as_its_folder_is_there(small, tmp_path, monkeypatch):
    def open_checkpoint(run):
        original(run)
        os.kill(os.getpid(), signal.SIGTERM)

    original = running.Run.open_checkpoint
    monkeypatch.setattr(running.Run, "open_checkpoint", open_checkpoint)
    with pytest.raises(mfpda.Terminated) as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **small.quick)
    assert (caught.value.fit.status, caught.value.fit.outer_steps) == (Status.INTERRUPTED, 0)
    monkeypatch.undo()
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=tmp_path / "run", **small.quick)
    same(resumed, mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick))


class At:
    """A metric that does something once, in the middle of outer step t."""

    def __init__(self, t, action):
        self.t, self.action = t, action

    def __call__(self, predict):
        self.t -= 1
        if self.t == 0:
            self.action()
        return 0.0


def broken_and_resumed(small, folder, action, mended, message):
    """A run in whose fifth step something breaks; when that is mended it goes on, with the bits of a whole one."""
    arguments = dict(small.quick)

    def breaks():
        while container.read(folder / checkpoint.CHECKPOINT).facts["outer_steps"] < 4:  # it is written meanwhile
            time.sleep(0.01)
        action()

    with pytest.raises(RunError, match=message) as caught:
        mfpda.fit(
            jax.random.key(0), small.model, small.data, metrics={"m": At(5, breaks)}, checkpoint=folder, **arguments
        )
    mended()
    fit = caught.value.fit
    assert fit.status is Status.FAILED
    assert [row.outer_step for row in fit.rows] == list(range(1, fit.outer_steps + 1))
    kept = mfpda.load(folder, small.model, data=small.data)
    assert kept.outer_steps == 4
    assert len(kept.groups["particle_history"]["w"].values[0]) == 4
    metrics = {"m": At(100, None)}
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, resume=folder, **arguments)
    same(resumed, mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, **arguments))


def failing_at(k, monkeypatch, after):
    """From the k-th time on that a file or a folder takes its name it fails: before that is done, or after."""
    calls, original = [0], os.replace

    def replace(source, target):
        calls[0] += 1
        if calls[0] < k:
            return original(source, target)
        if after and calls[0] == k:
            original(source, target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    return calls


@pytest.mark.parametrize(
    "kind", ["every step", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("every other step", "stream"))]
)
def test_no_write_leaves_what_cannot_be_resumed(small, tmp_path, kind):
    """A disk that is full from the k-th write on, for every k of a run of three steps; it is then resumed, longer."""
    data = Stream(draw) if kind == "stream" else small.data
    record = mfpda.Record(every=2 if kind == "every other step" else 1)
    arguments = small.quick | {"outer_steps": 3, "batch_size": 6, "record": record}
    longer = arguments | {"outer_steps": 4}
    whole = mfpda.fit(jax.random.key(0), small.model, data, **longer)
    failed, begun = True, 0
    for k in itertools.count(1):
        folder = tmp_path / str(k)
        with pytest.MonkeyPatch.context() as patch:
            failing_at(k, patch, after=k % 2)
            try:
                mfpda.fit(jax.random.key(0), small.model, data, checkpoint=folder, throw=False, **arguments)
            except OSError:  # while the folder was made: it is there, whole, or not at all
                if not folder.exists():
                    continue
        failed = container.read(folder / checkpoint.CHECKPOINT).facts["status"] != "finished"
        with pytest.MonkeyPatch.context() as patch:  # once more, while it makes room for more steps
            failing_at(k, patch, after=k % 3)
            mfpda.fit(jax.random.key(0), small.model, data, resume=folder, throw=False, **longer)
        again = mfpda.fit(jax.random.key(0), small.model, data, resume=folder, **longer)
        begun += 1
        ours = [row.outer_step for row in again.rows]
        assert ours == ([2, 3, 4] if kind == "every other step" else [1, 2, 3, 4])
        np.testing.assert_array_equal(again.thetas, whole.thetas)
        for row in again.rows:
            by_step = {each.outer_step: each for each in whole.rows}
            if row.outer_step in by_step:
                np.testing.assert_array_equal(row.particles["w"], by_step[row.outer_step].particles["w"])
        if not failed:
            break
    assert begun > 10


def test_no_file_may_grow(small, tmp_path):
    """The limit on file sizes, which any user can set: writing fails as on a full disk, in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    broken_and_resumed(small, tmp_path / "run", limit(100), limit(soft), r"OSError was raised.*too large")


def test_a_full_disk(small, tmp_path):
    """A file system of its own, of 2 MiB, that is filled up while the run goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")

    def fill():
        with contextlib.suppress(OSError), open(disk / "other", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        broken_and_resumed(small, disk / "run", fill, (disk / "other").unlink, "No space left on device")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_becomes_read_only(small, tmp_path):
    """Nothing in it can be written any more, nor in what is below it."""
    folder = tmp_path / "run"
    locks = []

    def lock():
        locks.append(unwritable(*(each for each in [folder, *folder.rglob("*")] if each.is_dir())))
        locks[0].__enter__()

    broken_and_resumed(small, folder, lock, lambda: locks[0].__exit__(), "Permission denied")


def raising(error):
    raise error


def test_a_user_function_that_raises_in_step_37(small, tmp_path):
    arguments = small.quick | {"outer_steps": 40, "inner_steps": 1}
    metrics = {"m": At(37, lambda: raising(ZeroDivisionError("no more")))}
    with pytest.raises(RunError, match=r"failed after outer step 36.*metric 'm' raised ZeroDivisionError: no more"):
        mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, checkpoint=tmp_path / "run", **arguments)
    metrics = {"m": At(100, None)}
    resumed = mfpda.fit(
        jax.random.key(0), small.model, small.data, metrics=metrics, resume=tmp_path / "run", **arguments
    )
    same(resumed, mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, **arguments))


@pytest.mark.slow
def test_a_stream_that_raises_in_step_37(small, tmp_path):
    def at_37(key, batch_size):
        if at_37.left == 0:
            raise OSError("the database is gone")
        at_37.left -= 1
        return draw(key, batch_size)

    arguments = small.quick | {"outer_steps": 40, "batch_size": 3, "inner_steps": 1}
    at_37.left = 37
    with pytest.raises(RunError, match=r"failed after outer step 36.*the database is gone"):
        mfpda.fit(jax.random.key(0), small.model, Stream(at_37), checkpoint=tmp_path / "run", **arguments)
    at_37.left = 1000
    resumed = mfpda.fit(jax.random.key(0), small.model, Stream(at_37), resume=tmp_path / "run", **arguments)
    same(resumed, mfpda.fit(jax.random.key(0), small.model, Stream(draw), **arguments))


def test_a_nan_in_a_gradient(tmp_path):
    """sqrt(x2 theta^2) has the value 0 and no derivative at x2 = 0, which the anchors of batch 5 have."""
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.tanh(theta["w"] * x[0] + jnp.sqrt(x[1] * theta["w"] ** 2)),
        {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 0.02,
    )  # fmt: skip

    def poisoned(key, batch_size):
        x = jax.random.normal(key, (batch_size, 2)).at[:, 1].set(1.0)
        fifth = jnp.array_equal(key, jax.random.fold_in(data_key, 5))
        return x.at[:, 1].set(jnp.where(fifth & poison[0], 0.0, 1.0)), jnp.sin(x[:, 0])

    data_key, poison = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))[1], [True]
    arguments = {"particles": 20, "outer_steps": 8, "inner_steps": 3, "batch_size": 4, "progress": False}
    with pytest.raises(RunError, match=r"diverged after outer step 4.*checkpoint is in"):
        mfpda.fit(jax.random.key(0), model, Stream(poisoned), checkpoint=tmp_path / "run", **arguments)
    kept = mfpda.load(tmp_path / "run", model)
    assert (kept.status, kept.outer_steps, len(kept.rows)) == (Status.DIVERGED, 4, 4)
    assert np.isfinite(kept.thetas).all()
    poison[0] = False
    fit = mfpda.fit(jax.random.key(0), model, Stream(poisoned), resume=tmp_path / "run", **arguments)
    assert (fit.status, fit.outer_steps) == (Status.FINISHED, 8)


def test_a_step_size_that_explodes(small, tmp_path):
    """The last finite state is kept; the run goes on from there with a smaller step, in another folder."""
    explodes = mfpda.ULA(step_size=lambda t: 0.01 if t < 5 else 1e30)
    with pytest.raises(RunError, match=r"diverged after outer step 4.*smaller step_size.*checkpoint is in"):
        mfpda.fit(
            jax.random.key(0), small.model, small.data, kernel=explodes, checkpoint=tmp_path / "run", **small.quick
        )
    kept = mfpda.load(tmp_path / "run", small.model, data=small.data, kernel=mfpda.ULA(0.01))
    assert (kept.outer_steps, len(kept.rows)) == (4, 4)
    new = {"resume": kept, "checkpoint": tmp_path / "calmer", "kernel": mfpda.ULA(0.01)}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **new, **small.quick)
    same(fit, mfpda.fit(jax.random.key(0), small.model, small.data, kernel=mfpda.ULA(0.01), **small.quick))
