"""What an outer step of a Stream costs as its anchors grow, and what it costs in accuracy to keep that constant.

    python tests/benchmarks/stream.py

1. Seconds an outer step of ULA, whose gradient is over all anchors so far, and of StochasticGradient, at several t, as
ratios, and the exponents of their growth. All of an outer step is in it: the draw of the batch, the buffer, the rule,
the automatic step size, the inner steps, the record. 2. On the stream of the paper's Figure 2(a), where integrals over
theta can be done on a grid: how far the particles' predictions are from those of the density that they sample, at one
potential and in whole runs, and how far that density is from the optimum.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.stats

import mfpda

BATCH, DIMENSIONS, PARTICLES, INNER_STEPS = 50, 20, 500, 20
TIMED, AT_EACH = (10, 40, 160, 640), 6  # every capacity of the buffer that these meet is 1.6 times what is in it
ANCHORS = (64, 256, 1024)


def timed_run(kernel):
    """The seconds of the least disturbed of the outer steps that follow each t of TIMED; others take one inner step."""
    sites = {"w": dist.Normal(0, 1).expand([DIMENSIONS]).to_event(1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 1e-2)

    @jax.jit
    def drawn(key):
        x = jax.random.normal(key, (BATCH, DIMENSIONS))
        return x, jnp.sign(x[:, 0])

    after = lambda t: next((start for start in TIMED if start < t <= start + AT_EACH), None)  # noqa: E731
    fit = mfpda.fit(
        jax.random.key(0), model, mfpda.Stream(lambda key, batch_size: drawn(key)), kernel=kernel, batch_size=BATCH,
        particles=PARTICLES, outer_steps=TIMED[-1] + AT_EACH, progress=False, record=mfpda.Record(particles=1),
        inner_steps=lambda t: INNER_STEPS if after(t) else 1,
    )  # fmt: skip
    seconds = np.diff([row.stats["seconds"] for row in fit.rows], prepend=0)
    return [min(seconds[t - 1] for t in range(2, len(seconds) + 1) if after(t) == start) for start in TIMED]


def cost():
    kernels = [mfpda.ULA(), *(mfpda.StochasticGradient(anchors=m) for m in ANCHORS)]
    print(f"Seconds of an outer step over those at t = {TIMED[0]}: {INNER_STEPS} inner steps, batch {BATCH}, ", end="")
    print(f"d = {DIMENSIONS}, M = {PARTICLES}")
    print(f"{'':50} " + " ".join(f"t = {t:<5d}" for t in TIMED) + " exponent")
    for kernel in kernels:
        seconds = timed_run(kernel)
        exponent = np.polyfit(np.log(TIMED), np.log(seconds), 1)[0]
        ratios = " ".join(f"{each / seconds[0]:<9.2f}" for each in seconds)
        print(f"{kernel!s:50} {ratios} {exponent:.2f}    ({1e3 * seconds[0]:.0f} ms at first)", flush=True)


def accuracy(outer_steps=100, seeds=3, draws=1000):
    problem = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "models" / "single_index.py")))
    x = scipy.stats.norm.ppf((np.arange(200) + 0.5) / 200)
    grid = mfpda.exact.Quadrature.of(problem.model, (x, np.asarray(problem.teacher(x))), (-4.5, 4.5), points=121)
    best = grid.optimum(tolerance=1e-8).objective
    kernels = [mfpda.ULA(), *(mfpda.StochasticGradient(anchors=m) for m in ANCHORS)]
    settings = {"batch_size": BATCH, "particles": PARTICLES, "outer_steps": outer_steps, "inner_steps": INNER_STEPS}

    def run(seed, kernel):
        stream, record = mfpda.Stream(problem.draw), mfpda.Record(every=outer_steps)
        key = jax.random.key(seed)
        return mfpda.fit(key, problem.model, stream, kernel=kernel, **settings, record=record, progress=False)

    rms = lambda errors: float(np.sqrt(np.mean(np.square(errors))))  # noqa: E731
    print(f"\nThe paper's stream, {BATCH * outer_steps} anchors, M = {PARTICLES}. Whole runs, mean of {seeds} seeds:")
    fits = {}
    for kernel in kernels:
        rows = []
        for seed in range(seeds):
            fit = fits[kernel] = run(seed, kernel)
            law = grid.law_of(fit.last_potential)
            found = rms(fit.predict(x) - grid.predictions(law).ravel())
            rows.append((found, grid.objective(law) - best, grid.risk(np.asarray(fit.predict(x)))))
        error, gap, risk = np.mean(rows, axis=0)
        numbers = f"error of z {error:.4f}, L - L* of their density {gap:.1e}, risk {risk:.1e}"
        print(f"{kernel!s:50} {numbers}", flush=True)

    fit = fits[kernels[0]]
    law, step_size = grid.law_of(fit.last_potential), fit.rows[-1].stats["step_size"]
    exact = grid.predictions(law).ravel()
    print(f"At the last potential of ULA, {draws} steps of eta = {step_size:.2g}:")
    for kernel in kernels:
        kernel = type(kernel)(**{**vars(kernel), "step_size": step_size})
        trace = fit.trace(jax.random.key(1), draws, PARTICLES, kernel)
        w, b = (np.asarray(trace[name])[:, draws // 5 :] for name in ("w", "b"))
        z = np.stack([np.tanh(w * node + b).mean(axis=0) for node in x[::10]])  # node, step
        bias, wandering = rms(z.mean(axis=1) - exact[::10]), rms(z - z.mean(axis=1, keepdims=True))
        print(f"{kernel!s:60} bias of z {bias:.4f}, its wandering from step to step {wandering:.4f}", flush=True)
    spread = rms(np.std(np.tanh(w[:, -1, None] * x[::10] + b[:, -1, None]), axis=0)) / np.sqrt(PARTICLES)
    print(f"{'(independent particles would wander by':60} {spread:.4f})")


if __name__ == "__main__":
    cost()
    accuracy()
