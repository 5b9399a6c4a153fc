"""The outer loop: what it compiles, records, survives and repeats."""

import _thread
import signal
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import Record, RunError, Status, Stream
from mfpda.core import schedules
from mfpda.engine import outer_step
from mfpda.problem import data


def test_a_run_with_growing_inner_steps_compiles_once_and_a_second_one_not_at_all(small):
    before = outer_step.outer_step._cache_size()
    arguments = {
        "kernel": mfpda.ULA(step_size=schedules.InverseSqrt(0.01)),
        "particles": 23,
        "outer_steps": 50,
        "inner_steps": schedules.Linear(1),
        "progress": False,
    }
    mfpda.fit(jax.random.key(0), small.model, small.data, **arguments)
    assert outer_step.outer_step._cache_size() == before + 1
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    mfpda.fit(jax.random.key(1), small.model, small.data, **arguments)
    hotter = mfpda.Model(small.model.neuron, small.model.loss, temperature=0.5)
    mfpda.fit(jax.random.key(1), hotter, small.data, **arguments)
    jax.monitoring.clear_event_listeners()
    assert outer_step.outer_step._cache_size() == before + 1
    assert compiled == []


def draw(key, batch_size):
    x = jax.random.normal(key, (batch_size, 1))
    return x, jnp.sin(x[:, 0])


@pytest.mark.slow
def test_a_stream_of_a_hundred_steps_compiles_at_most_eight_times(small):
    before = outer_step.outer_step._cache_size()
    arguments = {"particles": 11, "outer_steps": 100, "inner_steps": 2, "batch_size": 3, "progress": False}
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), **arguments)
    assert outer_step.outer_step._cache_size() - before <= 8
    assert len(fit.potential.anchors) == 300


@pytest.mark.slow
def test_a_stream_is_the_weighted_problem_on_its_anchors(small):
    """c_i = 2 s l'(z_i) / (b t (t+1)) for an anchor of batch s: the weights of the design."""
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), batch_size=5, **small.quick)
    t, s = 8, np.repeat(np.arange(1, 9), 5)
    weights = 2 * s / (5 * t * (t + 1))
    np.testing.assert_allclose(fit.potential.coefficients, weights * np.asarray(fit.dual)[:40], rtol=1e-5)
    np.testing.assert_allclose(fit.state.coefficients.c[:40], fit.potential.coefficients, rtol=1e-5)
    np.testing.assert_array_equal(fit.state.coefficients.c[40:], 0)
    theta = fit.thetas[0]
    potential = mfpda.fitted.current_potential(fit.model, fit.examples, fit.rule, fit.state)
    np.testing.assert_allclose(potential(theta), 8 / 10 * fit.potential(theta), rtol=1e-5)


def test_a_streams_risk_is_that_of_the_next_batch(small):
    """Row t judges the state after step t on batch t + 1, which it has not seen; no two batches are the same."""
    key = jax.random.key(0)
    arguments = small.quick | {"batch_size": 5}
    short = mfpda.fit(key, small.model, Stream(draw), **(arguments | {"outer_steps": 3}))
    longer = mfpda.fit(key, small.model, Stream(draw), **(arguments | {"outer_steps": 4}))
    x, y = longer.examples.x[15:20], longer.examples.y[15:20]
    risk = 0.5 * np.mean((np.asarray(short.predict(x)) - np.asarray(y)) ** 2)
    assert short.rows[-1].stats["risk"] == pytest.approx(risk, rel=1e-5)
    assert len(np.unique(np.asarray(longer.examples.x[:20]))) == 20


def test_numpy_counts_and_integer_inputs(small):
    """NumPy integers are counts; integer inputs do not round what is predicted at others."""
    arguments = {"particles": np.int64(10), "outer_steps": np.int32(2), "inner_steps": np.int64(2), "progress": False}
    x = np.arange(-5, 6)
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.tanh(theta["w"] * x), {"w": dist.Normal(1.0, 0.1)}, mfpda.losses.Squared(), 0.1
    )
    fit = mfpda.fit(jax.random.key(0), model, (x, np.tanh(x)), batch_size=np.int64(5), **arguments)
    assert fit.idata is not None
    w = np.asarray(fit.particles["w"])
    np.testing.assert_allclose(fit.predict([0.5]), [np.mean(np.tanh(0.5 * w))], rtol=1e-5)


