"""Runs whose density becomes improper, runs that never do, and the advice for funnels."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import sample

import mfpda
from mfpda import InputError, RunError, Status
from mfpda.engine import plan, run
from tests.helpers import slow_but
from tests.proper_models import X, Y, model_of, vector

SHORT = {"particles": 100, "outer_steps": 6, "progress": False}


def test_a_first_try_is_refused_before_it_runs():
    with pytest.raises(InputError, match=r"jnp.tanh\(a\) \* jax.nn.relu\(w @ x \+ b\)"):
        mfpda.fit(jax.random.key(0), model_of("a relu"), (X, Y), **SHORT)


def far_off():
    """a relu at a temperature where the prior's dual is proper. The dual of its first particles is not."""
    cold = model_of("a relu", 1.0)
    init = {"a": dist.Normal(4, 0.1), "w": vector(dist.Normal(3, 0.1)), "b": dist.Normal(0, 0.1)}
    return mfpda.Model(cold.declaration.neuron, mfpda.losses.Squared(), 1.0, init=init)


@pytest.mark.parametrize("kernel", ["ula", "mala"])
def test_a_density_that_becomes_improper_stops_the_run(kernel):
    with pytest.raises(
        RunError, match=r"became improper after outer step 0\. .*outgrows the prior.*tanh\(a\)"
    ) as caught:
        mfpda.fit(jax.random.key(0), far_off(), (X, Y), kernel=kernel, **SHORT)
    fit = caught.value.fit
    assert fit.status is Status.IMPROPER
    assert np.isfinite(fit.thetas).all()


def test_it_keeps_the_last_proper_state_and_all_rows(monkeypatch, tmp_path):
    """Here the third look says so."""
    looks, looked = [], run.runs_away

    def third(potential, thetas):
        looks.append(looked(potential, thetas))
        return looks[-1] | (len(looks) == 3)

    monkeypatch.setattr(run, "runs_away", third)
    model = model_of("tanh(a) relu", 0.1)
    whole = mfpda.fit(jax.random.key(0), model, (X, Y), **(SHORT | {"outer_steps": 2}))
    looks.clear()
    fit = mfpda.fit(jax.random.key(0), model, (X, Y), throw=False, checkpoint=tmp_path / "run", **SHORT)
    assert (fit.status, fit.outer_steps, len(fit.rows)) == (Status.IMPROPER, 2, 2)
    np.testing.assert_array_equal(fit.thetas, whole.thetas)
    assert mfpda.load(tmp_path / "run", model, data=(X, Y)).status is Status.IMPROPER
    assert "became improper" in repr(fit)


def test_what_slips_through_the_first_check_is_stopped(monkeypatch):
    monkeypatch.setattr(plan, "check_proper", lambda problem: None)
    fit = mfpda.fit(jax.random.key(0), model_of("cube"), (X, Y), kernel="mala", throw=False, **SHORT)
    assert fit.status is Status.IMPROPER


@pytest.mark.parametrize("name", slow_but(["linear"], ["tanh(a) relu", "linear", "funnel of bounded scale"]))
def test_runs_of_proper_densities_are_never_stopped(name):
    fit = mfpda.fit(jax.random.key(0), model_of(name, 0.5), (X, Y), kernel="mala", **SHORT)
    assert fit.status is Status.FINISHED


def test_an_overshooting_run_is_not_called_improper():
    """Dual averaging of a stiff linear problem overshoots by orders of magnitude. Its densities are all proper."""
    fit = mfpda.fit(
        jax.random.key(0), model_of("linear", 0.01), (X, Y), rule="dual_averaging", **(SHORT | {"outer_steps": 8})
    )
    assert fit.rows[-1].stats["second_moment"] > 1e6
    assert fit.status is Status.FINISHED


# funnels


def test_a_centred_hierarchy_gets_advice_that_works():
    model = model_of("funnel", 0.05)
    with pytest.raises(
        RunError, match=r"diverged after outer step 0.*'w' depends on 'tau'.*default rule.*mala.*non-centre"
    ):
        mfpda.fit(jax.random.key(0), model, (X, Y), rule="dual_averaging", kernel="ula", **SHORT)
    long = SHORT | {"outer_steps": 20}
    for kernel in ("mala", "hmc"):
        fit = mfpda.fit(jax.random.key(0), model, (X, Y), rule="dual_averaging", kernel=kernel, **long)
        assert fit.rows[-1].stats["risk"] < 0.5 * np.mean(Y**2) / 2
        assert fit.rows[-1].stats["acceptance_rate"] > 0.4


def test_a_hierarchy_without_a_centre_runs_with_ula():
    def neuron(x):
        tau = sample("tau", dist.HalfNormal(1.0))
        w = tau * sample("w", vector(dist.Normal(0, 1)))
        return jnp.tanh(x @ w)

    model = mfpda.Model(neuron, mfpda.losses.Squared(), 0.05)
    fit = mfpda.fit(
        jax.random.key(0), model, (X, Y), rule="dual_averaging", kernel="ula", **(SHORT | {"outer_steps": 20})
    )
    assert fit.rows[-1].stats["risk"] < 0.5 * np.mean(Y**2) / 2


def test_other_runs_that_diverge_keep_their_advice():
    settings = SHORT | {"rule": "dual_averaging", "kernel": mfpda.kernels.ULA(1e3)}
    with pytest.raises(RunError, match="smaller step_size"):
        mfpda.fit(jax.random.key(0), model_of("linear", 0.5), (X, Y), **settings)
