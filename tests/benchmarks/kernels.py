"""What the kernels cost, as ratios inside one process.

    python tests/benchmarks/kernels.py

1. A step of MALA over a step of ULA. 2. MALA over BlackJAX's MALA through the adapter. 3. The adapters over the same
library's kernel called by hand in the same loop. Runs are interleaved and medians compared.
"""

import blackjax
import jax
import jax.numpy as jnp
from inner_step import STEP_SIZE, interleaved, problem
from numpyro.infer import HMC

import mfpda
from mfpda import sampling
from mfpda.problem import Problem

LEAPFROGS = 3


run = jax.jit(lambda *arguments: sampling.run(*arguments)[0].theta)


def _looped(key, states, step, steps):
    """Every particle's steps, with a key of its own for each."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(jax.tree.leaves(states)[0])))
    every_particle = lambda k, states: jax.vmap(step)(jax.vmap(jax.random.fold_in, (0, None))(keys, k), states)  # noqa: E731
    return jax.lax.fori_loop(0, steps, every_particle, states)


@jax.jit
def blackjax_by_hand(key, states, potential, step_size, steps):
    log_density = lambda theta: -potential(theta)  # noqa: E731
    kernel = blackjax.mala.build_kernel()
    return _looped(key, states, lambda key, state: kernel(key, state, log_density, step_size)[0], steps).position


def _numpyro_kernel(potential, step_size):
    settings = {"num_steps": LEAPFROGS, "trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
    return HMC(potential_fn=potential, step_size=step_size, **settings)


@jax.jit
def numpyro_by_hand(key, states, potential, step_size, steps):
    kernel = _numpyro_kernel(potential, step_size)
    kernel.init(key, 0, states.z[0], (), {})  # it builds its parts there
    return _looped(key, states, lambda key, state: kernel.sample(state._replace(rng_key=key), (), {}), steps).z


def ratios(n, d, particles, steps, rounds):
    model, x, y = problem(n, d)
    x, c, key = jnp.asarray(x), jnp.asarray(-y / n), jax.random.key(0)
    potential = Problem.of(model, x).potential(c)
    thetas = sampling.draw_prior(key, particles, potential.problem)
    eta = jnp.asarray(STEP_SIZE)
    kernels = {
        "ula": mfpda.ULA(step_size=eta),
        "mala": mfpda.MALA(step_size=eta),
        "underdamped": mfpda.Underdamped(step_size=eta, friction=jnp.ones(())),
        "blackjax:mala": mfpda.FromBlackJAX("mala", step_size=eta),
        "numpyro:HMC": mfpda.FromNumPyro("HMC", step_size=eta, num_steps=LEAPFROGS),
    }
    functions = {}
    for name, kernel in kernels.items():
        ensemble = jax.jit(sampling.begin)(key, thetas, potential, kernel)
        functions[name] = lambda ensemble=ensemble, kernel=kernel: run(key, ensemble, potential, kernel, steps)
    states = jax.vmap(lambda theta: blackjax.mala.init(theta, lambda theta: -potential(theta)))(thetas)
    functions["blackjax:mala by hand"] = lambda: blackjax_by_hand(key, states, potential, eta, steps)
    begun = jax.vmap(lambda theta, key: _numpyro_kernel(potential, eta).init(key, 0, theta, (), {}))
    hmc_states = begun(thetas, jax.random.split(key, particles))
    functions["numpyro:HMC by hand"] = lambda: numpyro_by_hand(key, hmc_states, potential, eta, steps)
    medians = interleaved(functions, rounds)
    print(f"(n, d, M) = ({n}, {d}, {particles}), {1e3 * medians['ula'] / steps:.2f} ms a step of ULA")
    for above, below in [
        ("mala", "ula"),
        ("underdamped", "ula"),
        ("mala", "blackjax:mala"),
        ("blackjax:mala", "blackjax:mala by hand"),
        ("numpyro:HMC", "numpyro:HMC by hand"),
    ]:
        print(f"    {above} {medians[above] / medians[below]:.3f} x {below}")


if __name__ == "__main__":
    ratios(1000, 50, 1000, steps=20, rounds=25)
