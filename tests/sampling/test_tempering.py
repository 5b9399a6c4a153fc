"""Tempering samples Gibbs densities as quadrature computes them, in the right proportions between modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import mfpda
from mfpda import MALA, FromBlackJAX, InputError, Temper, exact, sampling
from mfpda.problem.outputs import predictions
from mfpda.problem.potential import GibbsPotential
from mfpda.sampling import tempering
from tests.conftest import reference

REPLICATES, PARTICLES = 32, 1000
NAMES = ["tanh_squared", "sine_squared", "tanh_logistic"]


@functools.cache
def problem(name):
    """A reference problem, its quadrature, and the coefficients and gamma of g* and of exact dual averaging's g_t."""
    ours = reference(name)
    quadrature = exact.Quadrature.of(ours.model, ours.data, ours.bounds, 401)
    laws = {"g*": (np.asarray(ours.optimum.dual_g).ravel() / len(ours.data[0]), 1.0)}
    laws |= {t.outer_step: (t.coefficients, t.gamma) for t in quadrature.run(100) if t.outer_step in (20, 100)}
    return ours, quadrature, laws


def potential_of(ours, coefficients, gamma):
    x, _ = ours.data
    return GibbsPotential(*(ours.model, *(jnp.asarray(part, float) for part in (x, coefficients, gamma))))


@functools.partial(jax.jit, static_argnames="sampler")
def replicated(keys, potential, sampler):
    """Predictions of one sample per key."""

    def one(key):
        thetas, stats = sampler(key, potential)
        return predictions(potential.model, thetas, potential.anchors), stats

    return jax.lax.map(one, keys)


def tempered(key, potential):
    return tempering.temper(key, potential, PARTICLES, MALA(), 5, 0.5)


def standard_errors(z, truth):
    """How many standard errors, taken between replicates, the mean lies off the truth, at the worst input."""
    error = z.std(axis=0, ddof=1) / np.sqrt(len(z))
    return np.max(np.abs(z.mean(axis=0) - truth) / error)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tempered_samples_predict_as_quadrature_does(name):
    """At the optimum's g* and at exact dual averaging's g_t, early and late, within 4 errors between 32 replicates.

    Predictions move together along a few directions, so about 4 x 9 independent trials with 31 degrees of freedom: a
    false-failure rate of 1 % for all, at a fixed seed.
    """
    ours, quadrature, laws = problem(name)
    for place, (coefficients, gamma) in laws.items():
        law, log_normaliser = quadrature.gibbs(coefficients, gamma)
        potential = potential_of(ours, coefficients, gamma)
        z, stats = jax.device_get(replicated(jax.random.split(jax.random.key(3), REPLICATES), potential, tempered))
        off = standard_errors(z, quadrature.predictions(law))
        print(f"{name} at {place}: {off:.2f} errors off, {stats.temperatures.mean():.1f} temperatures, "
              f"{stats.gradients.mean():.0f} gradients")  # fmt: skip
        assert off < 4
        assert np.all(stats.effective_sample_size > 0.49 * PARTICLES)
        assert stats.acceptance.mean() > 0.4
        if place == "g*":
            assert abs(np.mean(stats.log_normaliser) - log_normaliser) < 4 * scipy.stats.sem(stats.log_normaliser)


@pytest.mark.slow
def test_the_comparison_sees_moves_that_bend_the_law(monkeypatch):
    """With unadjusted moves the same comparison fails: it is the accept step that makes the sample right."""
    ours, quadrature, laws = problem("tanh_squared")
    law, _ = quadrature.gibbs(*laws["g*"])
    always = lambda key, correction, before, proposal: (proposal, metropolis(key, correction, before, proposal)[1])  # noqa: E731
    from mfpda.kernels.mala import metropolis

    monkeypatch.setattr("mfpda.kernels.mala.metropolis", always)

    def bent(key, potential):
        return tempering.temper(key, potential, PARTICLES, MALA(), 5, 0.5)

    z, _ = jax.device_get(
        replicated(jax.random.split(jax.random.key(3), REPLICATES), potential_of(ours, *laws["g*"]), bent)
    )
    assert standard_errors(z, quadrature.predictions(law)) > 4


