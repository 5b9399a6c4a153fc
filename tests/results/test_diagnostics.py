"""The summary says what a person should know, and the verdict is right in situations made for it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError
from mfpda.results import diagnostics
from mfpda.results.diagnostics import Finding
from tests.conftest import reference

LAST = {"record": mfpda.Record(every=10_000), "progress": False}


def test_a_run_that_stopped_before_its_stiffness_says_so(small):
    """Stiffness here is about 40: a run of 8 steps is warned of, one of 100 is not, and neither is another rule."""
    runs = {
        (steps, rule): mfpda.fit(
            jax.random.key(0), small.model, small.data, rule=rule, **(small.quick | {"outer_steps": steps})
        )
        for steps, rule in ((8, "dual_averaging"), (100, "dual_averaging"), (8, "latest"))
    }
    stiffness = runs[100, "dual_averaging"].rows[-1].stats["stiffness"]
    assert 8 < stiffness < 100
    warned = {name: "before its stiffness" in mfpda.summary(fit) for name, fit in runs.items()}
    assert warned == {(8, "dual_averaging"): True, (100, "dual_averaging"): False, (8, "latest"): False}


def test_many_coordinates_are_cut(small):
    sites = {"w": dist.Normal(0, 1).expand([30]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: theta["w"][0] * x[0], sites, mfpda.losses.Squared(), 1.0)
    fit = mfpda.fit(jax.random.key(0), model, small.data, **(small.quick | {"outer_steps": 1}))
    assert mfpda.summary(fit).endswith("... and 18 more coordinates")


def test_between_runs_compares_runs(small):
    fits = [mfpda.fit(jax.random.key(seed), small.model, small.data, **small.quick) for seed in range(2)]
    mixing = diagnostics.between_runs(mfpda.to_inference_data(*fits))
    assert set(mixing.r_hat.data_vars) == set(mixing.ess.data_vars) == {"w", "b"}
    assert mixing.worst_r_hat == max(float(mixing.r_hat[name].max()) for name in "wb") < 1.3
    assert mixing.smallest_ess <= 60
    with pytest.raises(InputError, match="two runs or more"):
        diagnostics.between_runs(fits[0].idata)


@pytest.mark.slow
def test_kernel_report_of_a_trace(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel="mala", **small.quick)
    trace = fit.trace(jax.random.key(1), draws=200, particles=4)
    report = diagnostics.kernel_report(trace)
    assert report.acceptance == trace.attrs["acceptance_rate"]
    assert report.diverging == 0
    assert report.ess_per_gradient == pytest.approx(report.mixing.smallest_ess / 800)
    with pytest.raises(InputError, match="a trace of a kernel"):
        diagnostics.kernel_report(fit.idata["posterior"])


# The verdict


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
    """Particles that follow every potential, but 20 outer steps only."""
    return run("tanh_logistic", kernel="mala", start="temper", particles=2000, outer_steps=20, inner_steps=20)


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
    stopped_early: (Finding.STOPPED_EARLY, "of a stiffness of"),
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