def test_acceptance_is_a_mean_over_steps(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert fit.rows[-1].stats["acceptance_rate"] == 1.0


def test_latest_on_a_stream_sees_the_last_batch_only(small):
    fit = mfpda.fit(jax.random.key(0), small.model, Stream(draw), rule="latest", batch_size=5, **small.quick)
    potential = mfpda.fitted.current_potential(fit.model, fit.examples, fit.rule, fit.state)
    np.testing.assert_array_equal(potential.anchors, fit.examples.x[35:40])
    assert len(fit.potential.anchors) == 40


def test_every_epoch_holds_every_example_once(small):
    batches = data.feed(jax.random.key(0), small.model, small.data, 10)
    epochs = [np.sort(np.concatenate([batches.at(4 * e + k)[1] for k in range(1, 5)])) for e in range(3)]
    np.testing.assert_array_equal(epochs, [np.arange(40)] * 3)
    assert not np.array_equal(batches.at(1)[1], batches.at(5)[1])


def test_the_same_key_gives_the_same_bits_and_raw_keys_are_keys(small):
    fits = [
        mfpda.fit(key, small.model, small.data, batch_size=10, **small.quick)
        for key in (jax.random.key(3), jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(4))
    ]
    np.testing.assert_array_equal(fits[0].thetas, fits[1].thetas)
    np.testing.assert_array_equal(fits[0].thetas, fits[2].thetas)
    assert not np.array_equal(fits[0].thetas, fits[3].thetas)


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
    assert resumed.inner_steps == whole.inner_steps


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
    assert fit.inner_steps == np.sum(t**2)


def test_divergence_keeps_the_last_finite_state(small):
    kernel = mfpda.ULA(step_size=lambda t: 0.01 if t < 4 else 1e30)
    with pytest.raises(RunError, match=r"diverged after outer step 3.*smaller step_size") as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **small.quick)
    fit = caught.value.fit
    assert (fit.status, fit.outer_steps, len(fit.rows)) == (Status.DIVERGED, 3, 3)
    assert np.isfinite(fit.thetas).all()
    np.testing.assert_array_equal(fit.rows[-1].particles["b"], fit.particles["b"])
    quiet = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, throw=False, **small.quick)
    assert quiet.status is Status.DIVERGED
    np.testing.assert_array_equal(quiet.thetas, fit.thetas)


def test_a_metric_that_raises_loses_nothing(small):
    calls = []

    def metric(predict):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError("no more")
        return 0.0

    with pytest.raises(
        RunError, match=r"after outer step 3.*metric .mine. raised ZeroDivisionError: no more"
    ) as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, metrics={"mine": metric}, **small.quick)
    assert caught.value.fit.status is Status.FAILED
    assert len(caught.value.fit.rows) == 3


def test_control_c_returns_the_fit_so_far_which_resumes(small):
    """A real interrupt of the main thread in the middle of a run that would take minutes."""
    begun, done = threading.Event(), threading.Event()

    def metric(predict):
        begun.set()
        return 0.0

    def interrupt():  # again after a while: Python drops an exception that is raised inside a destructor
        begun.wait()
        while not done.is_set():
            _thread.interrupt_main()
            done.wait(3)

    thread = threading.Thread(target=interrupt)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job of the background it is ignored
    thread.start()
    arguments = small.quick | {"outer_steps": 100_000}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, metrics={"mine": metric}, **arguments)
    done.set()
    thread.join()
    signal.signal(signal.SIGINT, earlier)
    assert fit.status is Status.INTERRUPTED
    assert 0 <= fit.outer_steps < 100_000
    assert [row.outer_step for row in fit.rows] == list(range(1, fit.outer_steps + 1))
    more = fit.outer_steps + 2
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, **(arguments | {"outer_steps": more}), resume=fit)
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, **(arguments | {"outer_steps": more}))
    np.testing.assert_array_equal(resumed.thetas, whole.thetas)


def test_progress_shows_risk_step_acceptance_and_time_left(small, capsys):
    mfpda.fit(jax.random.key(0), small.model, small.data, kernel="mala", **(small.quick | {"progress": True}))
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("risk=", "step=", "accept=", "8/8", "<00:"))
    mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert capsys.readouterr().err == ""


def test_names_are_plugs_with_default_settings(small):
    named = mfpda.fit(
        jax.random.key(0), small.model, small.data, rule="latest", kernel="ula", start="resample", **small.quick
    )
    plugged = mfpda.fit(
        jax.random.key(0), small.model, small.data, rule=mfpda.Latest(), kernel=mfpda.ULA(), start=mfpda.Resample(),
        **small.quick,
    )  # fmt: skip
    np.testing.assert_array_equal(named.thetas, plugged.thetas)


def test_defaults_work_on_a_first_try():
    """A tanh neuron, standardised data, nothing else said: it learns, and does not diverge."""
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = np.tanh(x[:, 0])

    def neuron(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        return jnp.tanh(x @ w)

    fit = mfpda.fit(jax.random.key(0), mfpda.Model(neuron, mfpda.losses.Squared(), 1e-3), (x, y), progress=False)
    assert fit.rows[-1].stats["risk"] < 0.1 * np.mean(y**2) / 2


def test_double_precision_is_used_when_jax_is_set_so(small):
    with jax.enable_x64(True), warnings.catch_warnings():
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
        assert fit.thetas.dtype == fit.state.coefficients.c.dtype == jnp.float64
    assert mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick).thetas.dtype == jnp.float32


def test_a_loss_without_labels(small):
    """y may be None: here the loss wants predictions near 1."""
    model = mfpda.Model(small.model.neuron, lambda z, y: (z - 1) ** 2, 0.01)
    fit = mfpda.fit(jax.random.key(0), model, (small.x, None), **(small.quick | {"outer_steps": 30}))
    assert fit.rows[-1].stats["risk"] < 0.3 * fit.rows[0].stats["risk"]
    assert "observed_data" not in fit.groups
