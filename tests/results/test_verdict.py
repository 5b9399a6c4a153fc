"""The verdict is right in situations made for it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError
from mfpda.results.verdict import Finding
from tests.helpers import cells, reference

LAST = {"record": mfpda.Record(every=10_000), "progress": False}


def run(name, **arguments):
    ours = reference(name)
    return mfpda.fit(jax.random.key(0), ours.model, ours.data, **(LAST | arguments))


def converged():
    return run("tanh_squared", kernel="mala", particles=500, outer_steps=40, inner_steps=20)


def still_moving():
    """Four exact steps at a high temperature: t has passed the stiffness, 2, and the path still swings."""
    x = np.linspace(-2, 2, 40)
    sites = {"w": dist.Normal(0, 1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(x * theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 0.5)
    return mfpda.fit(
        jax.random.key(0), model, (x, np.sin(x)), kernel="mala", start="temper", particles=4000, outer_steps=4,
        inner_steps=50, **LAST,
    )  # fmt: skip


def stopped_early():
    """Particles that follow every potential, but 10 outer steps only, of a stiffness that swings and exceeds 20."""
    settings = {"particles": 2000, "outer_steps": 10, "inner_steps": 20, "record": mfpda.Record()}
    return run("tanh_logistic", kernel="mala", start="temper", **settings)


def too_coarse():
    """ULA with ten times the step that suits the potential."""
    settings = {"particles": 2000, "outer_steps": 120, "inner_steps": 33}
    tuned = run("tanh_logistic", kernel="ula", **settings).rows[-1].stats["step_size"]
    return run("tanh_logistic", kernel=mfpda.ULA(step_size=10 * tuned), **settings)


def stuck():
    return run("sine_squared", kernel="mala", particles=2000, outer_steps=60, inner_steps=33)


def too_slow():
    """ULA with a step so small that the particles are still where they began."""
    return run("tanh_squared", kernel=mfpda.ULA(step_size=1e-6), particles=1000, outer_steps=20, inner_steps=20)


def undecided():
    """A neuron that is not a number for nearly all of the prior: nothing can be tempered from there."""
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.sqrt(theta["w"] - 9) * x, {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0,
        init={"w": dist.Normal(20, 0.1)},
    )  # fmt: skip
    return mfpda.fit(
        jax.random.key(0), model, (np.ones(3), np.ones(3)), kernel="mala", particles=50, outer_steps=1, inner_steps=1,
        **LAST,
    )  # fmt: skip


SITUATIONS = {
    converged: (Finding.CONVERGED, "of what could be won"),
    undecided: (Finding.UNDECIDED, "Raise particles="),
    still_moving: (Finding.STILL_MOVING, "Take more outer_steps"),
    stopped_early: (Finding.STOPPED_EARLY, "below the stiffness of"),
    too_coarse: (Finding.TOO_COARSE, "Make its step_size smaller"),
    stuck: (Finding.STUCK, "start=Temper()"),
    too_slow: (Finding.TOO_SLOW, "more inner_steps"),
}


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_the_verdict_is_right(situation):
    finding, words = SITUATIONS[situation]
    verdict = mfpda.verdict(jax.random.key(1), situation())
    print(repr(verdict))
    assert verdict.findings[0] is finding
    assert words in repr(verdict)


@pytest.mark.slow
def test_a_kernel_without_noise_is_named():
    fit = run("tanh_squared", kernel="gradient_descent", particles=1000, outer_steps=20, inner_steps=20)
    verdict = mfpda.verdict(jax.random.key(1), fit)
    assert Finding.NO_NOISE in verdict.findings
    assert "samples nothing" in repr(verdict)


@pytest.mark.slow
def test_a_coarse_kernel_is_named_also_where_the_density_has_converged():
    """tanh_squared forgives it: predictions are fed back, so that g is right while the particles are too wide."""
    tuned = run("tanh_squared", kernel="ula", particles=1000, outer_steps=20).rows[-1].stats["step_size"]
    fit = run("tanh_squared", kernel=mfpda.ULA(step_size=10 * tuned), particles=1000, outer_steps=40, inner_steps=20)
    verdict = mfpda.verdict(jax.random.key(1), fit)
    assert verdict.findings == (Finding.CONVERGED, Finding.TOO_COARSE)
    assert verdict.stein.excess > 0.2


@pytest.mark.slow
def test_a_bound_that_is_too_noisy_is_undecided_and_more_particles_decide():
    """At a temperature of 50 the prior is all but optimal, and little can be won."""
    x = np.linspace(-2, 2, 50)
    sites = {"w": dist.Normal(0, 1), "b": dist.Normal(0, 1)}
    h = lambda theta, x: 2 * jnp.tanh(x * theta["w"] + theta["b"])  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 5.0)
    fit = mfpda.fit(
        jax.random.key(0), model, (x, np.sin(1.5 * x)), kernel="mala", start="temper", particles=1000, outer_steps=20,
        inner_steps=3, **LAST,
    )  # fmt: skip
    assert mfpda.verdict(jax.random.key(1), fit, particles=200).findings[0] is Finding.UNDECIDED
    assert mfpda.verdict(jax.random.key(1), fit, particles=30_000).findings[0] is Finding.CONVERGED


@pytest.mark.slow
def test_a_run_that_broke_off_is_not_judged_as_if_it_had_not(small):
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, **(small.quick | {"outer_steps": 2}),
        kernel=mfpda.ULA(step_size=lambda t: 0.01 if t == 1 else 1e30), throw=False,
    )  # fmt: skip
    assert fit.status is mfpda.Status.DIVERGED
    assert mfpda.verdict(jax.random.key(0), fit).findings == (Finding.BROKEN_OFF,)
    early = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert mfpda.verdict(jax.random.key(0), early).findings[-1] is Finding.STOPPED_EARLY


@pytest.mark.slow
def test_the_kernel_is_not_blamed_for_a_fit_with_the_defaults():
    """Its particles share ancestors and are calibrated, so the Stein test of independent draws does not judge them."""
    ours = reference("tanh_logistic")
    for seed in range(3):
        fit = mfpda.fit(jax.random.key(seed), ours.model, ours.data, progress=False)
        verdict = mfpda.verdict(jax.random.key(10 + seed), fit)
        assert verdict.findings == (Finding.CONVERGED,), verdict


def test_an_improper_density_has_no_verdict():
    """No sample of it exists, so nothing is compared with one."""
    h = lambda theta, x: theta["a"] * jnp.maximum(theta["w"] * x, 0)  # noqa: E731
    model = mfpda.Model.from_function(h, {"a": dist.Normal(0, 1), "w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 5.0)
    x = np.linspace(-2, 2, 20)
    fit = mfpda.fit(
        jax.random.key(0), model, (x, np.sin(x)), rule="dual_averaging", particles=50, outer_steps=1, **LAST
    )
    verdict = mfpda.verdict(jax.random.key(1), fit, dual=-200 * np.ones(20))
    assert verdict.findings == (Finding.UNDECIDED,)
    assert "the fitted density is improper" in repr(verdict)
    assert verdict._facts()["gap"] == "unknown"


@pytest.mark.parametrize("other", [None, {"w": 1.0}, "run.nc"])
def test_what_is_no_fit_is_refused(other):
    with pytest.raises(InputError, match=f"Expected a Fit, found {type(other).__name__}"):
        mfpda.verdict(jax.random.key(0), other)


def test_a_notebook_shows_findings_gap_stiffness_and_what_to_do(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    verdict = replace(mfpda.verdict(jax.random.key(1), fit), findings=(Finding.STOPPED_EARLY, Finding.STILL_MOVING))
    title, facts = cells(verdict._repr_html_())
    assert title == "Verdict"
    assert list(facts) == ["stopped before its stiffness", "still moving", "gap", "stiffness", "next"]
    assert facts["gap"] == f"{verdict.certificate.gap:.3g} +- {verdict.certificate.stderr:.2g}"
    assert facts["next"] == f"{Finding.STOPPED_EARLY.advice} {Finding.STILL_MOVING.advice}"
    for finding in verdict.findings:
        assert f"{finding.value.capitalize()}. {facts[finding.value]} {finding.advice}" in repr(verdict)