@pytest.mark.slow
def test_warm_particles_do_not_where_there_are_modes():
    """On sine_squared both are asked for the Gibbs density of a run's own step 20, known by quadrature.

    Particles that were moved there by 400 steps of MALA from step to step lie in the wrong modes; tempered ones, after
    20 gradients, do not.
    """
    ours, quadrature, _ = problem("sine_squared")
    errors = {"warm": [], "tempered": []}
    for seed in range(4):
        fit = mfpda.fit(
            jax.random.key(seed), ours.model, ours.data, kernel="mala", particles=PARTICLES, outer_steps=20,
            record=mfpda.Record(every=20), progress=False,
        )  # fmt: skip
        coefficients, gamma = fit.state.coefficients
        truth = quadrature.predictions(quadrature.gibbs(np.asarray(coefficients, float), float(gamma))[0])
        potential = potential_of(ours, coefficients, gamma)
        z, _ = replicated(jax.random.split(jax.random.key(seed), 1), potential, tempered)
        errors["warm"].append(np.asarray(fit.predict(ours.data[0])) - truth)
        errors["tempered"].append(np.asarray(z[0]) - truth)
    rms = {name: np.sqrt(np.mean(np.square(values))) for name, values in errors.items()}
    print(f"rms errors of predictions: {rms}, truth of rms {np.sqrt(np.mean(truth**2)):.2f}")
    assert rms["tempered"] < 0.05
    assert rms["warm"] > 5 * rms["tempered"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dual_averaging_with_temper_reaches_the_optimum(name):
    """After 200 outer steps the fitted density is within 1 % of where the prior was, by quadrature."""
    ours, quadrature, _ = problem(name)
    fit = mfpda.fit(
        jax.random.key(0), ours.model, ours.data, kernel="mala", start=Temper(), particles=16_000, outer_steps=200,
        inner_steps=1, record=mfpda.Record(every=200), progress=False,
    )  # fmt: skip
    dual = np.asarray(fit.dual, float)
    law, _ = quadrature.gibbs(dual / len(dual))
    z = quadrature.predictions(law)
    prior = quadrature.objective(quadrature.gibbs(np.zeros(len(dual)))[0]) - ours.optimum.objective
    excess, gap = quadrature.objective(law) - ours.optimum.objective, quadrature.fenchel_young(dual, z)
    rms = np.sqrt(np.mean(np.square(z - ours.optimum.predictions)))
    print(
        f"{name}: L(q_g) - L* = {excess:.1e} of {prior:.2f} at the prior, gap {gap:.1e}, rms of predictions {rms:.4f}"
    )
    assert excess < 0.01 * prior


@pytest.mark.slow
def test_one_kernel_or_another():
    """Any adjusted kernel moves the particles: HMC of BlackJAX keeps the law as MALA does."""
    sites = {"w": dist.Gumbel(0, 1)}
    model = mfpda.Model.from_function(lambda theta, x: jnp.tanh(theta["w"] * x), sites, mfpda.losses.Squared(), 0.2)
    x = jnp.linspace(-2, 2, 9)
    potential = GibbsPotential(model, x, -0.1 * jnp.sign(x), jnp.ones(()))
    grid = np.linspace(-4, 14, 40_001)
    log_density = -np.asarray(jax.vmap(potential)(jnp.asarray(grid, float)[:, None]), float)
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    for kernel in (MALA(), FromBlackJAX("hmc", num_integration_steps=3)):
        thetas, _ = jax.jit(tempering.temper, static_argnums=2)(jax.random.key(0), potential, 20_000, kernel, 5, 0.5)
        sorted_cdf = np.interp(np.sort(np.asarray(thetas[:, 0])), grid, cdf / cdf[-1])
        # resampled particles come in families, so this is a distance and no p-value: 0.02 is 4 / sqrt(M)
        assert np.max(np.abs(sorted_cdf - (np.arange(20_000) + 0.5) / 20_000)) < 0.03


def test_between_prior_and_target_lie_gibbs_potentials(small):
    x = jnp.asarray(small.x, float)
    potential = GibbsPotential(small.model, x, jnp.sin(3 * x[:, 0]) / 40, jnp.asarray(0.6))
    theta = jnp.asarray([0.3, -1.2])
    prior = -small.model.log_prior(theta, x[0])
    for beta in (0.0, 0.25, 1.0):
        expected = (1 - beta) * prior + beta * potential(theta)
        np.testing.assert_allclose(potential.tempered(jnp.asarray(beta))(theta), expected, rtol=1e-5)


def test_particles_outside_the_support_die():
    """Where h is not a number, tempering weighs nothing."""
    h = lambda theta, x: jnp.sqrt(theta["w"]) * x  # noqa: E731
    model = mfpda.Model.from_function(h, {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0)
    potential = GibbsPotential(model, jnp.ones(1), jnp.ones(1), jnp.ones(()))
    thetas, stats = tempering.temper(jax.random.key(0), potential, 500, MALA(), 5, 0.5)
    assert np.all(thetas > 0)
    assert stats.effective_sample_size > 200
    assert stats.acceptance > 0.3
    assert len(np.unique(thetas)) > 400


def test_when_no_particle_is_in_the_support_it_ends_and_says_so():
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.sqrt(-1 - theta["w"] ** 2) * x, {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0
    )
    potential = GibbsPotential(model, jnp.ones(1), jnp.ones(1), jnp.ones(()))
    _, stats = tempering.temper(jax.random.key(0), potential, 100, MALA(), 5, 0.5)
    assert stats.temperatures == 1
    assert stats.effective_sample_size == 0


@pytest.mark.slow
def test_few_fresh_samples_are_as_right_as_many():
    """Five at a time, pooled: tempering five alone would jump from the prior to q_g."""
    ours, quadrature, _ = problem("sine_squared")
    fit = mfpda.fit(
        jax.random.key(0), ours.model, ours.data, kernel="mala", start="temper", particles=500, outer_steps=20,
        inner_steps=1, progress=False,
    )  # fmt: skip
    truth = quadrature.predictions(quadrature.gibbs(np.asarray(fit.dual, float) / len(ours.data[0]))[0])
    draws = [fit.sample(jax.random.key(seed), 5) for seed in range(60)]
    z = np.stack([
        np.mean(2 * np.sin(ours.data[0] * draw["w"]) * np.tanh(draw["b"]), axis=1) for draw in draws
    ])  # fmt: skip
    assert standard_errors(z, truth) < 4.5


def test_fresh_samples_come_from_tempering(small):
    """fit.sample uses no particle of the run: its predictions are q_g's, here by quadrature (the run took one step)."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **(small.quick | {"outer_steps": 1}))
    quadrature = exact.Quadrature.of(small.model, small.data, (-12, 12), 401)
    law, _ = quadrature.gibbs(np.asarray(fit.potential.coefficients, float))
    z = np.stack([
        np.mean(2 * np.tanh(small.x @ fresh["w"].T + fresh["b"]), axis=1)
        for fresh in (fit.sample(jax.random.key(seed), 2000) for seed in range(8))
    ])  # fmt: skip
    assert standard_errors(z, quadrature.predictions(law)) < 5.4


def test_refusals():
    with pytest.raises(InputError, match="an adjusted kernel to temper with"):
        Temper(kernel=mfpda.ULA())
    with pytest.raises(InputError, match="share between 0 and 1"):
        Temper(share=1.5)
    with pytest.raises(InputError, match="moves"):
        Temper(moves=0)
    with pytest.raises(InputError, match="a schedule"):
        Temper(kernel=MALA(step_size=mfpda.schedules.Constant(0.1)))
    assert Temper(kernel="mala") == Temper()


def test_prior_and_q1_are_different_draws():
    sites, init = {"w": dist.Normal(0, 1)}, {"w": dist.Normal(5, 0.1)}
    model = mfpda.Model.from_function(lambda theta, x: theta["w"] * x, sites, mfpda.losses.Squared(), 1.0, init=init)
    potential = GibbsPotential(model, jnp.ones(1), jnp.zeros(1), jnp.ones(()))
    draws = {
        name: getattr(sampling, name)(jax.random.key(0), 5000, potential) for name in ("draw_prior", "draw_initial")
    }
    assert scipy.stats.kstest(np.asarray(draws["draw_prior"][:, 0]), scipy.stats.norm.cdf).pvalue > 1e-4
    assert scipy.stats.kstest(np.asarray(draws["draw_initial"][:, 0]), scipy.stats.norm(5, 0.1).cdf).pvalue > 1e-4
