"""What blocks of anchors save in memory, and what they cost in time.

    python tests/benchmarks/memory.py

1. The peak resident memory of a recorded run of the size of MNIST, n = 60,000, d = 784, M = 2,500, from a memory-mapped
file, in a process of its own: with a budget of 1 GiB and with the default one. It must stay under 4 GiB; each
intermediate result of all particles and examples would take 0.6. 2. A blocked inner step over an unblocked one, and a
snapshot (what is recorded after an outer step) likewise, where both fit.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda import sampling
from mfpda.engine import outer_step
from mfpda.problem import Problem, blocks_within
from mfpda.problem.memory import GIB

try:
    from tests.benchmarks.inner_step import STEP_SIZE, by_mfpda, interleaved, problem
except ModuleNotFoundError:  # run as a script
    from inner_step import STEP_SIZE, by_mfpda, interleaved, problem

DIGITS, PIXELS, PARTICLES = 60_000, 784, 2_500
LIMIT = 4.0  # GiB


def digits(path):
    """Bytes as float32 in [0, 1], most of them 0, in a file: written a few rows at a time."""
    random = np.random.default_rng(0)
    x = np.lib.format.open_memmap(path, "w+", np.float32, (DIGITS, PIXELS))
    for start in range(0, DIGITS, 1000):
        part = random.integers(0, 256, (1000, PIXELS)) * (random.random((1000, PIXELS)) < 0.2)
        x[start : start + 1000] = part / 255
    x.flush()


def run(path, memory):
    """A short run on that file; prints its peak."""
    x = np.load(path, mmap_mode="r")
    y = np.where(x[:, PIXELS // 2] > 0, 1.0, -1.0)
    sites = {"w": dist.Normal(0, 1).expand([PIXELS]).to_event(1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 3 * jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Logistic(), 1e-3)
    before, began = peak(), time.perf_counter()
    fit = mfpda.fit(
        jax.random.key(0), model, (x, y), kernel=mfpda.MALA(step_size=1e-4), particles=PARTICLES, outer_steps=2,
        inner_steps=2, memory=memory, progress=False,
    )  # fmt: skip
    fit.predict(x)
    budget = "default" if memory is None else f"{memory:g} GiB"
    rows = fit.settings.block_rows
    print(
        f"(n, d, M) = ({DIGITS}, {PIXELS}, {PARTICLES}), budget {budget}, blocks of {rows} rows: "
        f"peak {peak():.2f} GiB ({before:.2f} before the fit), {time.perf_counter() - began:.0f} s"
    )
    return peak()


def peak():
    """Of the resident memory of this process so far, in GiB."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / GIB if sys.platform == "darwin" else size / 2**20


def cost(n, d, particles, memory, steps, rounds):
    model, x, y = problem(n, d)
    x, y, key = jnp.asarray(x), jnp.asarray(y), jax.random.key(0)
    whole = Problem.of(model, x, y)
    cut = blocks_within(memory, whole.neuron, particles).over(n)
    blocked = whole.in_blocks(cut)
    potential, blocked_potential = (each.potential(-y / n) for each in (whole, blocked))
    kernel = mfpda.ULA(step_size=jnp.asarray(STEP_SIZE))
    thetas = sampling.draw_initial(key, particles, whole)
    medians = interleaved(
        {
            "whole": lambda: by_mfpda(key, thetas, potential, kernel, steps),
            "blocked": lambda: by_mfpda(key, thetas, blocked_potential, kernel, steps),
            "snapshot whole": lambda: outer_step.snapshot(whole, thetas),
            "snapshot blocked": lambda: outer_step.snapshot(blocked, thetas),
        },
        rounds,
    )
    ratio = medians["blocked"] / medians["whole"]
    snapshots = [1e3 * medians[f"snapshot {name}"] for name in ("blocked", "whole")]
    print(
        f"(n, d, M) = ({n}, {d}, {particles}), {memory:g} GiB, blocks of {cut.rows} rows: "
        f"{1e3 * medians['blocked'] / steps:.0f} ms an inner step, {ratio:.3f} x unblocked; "
        f"{snapshots[0]:.0f} ms a snapshot, {snapshots[0] / snapshots[1]:.3f} x"
    )
    return ratio


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(run(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else None) > LIMIT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        digits(path)
        for budget in (["1"], []):
            subprocess.run([sys.executable, __file__, str(path), *budget], check=True)
    for memory in (0.5, 0.1, 0.02):
        cost(20_000, 50, 2_000, memory, steps=3, rounds=5)
