"""A run: what it records, what its schedules say, what it certifies, and that a resumed one gives the same bits."""

import jax
import numpy as np
import pytest

import mfpda
from mfpda import Record, Stream
from mfpda.core import schedules
from tests.helpers import draw, same


def test_a_streams_risk_is_that_of_the_next_batch(small):
    """Row t judges the state after step t on batch t + 1, which it has not seen; no two batches are the same."""
    key = jax.random.key(0)
    arguments = small.quick | {"batch_size": 5}
    short = mfpda.fit(key, small.model, Stream(draw), **(arguments | {"outer_steps": 3}))
    longer = mfpda.fit(key, small.model, Stream(draw), **(arguments | {"outer_steps": 4}))
    x, y = longer.problem.x[15:20], longer.problem.y[15:20]
    risk = 0.5 * np.mean((np.asarray(short.predict(x)) - np.asarray(y)) ** 2)
    assert short.rows[-1].stats["risk"] == pytest.approx(risk, rel=1e-5)
    assert len(np.unique(np.asarray(longer.problem.x[:20]))) == 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rule", ["dual_averaging", "latest"])
def test_a_resumed_run_gives_the_bits_of_the_whole_one(small, stream, rule):
    data = Stream(draw) if stream else small.data
    arguments = small.quick | {"batch_size": 6, "rule": rule, "inner_steps": schedules.Linear(1)}
    whole = mfpda.fit(jax.random.key(0), small.model, data, **arguments)
    half = mfpda.fit(jax.random.key(0), small.model, data, **(arguments | {"outer_steps": 5}))
    resumed = mfpda.fit(jax.random.key(0), small.model, data, **arguments, resume=half)
    np.testing.assert_array_equal(whole.thetas, resumed.thetas)
    np.testing.assert_array_equal(whole.potential.coefficients, resumed.potential.coefficients)
    assert [row.outer_step for row in resumed.rows] == list(range(1, 9))
    assert [row.stats["risk"] for row in resumed.rows] == [row.stats["risk"] for row in whole.rows]
    assert resumed.progress.inner_steps == whole.progress.inner_steps


def test_record_thins_steps_sites_and_particles(small):
    record = Record(every=3, sites=("w",), particles=7)
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, record=record, **small.quick)
    assert [row.outer_step for row in fit.rows] == [3, 6, 8]
    assert {name: value.shape for name, value in fit.rows[0].particles.items()} == {"w": (7, 1)}
    assert isinstance(fit.rows[0].particles["w"], np.ndarray)
    assert fit.particles["b"].shape == (30,)


def test_rows_are_the_states_after_their_steps(small):
    """Row t of a run is the final state of a run of t steps, and its risk is the risk of that state."""
    long = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    short = mfpda.fit(jax.random.key(0), small.model, small.data, **(small.quick | {"outer_steps": 4}))
    np.testing.assert_array_equal(long.rows[3].particles["b"], short.particles["b"])
    x, y = small.data
    assert long.rows[3].stats["risk"] == pytest.approx(0.5 * np.mean((np.asarray(short.predict(x)) - y) ** 2), rel=1e-5)
    second = np.mean(np.sum(np.asarray(short.thetas) ** 2, axis=1))
    assert long.rows[3].stats["second_moment"] == pytest.approx(second, rel=1e-5)


def test_metrics_are_functions_of_predict(small):
    metrics = {"at_one": lambda predict: predict(np.ones((1, 1)))[0]}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, metrics=metrics, **small.quick)
    assert fit.rows[-1].stats["at_one"] == pytest.approx(float(fit.predict(np.ones((1, 1)))[0]), rel=1e-6)


def test_schedules_are_followed(small):
    kernel = mfpda.ULA(step_size=schedules.InverseSqrt(0.01))
    arguments = small.quick | {"inner_steps": lambda t: t * t}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **arguments)
    stats = fit.groups["outer_stats"].isel(chain=0)
    t = np.arange(1, 9)
    np.testing.assert_allclose(stats["step_size"], 0.01 / np.sqrt(t), rtol=1e-6)
    np.testing.assert_array_equal(stats["inner_steps"], t**2)
    assert fit.progress.inner_steps == np.sum(t**2)


@pytest.mark.slow
def test_a_run_that_reached_its_gap_stays_there_when_it_is_resumed(small, tmp_path):
    arguments = {
        "rule": "dual_newton", "particles": 40, "outer_steps": 24, "inner_steps": 3, "certify_every": 12,
        "stop_at_gap": 0.1, "progress": False,
    }  # fmt: skip
    fit = mfpda.fit(jax.random.key(1), small.model, small.data, checkpoint=tmp_path / "run", **arguments)
    assert (fit.status, fit.outer_steps) == (mfpda.Status.CERTIFIED, 12)
    same(mfpda.fit(jax.random.key(1), small.model, small.data, resume=tmp_path / "run", **arguments), fit)
