"""Rows and particles as xarray data sets, and back."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.problem import Problem
from mfpda.progress import OUTER_STATS, Row, datasets, rows_from

pytestmark = pytest.mark.quick

NORMAL = dist.Normal(0, 1)


@pytest.fixture(scope="module")
def neuron():
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"]),
        {"w": NORMAL.expand([2]).to_event(1), "b": NORMAL},
        mfpda.losses.Squared(), 0.1, dims={"w": ["feature"]}, coords={"feature": ["height", "weight"]},
    )  # fmt: skip
    return Problem.of(model, jnp.ones((3, 2))).neuron


def rows(steps=(2, 4, 5)):
    return [
        Row(t, {"risk": 1 / t, "seconds": float(t)}, {"w": np.full((3, 2), t, np.float32), "b": np.arange(3.0) + t})
        for t in steps
    ]


def test_rows_come_back(neuron):
    found = rows_from(datasets.particle_history(rows(), neuron), datasets.outer_stats(rows()))
    for ours, theirs in zip(found, rows(), strict=True):
        assert (ours.outer_step, ours.stats) == (theirs.outer_step, theirs.stats)
        assert list(ours.particles) == list(theirs.particles)
        for name, value in theirs.particles.items():
            assert ours.particles[name].dtype == value.dtype
            np.testing.assert_array_equal(ours.particles[name], value)


def test_no_rows_come_back(neuron):
    history, stats = datasets.particle_history([], neuron), datasets.outer_stats([])
    assert dict(history.sizes) == {"chain": 1, "outer_step": 0, "draw": 0, "feature": 2}
    assert list(history.data_vars) == ["w", "b"]
    assert tuple(stats.data_vars) == OUTER_STATS
    assert rows_from(history, stats) == []


def test_history_has_its_dims_and_labels(neuron):
    history = datasets.particle_history(rows(), neuron)
    assert history["w"].dims == ("chain", "outer_step", "draw", "feature")
    assert history["b"].dims == ("chain", "outer_step", "draw")
    assert history["w"].shape == (1, 3, 3, 2)
    assert history["feature"].values.tolist() == ["height", "weight"]
    assert history["outer_step"].values.tolist() == [2, 4, 5]
    np.testing.assert_array_equal(history["w"].sel(outer_step=4), np.full((1, 3, 2), 4))


def test_a_number_that_some_rows_lack_is_nan_there():
    first, *others = rows()
    certified = [first, *(row._replace(stats=row.stats | {"gap": 0.5}) for row in others)]
    stats = datasets.outer_stats(certified)
    np.testing.assert_array_equal(stats["gap"].values, [[np.nan, 0.5, 0.5]])
    np.testing.assert_array_equal(stats["risk"].values, [[1 / 2, 1 / 4, 1 / 5]])


def test_particles_and_traces_have_one_axis_of_chains(neuron):
    particles = datasets.particles_dataset({"w": np.ones((4, 2)), "b": np.ones(4)}, neuron)
    assert (particles["w"].dims, particles["w"].shape) == (("chain", "draw", "feature"), (1, 4, 2))
    trace = datasets.inner_trace({"w": np.ones((4, 6, 2)), "b": np.ones((4, 6))}, neuron)
    assert dict(trace.sizes) == {"chain": 4, "draw": 6, "feature": 2}
    only_b = datasets.particles_dataset({"b": np.ones(4)}, neuron)
    assert "feature" not in only_b.coords
