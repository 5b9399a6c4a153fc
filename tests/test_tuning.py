"""Step sizes that choose themselves: near the best on every problem we have, and never far out."""

import dataclasses
import functools
import importlib.util
from pathlib import Path

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.fitted import current_potential
from mfpda.kernels import KERNELS
from mfpda.kernels.protocol import is_adjusted
from tests.conftest import reference

PROBLEMS = ["tanh_squared", "sine_squared", "tanh_logistic", "circles", "fifty_dimensions"]


def single_index(n=1000, d=50):
    """The sign of one direction, at the lambda1 and lambda2 of the paper's Appendix F.1."""
    random = np.random.default_rng(0)
    x = random.standard_normal((n, d))
    prior, temperature = mfpda.penalty(lambda1=1e-2, lambda2=5e-4)
    sites = {"w": prior.expand([d]).to_event(1), "b": prior}
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    return mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), temperature), (x, np.sign(x[:, 0]))


@functools.cache
def fitted(name):
    """A short run whose last potential is what the kernels are compared on."""
    arguments = {"particles": 500, "outer_steps": 30, "inner_steps": 10, "start": "temper", "kernel": "mala"}
    if name == "circles":
        path = Path(__file__).parents[1] / "models" / "circles.py"
        spec = importlib.util.spec_from_file_location("circles_for_tuning", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model, data = module.model, module.data(jax.random.key(0))
    elif name == "fifty_dimensions":
        model, data = single_index()
        arguments |= {"start": "warm", "inner_steps": 20}
    else:
        model, data = reference(name).model, reference(name).data
    record = mfpda.Record(every=30)
    return mfpda.fit(jax.random.key(0), model, data, **arguments, record=record, progress=False)


def judged(fit, kernel, draws, chains):
    """ESS per gradient of the slowest coordinate; the chains' mean energies; step size; share of divergences.

    The smaller of bulk and tail ESS: trajectories of half a period swap the tails for ever, and look good in the bulk.
    """
    trace = fit.trace(jax.random.key(1), draws, chains, kernel)
    if trace.attrs["diverging"]:
        return 0.0, np.full(chains, np.nan), trace.attrs["step_size"], trace.attrs["diverging"]
    sizes = np.concatenate([
        np.ravel(size) for method in ("bulk", "tail") for size in arviz.ess(trace, method=method).data_vars.values()
    ])  # fmt: skip
    flat = [np.asarray(trace[site.name]).reshape(chains * draws, -1) for site in fit.structure.sites]
    potential = current_potential(fit.model, fit.examples, fit.rule, fit.state)
    energies = _energies(potential, jnp.asarray(np.concatenate(flat, axis=1), float)).reshape(chains, draws)
    per_gradient = sizes.min() / (draws * chains * trace.attrs["gradients_per_draw"])
    return per_gradient, np.asarray(energies.mean(axis=1)), trace.attrs["step_size"], 0.0


_energies = jax.jit(lambda potential, thetas: jax.vmap(potential)(thetas))


def bias(energies, exact):
    """The bias of E[V] with its standard error: medians over chains, most of which stay in the mode they began in."""
    difference = energies - exact
    spread = 1.48 * np.median(np.abs(difference - np.median(difference)))
    return np.median(difference), 1.25 * spread / np.sqrt(len(difference))


def compared(name, kernel, draws, chains):
    """ESS per gradient of "auto" over that of the best of 8 steps: of those of no larger bias, if unadjusted."""
    fit = fitted(name)
    auto, energies, step_size, diverging = judged(fit, kernel, draws, chains)
    exact = None if is_adjusted(kernel) else judged(fit, mfpda.MALA(), draws, chains)[1]
    best, at = 0.0, np.nan
    for factor in 2.0 ** np.arange(-3, 5):
        got, its_energies, _, broke = judged(
            fit, dataclasses.replace(kernel, step_size=factor * step_size), draws, chains
        )
        if exact is not None:
            (ours, our_error), (its, its_error) = bias(energies, exact), bias(its_energies, exact)
            if broke or abs(its) > abs(ours) + np.hypot(our_error, its_error):
                continue
        if got > best:
            best, at = got, factor
    print(f"{name}, {KERNELS.name_of(kernel)}: auto {step_size:.2g}, ESS per gradient {auto:.2g}, "
          f"best {best:.2g} at {at:g} x, ratio {auto / best:.2f}"
          + ("" if exact is None else f", bias of E[V] {ours:.3f} +- {our_error:.3f}"), flush=True)  # fmt: skip
    return auto / best, diverging


ADAPTERS = [
    "blackjax:hmc",
    "blackjax:ghmc",
    "blackjax:barker_proposal",
    "blackjax:nuts",
    "numpyro:HMC",
    "numpyro:BarkerMH",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("kernel", ["mala", "ula", "underdamped", *ADAPTERS])
def test_auto_is_within_a_factor_of_two_of_the_best_step(name, kernel):
    ratio, diverging = compared(name, KERNELS.resolve(kernel), 300 if name == "fifty_dimensions" else 1000, chains=100)
    assert ratio >= 0.5
    assert diverging == 0
