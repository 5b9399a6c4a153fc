"""fit, the one entry function: keys, names, defaults, precision; and what it reports of a run that has ended."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError, Status
from mfpda.engine.drive import Outcome
from mfpda.engine.fit import report
from mfpda.problem import data
from mfpda.progress import Row


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


def test_names_are_plugs_with_default_settings(small):
    named = mfpda.fit(
        jax.random.key(0), small.model, small.data, kernel="ula", start="resample", **small.quick | {"rule": "latest"}
    )
    plugged = mfpda.fit(
        jax.random.key(0), small.model, small.data, kernel=mfpda.ULA(), start=mfpda.Resample(),
        **small.quick | {"rule": mfpda.Latest()},
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
    model = mfpda.Model(small.model.declaration.neuron, lambda z, y: (z - 1) ** 2, 0.01)
    fit = mfpda.fit(jax.random.key(0), model, (small.x, None), **(small.quick | {"outer_steps": 30}))
    assert fit.rows[-1].stats["risk"] < 0.3 * fit.rows[0].stats["risk"]
    assert "observed_data" not in fit.groups


def test_what_is_no_fit(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert mfpda.summary(fit) == mfpda.summary(fit.idata)
    with pytest.raises(InputError, match="fit"):
        mfpda.to_inference_data([fit, fit])
    with pytest.raises(InputError, match="fit"):
        mfpda.summary("run.nc")


# the report


def test_a_neuron_that_is_not_finite_at_the_start_is_named_as_the_cause():
    x, y = np.linspace(-1, 1, 20)[:, None], np.linspace(-1, 1, 20)
    logarithm = lambda x: x[0] * jnp.log(numpyro.sample("w", dist.Normal(0, 1)))  # noqa: E731
    broken = mfpda.Model(logarithm, mfpda.losses.Squared(), 0.1)
    with pytest.raises(
        mfpda.RunError, match=r"after outer step 0: h.theta, x. is not finite at the particles it began"
    ):
        mfpda.fit(jax.random.key(0), broken, (x, y), particles=20, outer_steps=1, inner_steps=1, progress=False)


def run_of(rows=(), folder=None):
    """As much of a run as a report looks at."""
    store = None if folder is None else SimpleNamespace(folder=folder)
    state = SimpleNamespace(ensemble=SimpleNamespace(theta=np.zeros((3, 1))))
    progress = SimpleNamespace(t=len(rows), rows=tuple(rows), state=state, certificate=None)
    return SimpleNamespace(progress=progress, best_result=progress, better_before=None, store=store)


ROWS = [Row(1, {"risk": 0.5}, {}), Row(2, {"risk": 0.25, "gap_upper": 0.0625}, {})]
NOT_CERTIFIED = [status for status in Status if status.value.startswith("not certified")]


@pytest.mark.parametrize("status", NOT_CERTIFIED, ids=lambda status: status.name)
def test_a_run_that_was_not_certified_warns_whether_or_not_there_is_a_progress_bar(status):
    with pytest.warns(mfpda.NotCertifiedWarning) as caught:
        fit = report(run_of(ROWS), Outcome(status), throw=True)
    assert fit.status is status
    assert str(caught[0].message) == f"Fit(3 particles, 2 outer steps, risk 0.25, {status.value}). {status.advice}"


@pytest.mark.parametrize("status", [Status.FINISHED, Status.CERTIFIED, Status.INTERRUPTED])
def test_nothing_is_said_otherwise(status, capsys):
    assert report(run_of(ROWS), Outcome(status), throw=True).status is status
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("folder", "where"), [(None, ""), ("/runs/a", " It can be resumed from '/runs/a'.")], ids=["memory", "folder"]
)
def test_sigterm_ends_the_program_and_says_where_the_run_is(folder, where, capsys):
    outcome = Outcome(Status.INTERRUPTED, terminated=True)
    with pytest.raises(mfpda.Terminated) as caught:
        report(run_of(ROWS, folder=folder), outcome, throw=False)
    assert (caught.value.code, caught.value.fit.status) == (143, Status.INTERRUPTED)
    assert capsys.readouterr().err == f"mfpda: SIGTERM ended the run after outer step 2.{where}\n"


def test_a_failure_is_raised_with_its_reason_and_the_fit_or_returned():
    failed = Outcome(Status.FAILED, ZeroDivisionError("no more"))
    with pytest.raises(
        mfpda.RunError, match=r"failed after outer step 2, at which ZeroDivisionError was raised: no more\."
    ) as caught:
        report(run_of(ROWS), failed, throw=True)
    assert caught.value.__cause__ is failed.failure
    assert caught.value.fit.rows == tuple(ROWS)
    assert report(run_of(ROWS), failed, throw=False).status is Status.FAILED
