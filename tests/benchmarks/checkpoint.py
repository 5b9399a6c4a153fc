"""What recording and checkpointing cost, as ratios inside one process, and that memory does not grow with steps.

    python tests/benchmarks/checkpoint.py            # three runs in turn, at (n, d, M) = (1000, 50, 1000)
    python tests/benchmarks/checkpoint.py memory     # peak resident memory of 100 and of 2,000 recorded outer steps

Times are medians over the outer steps of a run, by its own clock, so that compilation and the making of the store, at
the first step, do not count.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from inner_step import STEP_SIZE, problem

import mfpda


def seconds_a_step(fit):
    return float(np.median(np.diff([row.stats["seconds"] for row in fit.rows])))


def overhead(n, d, particles, inner_steps, outer_steps, rounds):
    """A run that records every step in memory, one that keeps history and checkpoint of every step on disk."""
    model, x, y = problem(n, d)
    arguments = {"particles": particles, "outer_steps": outer_steps, "inner_steps": inner_steps, "progress": False}
    arguments["kernel"] = mfpda.ULA(step_size=STEP_SIZE)
    times = {"in memory": [], "checkpoint": [], "checkpoint, 10th step": []}
    for round_number in range(rounds + 1):
        for name, seconds in times.items():
            with tempfile.TemporaryDirectory() as folder:
                every = 10 if "10th" in name else 1
                kept = {} if name == "in memory" else {"checkpoint": mfpda.Checkpoint(f"{folder}/run", every=every)}
                fit = mfpda.fit(jax.random.key(0), model, (x, y), **arguments, **kept)
            if round_number:
                seconds.append(seconds_a_step(fit))
    medians = {name: statistics.median(values) for name, values in times.items()}
    plain = medians.pop("in memory")
    print(
        f"(n, d, M) = ({n}, {d}, {particles}), {inner_steps} inner steps: {1e3 * plain:.1f} ms an outer step, recorded"
    )
    for name, median in medians.items():
        print(f"    {name}: {median / plain:.3f} x")


def peak(outer_steps):
    """Run in a process of its own: a run's peak resident memory in MiB."""
    model, x, y = problem(200, 20)
    with tempfile.TemporaryDirectory() as folder:
        mfpda.fit(
            jax.random.key(0), model, (x, y), particles=500, outer_steps=outer_steps, inner_steps=2, progress=False,
            checkpoint=f"{folder}/run",
        )  # fmt: skip
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def memory():
    peaks = {}
    for outer_steps in (100, 2000):
        command = [sys.executable, __file__, "peak", str(outer_steps)]
        peaks[outer_steps] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{outer_steps} recorded outer steps of 500 x 21 numbers: peak {peaks[outer_steps]:.0f} MiB")
    print(f"    ratio {peaks[2000] / peaks[100]:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        peak(int(sys.argv[2]))
    elif sys.argv[1:] == ["memory"]:
        memory()
    else:
        overhead(1000, 50, 1000, inner_steps=20, outer_steps=40, rounds=7)
