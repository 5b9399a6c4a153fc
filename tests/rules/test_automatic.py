"""rule="auto", the plugs that suit a rule, and batches that a rule cannot take."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import DualAveraging, DualNewton, InputError, Stream
from mfpda.engine.plan import make_plan
from mfpda.rules.automatic import LARGEST, pick
from tests.helpers import draw


@pytest.mark.parametrize(
    ("problem", "rule", "why"),
    [
        ((False, None, (1000,), 500, False, False), DualNewton(), "500 particles at 1000 examples"),
        ((True, 50, (200,), 500, False, False), DualAveraging(), "stream"),
        ((False, 50, (1000,), 500, False, False), DualAveraging(), "batches of 50"),
        ((False, None, (1000,), 500, True, False), DualAveraging(), "init"),
        ((False, None, (LARGEST // 10, 11), 1, False, False), DualAveraging(), "too many to keep"),
        ((False, None, (1000,), 500, False, True), DualAveraging(), "kinks and no curvature"),
    ],
)
def test_it_picks_by_what_the_problem_is(problem, rule, why):
    found, reason = pick(*problem)
    assert found == rule
    assert why in reason


def test_it_says_what_it_picked(small, capsys):
    """On the screen where there is a progress bar, and in the settings of the fit in any case."""
    arguments = small.quick | {"outer_steps": 2, "rule": "auto"}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **arguments | {"progress": True})
    assert 'rule="auto" chose DualNewton(share=0.5): every step sees all examples' in capsys.readouterr().err
    assert (fit.rule, fit.start) == (DualNewton(), mfpda.Temper())
    assert fit.settings.rule == "DualNewton(share=0.5)"


def planned(small, rule, kernel, start, inner_steps):
    """The kernel, the start and the inner steps of the plan that ``fit`` makes of these."""
    plan = make_plan(
        jax.random.key(0), small.model, small.data, rule=rule, kernel=kernel, start=start, inner_steps=inner_steps,
        particles=4, outer_steps=2, tolerance=None, batch_size=None, record=mfpda.Record(), metrics=None,
        certify_every=0, stop_at_gap=None, memory=None, checkpoint=None, resume=None, devices=None, progress=False,
    )  # fmt: skip
    assert plan.inner_steps.tolist() == [plan.settings.inner_steps] * 2
    assert plan.kernels == [plan.kernels[0]] * 2
    assert (plan.settings.kernel, plan.settings.start) == (repr(plan.kernels[0]), repr(plan.start))
    return plan.kernels[0], plan.start, plan.settings.inner_steps


@pytest.mark.parametrize(
    ("rule", "suited"),
    [
        ("dual_newton", (mfpda.HMC(), mfpda.Temper(), 1)),
        ("dual_coordinate_ascent", (mfpda.MALA(), mfpda.Reweight(), 10)),
        ("dual_averaging", (mfpda.ULA(), mfpda.Warm(), 20)),
        ("latest", (mfpda.ULA(), mfpda.Warm(), 20)),
    ],
)
def test_what_is_not_named_suits_the_rule_and_what_is_named_stays(small, rule, suited):
    assert planned(small, rule, None, None, None) == suited
    named = mfpda.Underdamped(), mfpda.Resample(), 3
    assert planned(small, rule, *named) == named


def test_newton_refuses_batches(small):
    expected = (
        "all examples at every step for DualNewton, which needs the covariance.*batches of 10.*Leave batch_size out"
    )
    with pytest.raises(InputError, match=expected):
        mfpda.fit(jax.random.key(0), small.model, small.data, batch_size=10, **small.quick | {"rule": "dual_newton"})


@pytest.mark.parametrize("rule", ["dual_newton", "fictitious_play", "dual_coordinate_ascent"])
def test_rules_that_return_to_examples_refuse_a_stream(small, rule):
    with pytest.raises(InputError, match=r"a data set .*which returns to its examples, found a stream.*Draw"):
        mfpda.fit(jax.random.key(0), small.model, Stream(draw), **small.quick | {"rule": rule})


def test_a_misspelt_auto_is_known(small):
    with pytest.raises(InputError, match=r"'latest', 'auto'.*Did you mean 'auto'"):
        mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick | {"rule": "atuo"})


def test_reweighting_refuses_particles_that_are_no_draws_of_the_prior(small):
    init = {"b": dist.Normal(0, 0.1)}
    model = mfpda.Model(small.model.declaration.neuron, small.model.loss, 0.02, init=init)
    with pytest.raises(InputError, match=r"draws of the prior.*a model with init.*another start"):
        mfpda.fit(jax.random.key(0), model, small.data, **small.quick | {"rule": "dual_coordinate_ascent"})


def absolute(z, y):
    return jnp.abs(z - y)


@pytest.mark.parametrize("rule", ["dual_newton", "dual_coordinate_ascent"])
def test_rules_that_need_curvature_refuse_a_loss_with_kinks_alone(small, rule):
    model = mfpda.Model(small.model.declaration.neuron, absolute, 0.02)
    expected = (
        r"a loss with curvature for Dual\w+, .* found one whose second derivative is 0 except at kinks\. "
        r'Use rule="dual_averaging", or a smooth loss: `lambda z, y: .*` .* losses\.SmoothedHinge\(\)'
    )
    with pytest.raises(InputError, match=expected):
        mfpda.fit(jax.random.key(0), model, small.data, **small.quick | {"rule": rule})


def test_the_smooth_loss_that_the_refusal_names_is_taken(small):
    smooth = lambda z, y: jnp.sqrt((z - y) ** 2 + 1e-2)  # noqa: E731
    model = mfpda.Model(small.model.declaration.neuron, smooth, 0.02)
    fit = mfpda.fit(jax.random.key(0), model, small.data, **small.quick | {"rule": "dual_newton"})
    assert fit.status is mfpda.Status.FINISHED


def test_auto_averages_a_loss_with_kinks_alone_and_says_why(small, capsys):
    model = mfpda.Model(small.model.declaration.neuron, absolute, 0.02)
    fit = mfpda.fit(jax.random.key(0), model, small.data, **small.quick | {"rule": "auto", "progress": True})
    assert fit.rule == DualAveraging()
    assert "the loss has kinks and no curvature" in capsys.readouterr().err
