"""What an inner step and a whole fit cost, as ratios inside one process.

    python tests/benchmarks/inner_step.py

1. mfpda's ULA loop over a hand-written fused JAX loop of the same arithmetic (two matrix products, tanh, Gaussian
noise). 2. A whole fit with recording over the same number of bare inner steps. 3. How the time of an inner step grows
with n x M, the products of anchors and particles.

Runs are interleaved and medians compared, because these machines are shared: identical code varies by tens of per cent.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda import sampling
from mfpda.problem import Problem

TEMPERATURE, SCALE, STEP_SIZE = 1e-2, 1.0, 1e-4


def problem(n, d):
    """A tanh neuron with a bias on d inputs, and n examples."""
    x = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    y = np.sign(x[:, 0]).astype(np.float32)
    sites = {"w": dist.Normal(0, SCALE).expand([d]).to_event(1), "b": dist.Normal(0, SCALE)}
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    return mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), TEMPERATURE), x, y


@jax.jit
def by_hand(key, w, b, x, c, steps):
    """Unadjusted Langevin on M tanh neurons, as one would write it for one paper."""

    def step(k, carry):
        w, b = carry
        w_key, b_key = jax.random.split(jax.random.fold_in(key, k))
        slope = c[:, None] * (1 - jnp.square(jnp.tanh(x @ w.T + b))) / TEMPERATURE
        w_gradient = slope.T @ x + w / SCALE**2
        b_gradient = jnp.sum(slope, axis=0) + b / SCALE**2
        noise = jnp.sqrt(2 * STEP_SIZE)
        w = w - STEP_SIZE * w_gradient + noise * jax.random.normal(w_key, w.shape)
        b = b - STEP_SIZE * b_gradient + noise * jax.random.normal(b_key, b.shape)
        return w, b

    return jax.lax.fori_loop(0, steps, step, (w, b))


@jax.jit
def by_mfpda(key, thetas, potential, kernel, steps):
    ensemble = sampling.begin(key, thetas, potential, kernel)
    return sampling.run(key, ensemble, potential, kernel, steps)[0].theta


def interleaved(functions, rounds):
    """The median time of each function, run in turn after one warm-up round."""
    times = {name: [] for name in functions}
    for round_number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            if round_number:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def inner_step(n, d, particles, steps, rounds):
    model, x, y = problem(n, d)
    x, c, key = jnp.asarray(x), jnp.asarray(-y / n), jax.random.key(0)
    potential = Problem.of(model, x).potential(c)
    kernel = mfpda.ULA(step_size=jnp.asarray(STEP_SIZE))
    thetas = sampling.draw_initial(key, particles, potential.problem)
    w, b = thetas[:, :d], thetas[:, d]
    medians = interleaved(
        {
            "by hand": lambda: by_hand(key, w, b, x, c, steps),
            "mfpda": lambda: by_mfpda(key, thetas, potential, kernel, steps),
        },
        rounds,
    )
    ratio = medians["mfpda"] / medians["by hand"]
    print(f"(n, d, M) = ({n}, {d}, {particles}): {1e3 * medians['mfpda'] / steps:.2f} ms a step, {ratio:.3f} x by hand")
    return ratio


def growth(d, sizes, rounds):
    """The exponent of time in n x M, n = M: the slope of a straight line through the logarithms."""
    times, key, kernel = {}, jax.random.key(0), mfpda.ULA(step_size=jnp.asarray(STEP_SIZE))
    for size in sizes:
        n = round(size**0.5)
        model, x, y = problem(n, d)
        potential = Problem.of(model, jnp.asarray(x)).potential(jnp.asarray(-y / n))
        thetas = sampling.draw_initial(key, n, potential.problem)
        steps = max(1, int(1e7 / size))
        step = lambda: by_mfpda(key, thetas, potential, kernel, steps)  # noqa: B023, E731
        times[size] = interleaved({"step": step}, rounds)["step"] / steps
        print(
            f"n = M = {n}, d = {d}: {1e3 * times[size]:.2f} ms a step, {1e9 * times[size] / size / d:.3f} ns / (n M d)"
        )
    exponent = np.polyfit(np.log(list(times)), np.log(list(times.values())), 1)[0]
    print(f"    time grows like (n M)^{exponent:.3f}")


def whole_fit(n, d, particles, inner_steps, outer_steps, rounds):
    model, x, y = problem(n, d)
    key = jax.random.key(0)
    potential = Problem.of(model, jnp.asarray(x)).potential(jnp.asarray(-y / n))
    kernel = mfpda.ULA(step_size=jnp.asarray(STEP_SIZE))
    thetas = sampling.draw_initial(key, particles, potential.problem)
    arguments = {"particles": particles, "outer_steps": outer_steps, "inner_steps": inner_steps, "progress": False}
    medians = interleaved(
        {
            "bare": lambda: by_mfpda(key, thetas, potential, kernel, inner_steps * outer_steps),
            "fit": lambda: mfpda.fit(key, model, (x, y), kernel=mfpda.ULA(step_size=STEP_SIZE), **arguments).thetas,
            "fit, auto step": lambda: mfpda.fit(key, model, (x, y), **arguments).thetas,
        },
        rounds,
    )
    for name in ("fit", "fit, auto step"):
        ratio = medians[name] / medians["bare"]
        print(
            f"(n, d, M) = ({n}, {d}, {particles}), {outer_steps} x {inner_steps}: {name} {ratio:.3f} x bare inner steps"
        )
    return medians["fit"] / medians["bare"]


if __name__ == "__main__":
    inner_step(1000, 50, 1000, steps=20, rounds=15)
    inner_step(2500, 784, 2500, steps=3, rounds=7)
    whole_fit(1000, 50, 200, inner_steps=20, outer_steps=50, rounds=9)
    growth(50, [1e5, 1e6, 1e7, 1e8], rounds=5)
