"""Fixtures of all tests, and where they keep what they compile."""

import contextlib
import ctypes
import gc
import os
import shutil
import tempfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.engine.run import Run

matplotlib.use("Agg")


CACHE = "MFPDA_TEST_CACHE"  # the folder of compiled programs, shared by all workers and by the processes they start


def pytest_configure(config):
    """Compile each program once for all workers. The folder is removed after the run."""
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="compiled")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(CACHE), ignore_errors=True))
    compilations = {"jax_compilation_cache_dir": os.environ[CACHE], "jax_persistent_cache_min_compile_time_secs": 0.05}
    for name, value in compilations.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(autouse=True, scope="module")
def _programs(request):
    """Compile faster, without optimisations, unless a file is marked ``optimised`` or only slow tests run.

    Afterwards drop what the file compiled, so that memory does not grow from file to file.
    """
    optimised = request.config.option.markexpr == "slow" or request.node.get_closest_marker("optimised")
    jax.config.update("jax_disable_most_optimizations", not optimised)
    yield
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # give freed memory back to the system


@pytest.fixture(autouse=True)
def _quick_tests_do_not_fit(request, monkeypatch):
    if request.node.get_closest_marker("quick"):

        def refuse(plan):
            raise AssertionError("a test marked quick called mfpda.fit")

        monkeypatch.setattr(Run, "begin", refuse)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def small():
    """Forty points of a sine, and a tanh neuron."""
    x = np.linspace(-2, 2, 40)[:, None]
    sites = {"w": dist.Normal(0, 1).expand([1]).to_event(1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 0.02)
    quick = {"rule": "dual_averaging", "particles": 30, "outer_steps": 8, "inner_steps": 5, "progress": False}
    return SimpleNamespace(model=model, data=(x, np.sin(x[:, 0])), quick=quick, x=x)
