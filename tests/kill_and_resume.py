"""Kill a run with SIGKILL again and again, resume it each time, and compare it with one that was left alone.

    python tests/kill_and_resume.py --kills 50              # a run of a few minutes; --stream for one on a stream

Moments are random: while Python starts, while the step is compiled, in the middle of an outer step. Every third kill is
aimed: it falls as soon as the unfinished file of a checkpoint is seen. After every kill the folder is read with xarray,
and each row that is there has to be the one of the run that was left alone, bit for bit; at the end so have the
particles, the rule, and everything that was recorded.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from mfpda.persistence import checkpoint, container
from mfpda.persistence.history_store import FOLDER

MODEL = """
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import mfpda

def neuron(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
    return 2 * jnp.tanh(x @ w + numpyro.sample("b", dist.Normal(0, 1)))

model = mfpda.Model(neuron, mfpda.losses.Squared(), 0.02)

def draw(key, batch_size):
    x = jax.random.normal(key, (batch_size, 4))
    return x, jnp.sin(x[:, 0])

def data(key):
    return mfpda.Stream(draw) if {stream} else draw(key, {examples})

settings = {{
    "kernel": "mala",
    "particles": {particles},
    "outer_steps": {outer_steps},
    "inner_steps": mfpda.schedules.Linear(slope=0.0, base={inner_steps}),
    "batch_size": 20,
    "metrics": {{"at_zero": lambda predict: predict(jnp.zeros((1, 4)))[0]}},
}}
"""


class Report(NamedTuple):
    """What was seen."""

    kills: int
    before_the_folder: int  # when nothing was there to be resumed
    inside_a_checkpoint: int  # an unfinished file was left behind
    resumed: int
    rows: int


def left_alone(folder: Path, **settings) -> tuple[Path, Path]:
    """A model file, and the folder of a run of it that nothing disturbed."""
    file, alone = folder / "model.py", folder / "alone"
    file.write_text(MODEL.format(**settings))
    finish(["run", str(file), "--checkpoint", str(alone)])
    return file, alone


def kill_and_resume(folder: Path, file: Path, alone: Path, kills: int, seed: int) -> Report:
    """Kill and resume a run in this folder; raises where it differs from the one that was left alone."""
    random.seed(seed)
    steps = np.diff(opened(alone)["seconds"].values[0])
    lifetime = np.minimum(steps, 3 * np.median(steps)).sum() / (2 * kills)  # without the steps that compiled
    killed, state = folder / "killed", folder / "killed" / checkpoint.CHECKPOINT
    before, inside, resumed = 0, 0, 0
    for k in range(kills):
        begun = killed.exists()
        command = ["resume", str(killed)] if begun else ["run", str(file), "--checkpoint", str(killed)]
        process = started(command)
        if k % 5 == 4:
            time.sleep(random.uniform(0, 5))
        else:
            wait_for_a_step(process, state)
            time.sleep(random.uniform(0, lifetime))
        if k % 3 == 2:
            wait_for_an_unfinished_checkpoint(process, killed)
        process.kill()
        _, errors = process.communicate()
        if process.returncode == 0:  # it came to its end before it could be killed
            kills = k
            break
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"{command} ended with {process.returncode} before it could be killed: {errors}")
        resumed += begun
        before += not killed.exists()
        inside += (killed / f".{checkpoint.CHECKPOINT}.unfinished").exists()
        if killed.exists():
            compare_rows(alone, killed)
            print(f"kill {k + 1}: at outer step {container.read(state).facts['outer_steps']}", flush=True)
    finish(["resume", str(killed)] if killed.exists() else ["run", str(file), "--checkpoint", str(killed)])
    compare_states(alone / checkpoint.CHECKPOINT, state)
    return Report(kills, before, inside, resumed + 1, compare_rows(alone, killed))


def started(arguments):
    command = [sys.executable, "-m", "mfpda", *arguments, "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(arguments):
    process = started(arguments)
    _, errors = process.communicate()
    if process.returncode:
        raise AssertionError(f"{arguments} ended with {process.returncode}: {errors}")


def wait_for_a_step(process, path):
    """Until this process has written a checkpoint of its own."""
    earlier = path.stat().st_mtime_ns if path.exists() else 0
    while process.poll() is None and (path.stat().st_mtime_ns if path.exists() else 0) == earlier:
        time.sleep(0.01)


def wait_for_an_unfinished_checkpoint(process, folder):
    unfinished, until = str(folder / f".{checkpoint.CHECKPOINT}.unfinished"), time.monotonic() + 10
    while process.poll() is None and time.monotonic() < until and not os.path.exists(unfinished):
        pass


def compare_states(expected, found):
    """Everything that a checkpoint holds."""
    (facts, arrays), (ours, found_arrays) = container.read(expected), container.read(found)
    assert facts | {"run": None} == ours | {"run": None}
    assert list(arrays) == list(found_arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found_arrays[name], array, err_msg=name)


def compare_rows(expected, found) -> int:
    """Every row of this history is that of the other; none is missing before the last. How many there are."""
    if not (found / FOLDER / "particle_history").exists():
        return 0
    alone, killed = (opened(folder) for folder in (expected, found))
    there = np.isfinite(killed["risk"].values[0])
    rows = int(there.sum())
    assert there[:rows].all(), "a row is missing"
    done = container.read(found / checkpoint.CHECKPOINT).facts["outer_steps"]
    assert rows >= done, f"{rows} rows of {done} outer steps"
    for name in set(killed.data_vars) - {"seconds"}:
        np.testing.assert_array_equal(killed[name].values[:, :rows], alone[name].values[:, :rows], err_msg=name)
    return rows


def opened(folder):
    """A run's history and numbers, as xarray reads them."""
    group = lambda name: xr.open_zarr(folder / FOLDER, group=name, chunks=None, consolidated=False)  # noqa: E731
    return xr.merge([group("particle_history"), group("outer_stats")["values"].to_dataset("statistic")])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--outer-steps", type=int, default=3000)
    options = parser.parse_args()
    sizes = {"particles": 400, "outer_steps": options.outer_steps, "inner_steps": 20, "examples": 200}
    if options.stream:
        sizes["outer_steps"] = min(options.outer_steps, 400)
    with tempfile.TemporaryDirectory() as scratch:
        file, alone = left_alone(Path(scratch), stream=options.stream, **sizes)
        report = kill_and_resume(Path(scratch), file, alone, options.kills, options.seed)
    print(f"resumed, with the same bits, after {report.kills - report.before_the_folder} of {report.kills}: {report}")
