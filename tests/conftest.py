"""Shared parts of the tests: the reference problems, a small model, and what one run of the tests compiles."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda

matplotlib.use("Agg")

NEURONS = {
    "tanh_squared": lambda theta, x: jnp.tanh(theta["w"] * x[0] + theta["b"]),
    "tanh_logistic": lambda theta, x: 5 * jnp.tanh(theta["w"] * x[0] + theta["b"]),
    "sine_squared": lambda theta, x: 2 * jnp.sin(theta["w"] * x[0]) * jnp.tanh(theta["b"]),
}
LOSSES = {"squared": mfpda.losses.Squared(), "logistic": mfpda.losses.Logistic()}
WIDE_BOUNDS = {"tanh_squared": (-4, 4), "tanh_logistic": (-14, 14), "sine_squared": (-18, 18)}


def pytest_configure(config):
    """Compile a program once for all tests of a worker and for the processes that they start; gone after the run."""
    folder = tempfile.mkdtemp(prefix="compiled")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    compilations = {"jax_compilation_cache_dir": folder, "jax_persistent_cache_min_compile_time_secs": 0.2}
    for name, value in compilations.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def reference(name):
    """A reference problem: its model, its data, its exact optimum, and bounds that hold its Gibbs densities."""
    stored = json.loads((Path(__file__).parent / "references" / f"{name}.json").read_text())
    prior = dist.Normal(0, stored["prior_scale"])
    model = mfpda.Model.from_function(
        NEURONS[name], {"w": prior, "b": prior}, LOSSES[stored["loss"]], stored["temperature"]
    )
    optimum = SimpleNamespace(**stored["optimum"])
    optimum.predictions = np.asarray(optimum.predictions).ravel()
    return SimpleNamespace(
        model=model,
        data=(np.asarray(stored["x"]), np.asarray(stored["y"])),
        optimum=optimum,
        temperature=stored["temperature"],
        bounds=WIDE_BOUNDS[name],
    )


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def small():
    """Forty points of a sine and a tanh neuron. One model for the whole session: what it compiles is compiled once."""
    x = np.linspace(-2, 2, 40)[:, None]
    sites = {"w": dist.Normal(0, 1).expand([1]).to_event(1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 0.02)
    quick = {"particles": 30, "outer_steps": 8, "inner_steps": 5, "progress": False}
    return SimpleNamespace(model=model, data=(x, np.sin(x[:, 0])), quick=quick, x=x)
