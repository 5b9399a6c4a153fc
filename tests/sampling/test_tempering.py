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
from mfpda.kernels.base import Evaluated
from mfpda.problem.problem import Problem
from mfpda.sampling import tempering
from mfpda.sampling.tempering import Tempering
from tests.helpers import reference, slow_but

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
    return Problem.of(ours.model, jnp.asarray(x, float)).potential(jnp.asarray(coefficients, float), gamma)


def replicated(key, potential, replicates=REPLICATES, kernel=MALA()):
    """Predictions of independent samples, first axis over them."""
    thetas, _, stats, _ = Tempering(kernel, 5, 0.5).replicates(key, potential, PARTICLES, replicates)
    return jax.jit(jax.vmap(potential.problem.predict))(thetas), stats


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
        z, stats = jax.device_get(replicated(jax.random.key(3), potential))
        off = standard_errors(z, quadrature.predictions(law))
        print(f"{name} at {place}: {off:.2f} errors off, {stats.temperatures.mean():.1f} temperatures, "
              f"{stats.gradients.mean():.0f} gradients")  # fmt: skip
        assert off < 4
        assert np.all(stats.sound(PARTICLES))
        pilot = Tempering(MALA(), 5, 0.5).sample(jax.random.key(4), potential, PARTICLES)  # it chooses its temperatures
        assert pilot.stats.effective_sample_size > 0.49 * PARTICLES
        assert stats.acceptance.mean() > 0.4
        if place == "g*":
            assert abs(np.mean(stats.log_normaliser) - log_normaliser) < 4 * scipy.stats.sem(stats.log_normaliser)


class Bent(MALA):
    """MALA that goes to every proposal. Its step size is tuned as if it had not."""

    def step(self, key, state, potential):
        _, info = super().step(key, state, potential)
        noise = jax.random.normal(jax.random.split(key)[0], state.theta.shape, state.theta.dtype)
        theta = state.theta - self.step_size * state.gradient + jnp.sqrt(2 * self.step_size) * noise
        return Evaluated.at(theta, potential), info


@pytest.mark.slow
def test_the_comparison_sees_moves_that_bend_the_law():
    """With unadjusted moves the same comparison fails: it is the accept step that makes the sample right."""
    ours, quadrature, laws = problem("tanh_squared")
    law, _ = quadrature.gibbs(*laws["g*"])
    z, _ = jax.device_get(replicated(jax.random.key(3), potential_of(ours, *laws["g*"]), kernel=Bent()))
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
            jax.random.key(seed), ours.model, ours.data, rule="dual_averaging", kernel="mala", particles=PARTICLES,
            outer_steps=20, record=mfpda.Record(every=20), progress=False,
        )  # fmt: skip
        coefficients, gamma = fit.state.coefficients
        truth = quadrature.predictions(quadrature.gibbs(np.asarray(coefficients, float), float(gamma))[0])
        potential = potential_of(ours, coefficients, gamma)
        z, _ = replicated(jax.random.key(seed), potential, 1)
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
        jax.random.key(0), ours.model, ours.data, rule="dual_averaging", kernel="mala", start=Temper(),
        particles=16_000, outer_steps=200, inner_steps=1, record=mfpda.Record(every=200), progress=False,
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
    potential = Problem.of(model, x).potential(-0.1 * jnp.sign(x))
    grid = np.linspace(-4, 14, 40_001)
    log_density = -np.asarray(jax.vmap(potential)(jnp.asarray(grid, float)[:, None]), float)
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    for kernel in (MALA(), FromBlackJAX("hmc", num_integration_steps=3)):
        thetas = Tempering(kernel, 5, 0.5).sample(jax.random.key(0), potential, 20_000).thetas
        sorted_cdf = np.interp(np.sort(np.asarray(thetas[:, 0])), grid, cdf / cdf[-1])
        # resampled particles come in families, so this is a distance and no p-value: 0.02 is 4 / sqrt(M)
        assert np.max(np.abs(sorted_cdf - (np.arange(20_000) + 0.5) / 20_000)) < 0.03


def test_between_prior_and_target_lie_gibbs_potentials(small):
    x = jnp.asarray(small.x, float)
    problem = Problem.of(small.model, x)
    potential = problem.potential(jnp.sin(3 * x[:, 0]) / 40, 0.6)
    theta = jnp.asarray([0.3, -1.2])
    prior = -problem.log_prior(theta)
    for beta in (0.0, 0.25, 1.0):
        expected = (1 - beta) * prior + beta * potential(theta)
        np.testing.assert_allclose(potential.tempered(jnp.asarray(beta))(theta), expected, rtol=1e-5)


def test_particles_outside_the_support_die():
    """Where h is not a number, tempering weighs nothing."""
    h = lambda theta, x: jnp.sqrt(theta["w"]) * x  # noqa: E731
    model = mfpda.Model.from_function(h, {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0)
    potential = Problem.of(model, jnp.ones(1)).potential(jnp.ones(1))
    thetas, _, stats, _ = Tempering(MALA(), 5, 0.5).sample(jax.random.key(0), potential, 500)
    assert np.all(thetas > 0)
    assert stats.effective_sample_size > 200
    assert stats.acceptance > 0.3
    assert len(np.unique(thetas)) > 400


def test_when_no_particle_is_in_the_support_it_ends_and_says_so():
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.sqrt(-1 - theta["w"] ** 2) * x, {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0
    )
    potential = Problem.of(model, jnp.ones(1)).potential(jnp.ones(1))
    stats = Tempering(MALA(), 5, 0.5).sample(jax.random.key(0), potential, 100).stats
    assert stats.temperatures == 1
    assert stats.effective_sample_size == 0


@pytest.mark.slow
def test_few_fresh_samples_are_as_right_as_many():
    """Five at a time, pooled: tempering five alone would jump from the prior to q_g."""
    ours, quadrature, _ = problem("sine_squared")
    fit = mfpda.fit(
        jax.random.key(0), ours.model, ours.data, rule="dual_averaging", kernel="mala", start="temper", particles=500,
        outer_steps=20, inner_steps=1, progress=False,
    )  # fmt: skip
    truth = quadrature.predictions(quadrature.gibbs(np.asarray(fit.dual, float) / len(ours.data[0]))[0])
    draws = [fit.sample(jax.random.key(seed), 5) for seed in range(60)]
    z = np.stack([
        np.mean(2 * np.sin(ours.data[0] * draw["w"]) * np.tanh(draw["b"]), axis=1) for draw in draws
    ])  # fmt: skip
    assert standard_errors(z, truth) < 4.5


def test_fresh_samples_come_from_tempering(small):
    """fit.sample uses no particle of the run: its predictions are q_g's, here by quadrature (the run took one step)."""
    settings = small.quick | {"outer_steps": 1, "rule": "dual_averaging"}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **settings)
    quadrature = exact.Quadrature.of(small.model, small.data, (-12, 12), 401)
    law, _ = quadrature.gibbs(np.asarray(fit.potential.coefficients, float))
    z = np.stack([
        np.mean(2 * np.tanh(small.x @ fresh["w"].T + fresh["b"]), axis=1)
        for fresh in (fit.sample(jax.random.key(seed), 2000) for seed in range(8))
    ])  # fmt: skip
    assert standard_errors(z, quadrature.predictions(law)) < 5.4


class Untunable(MALA):
    """An adjusted kernel that says no acceptance to aim at."""

    target_acceptance = None


@pytest.mark.parametrize("plug", [Tempering, Temper])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": mfpda.ULA()}, "an adjusted kernel to temper with"),
        ({"kernel": MALA}, r"the class MALA\. Call it: MALA\(\)"),
        ({"kernel": Untunable()}, "a number as step_size of Untunable, found 'auto'"),
        ({"share": 1.5}, "share between 0 and 1"),
        ({"moves": 0}, "moves"),
        ({"moves": 2.5}, "a whole number of at least 1 as moves"),
        ({"kernel": MALA(step_size=mfpda.schedules.Constant(0.1))}, "a schedule"),
    ],
    ids=["unadjusted", "class", "untunable", "share", "moves", "fraction", "schedule"],
)
def test_refusals(plug, settings, message):
    with pytest.raises(InputError, match=message):
        plug(**settings)


def test_a_kernel_may_be_named():
    assert Temper(kernel="mala") == Temper(MALA())
    assert Temper(kernel="hmc") == Temper()


def test_replicates_are_independent_samples_and_only_a_new_size_compiles_again():
    """Another number of moves, share or step size is an argument, not another program."""
    model = mfpda.Model.from_function(
        lambda theta, x: jnp.tanh(theta["w"] * x), {"w": dist.Normal(0, 1)}, mfpda.losses.Squared(), 1.0
    )
    potential = Problem.of(model, jnp.ones(1)).potential(20 * jnp.ones(1))
    before = tempering._temper._cache_size()
    for how in (Tempering(MALA(step_size=0.1), 2), Tempering(MALA(step_size=0.2), 3, 0.7)):
        thetas, _, stats, _ = how.replicates(jax.random.key(0), potential, 40, 3)
        assert thetas.shape == (3, 40, 1)
        assert stats.temperatures.shape == (3,)
        assert len(np.unique(np.asarray(thetas)[:, 0])) == 3
    pilot_key, *keys = jax.random.split(jax.random.key(0), 4)
    pilot = how.sample(pilot_key, potential, 40)
    alone = how.sample(keys[1], potential, 40, pilot.ladder)
    assert tempering._temper._cache_size() == before + 1  # with a ladder of a pilot, too
    np.testing.assert_allclose(alone.thetas, thetas[1], rtol=1e-5)
    assert alone.stats.temperatures == pilot.ladder.rungs > 1
    for planned, taken in zip(pilot.ladder, alone.ladder, strict=True):
        np.testing.assert_allclose(taken, planned, rtol=1e-6)


@pytest.mark.parametrize("kernel", [MALA(), pytest.param(mfpda.HMC(), marks=pytest.mark.slow)], ids=["mala", "hmc"])
def test_a_sample_with_a_fixed_ladder_chooses_nothing(kernel, small):
    """Temperatures, moves, step sizes and moments are the pilot's, whatever the draws and however few."""
    x = jnp.asarray(small.x, float)
    potential = Problem.of(small.model, x).potential(-0.05 * jnp.sin(x[:, 0]))
    how = Tempering(kernel, 6, 0.5)
    pilot = how.sample(jax.random.key(0), potential, 100)
    assert pilot.ladder.rungs > 2
    other = how.sample(jax.random.key(1), potential, 50, pilot.ladder)
    assert np.all(other.thetas != pilot.thetas[:50])
    for planned, taken in zip(pilot.ladder, other.ladder, strict=True):
        np.testing.assert_array_equal(taken, planned)


def test_prior_and_q1_are_different_draws():
    sites, init = {"w": dist.Normal(0, 1)}, {"w": dist.Normal(5, 0.1)}
    model = mfpda.Model.from_function(lambda theta, x: theta["w"] * x, sites, mfpda.losses.Squared(), 1.0, init=init)
    problem = Problem.of(model, jnp.ones(1))
    draws = {name: getattr(sampling, name)(jax.random.key(0), 5000, problem) for name in ("draw_prior", "draw_initial")}
    assert scipy.stats.kstest(np.asarray(draws["draw_prior"][:, 0]), scipy.stats.norm.cdf).pvalue > 1e-4
    assert scipy.stats.kstest(np.asarray(draws["draw_initial"][:, 0]), scipy.stats.norm(5, 0.1).cdf).pvalue > 1e-4


NORMAL_SCALE, ESTIMATES = 1.5, 200


def tilted(dimensions, gamma=0.6):
    """A linear neuron with a normal prior: V, its exact log-normaliser, and its mean.

    With p0 = N(0, s^2 I_p), V = gamma [b . theta - log p0] has the mean -s^2 b and the integral
    exp(gamma s^2 |b|^2 / 2) (2 pi s^2)^((1 - gamma) p / 2) gamma^(-p / 2).
    """
    temperature, x = 0.5, np.random.default_rng(0).normal(size=(5, dimensions)) / np.sqrt(dimensions)
    sites = {"w": dist.Normal(0, NORMAL_SCALE).expand([dimensions]).to_event(1)}
    h = lambda theta, x: x @ theta["w"]  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), temperature)
    c = np.array([0.5, -0.3, 0.4, 0.2, -0.5])
    b, variance = c @ x / temperature, NORMAL_SCALE**2
    log_normaliser = gamma * variance * b @ b / 2 - dimensions / 2 * np.log(gamma)
    log_normaliser += (1 - gamma) * dimensions / 2 * np.log(2 * np.pi * variance)
    potential = Problem.of(model, jnp.asarray(x, float)).potential(jnp.asarray(c, float), gamma)
    return potential, log_normaliser, -variance * b


def errors_off(dimensions, kernel, particles=100):
    """How many standard errors the mean normaliser, and the mean of it times the particles' mean, are off the truth.

    With the ladder of one pilot, over replicates of few particles that are moved only once at each temperature.
    """
    potential, log_normaliser, mean = tilted(dimensions)
    how = Tempering(kernel, 1, 0.5)
    pilot = how.sample(jax.random.key(0), potential, 300)
    keys = jax.random.split(jax.random.key(1), ESTIMATES)
    thetas, _, stats, _ = jax.vmap(lambda key: how.sample(key, potential, particles, pilot.ladder))(keys)
    assert np.all(stats.temperatures == pilot.ladder.rungs)
    assert pilot.ladder.rungs > 1
    ratio = np.exp(np.asarray(stats.log_normaliser, float) - log_normaliser)
    along = np.mean(thetas, axis=1) @ mean / (mean @ mean)  # 1 in expectation, but for its own weight
    print(f"{dimensions} dimensions: {pilot.ladder.rungs} rungs, relative deviation {ratio.std():.2f}")
    return [abs(values.mean() - 1) / scipy.stats.sem(values) for values in (ratio, ratio * along)]


SLOW_MALA = MALA(step_size=0.05)  # one step hardly moves a particle, so that weights must be right


@pytest.mark.parametrize(
    ("dimensions", "kernel"),
    [
        (20, SLOW_MALA),
        pytest.param(2, SLOW_MALA, marks=pytest.mark.slow),
        pytest.param(20, mfpda.HMC(), marks=pytest.mark.slow),
        pytest.param(2, mfpda.HMC(), marks=pytest.mark.slow),
    ],
    ids=["20-mala", "2-mala", "20-hmc", "2-hmc"],
)
def test_with_a_fixed_ladder_the_normaliser_and_its_product_with_a_mean_are_unbiased(dimensions, kernel):
    """Within 4 standard errors of 200 estimates. False failures: 1e-4 for each of eight, at a fixed seed."""
    assert max(errors_off(dimensions, kernel)) < 4


@pytest.mark.parametrize("dimensions", slow_but([20], [2, 20]))
def test_without_the_weights_of_a_step_they_are_not(dimensions, monkeypatch):
    """Particles are chosen evenly, and one move cannot make up for it."""
    chosen = tempering.systematic
    evenly = lambda key, log_weights, particles: chosen(key, 0 * log_weights, particles)  # noqa: E731
    monkeypatch.setattr(tempering, "systematic", evenly)
    compiled_again = jax.jit(tempering._temper.__wrapped__, static_argnames="particles")
    monkeypatch.setattr(tempering, "_temper", compiled_again)
    assert min(errors_off(dimensions, SLOW_MALA)) > 4


def far_mode():
    """Two parameters and two modes; the smaller, of mass 0.34, is five standard deviations out in the prior."""
    x = np.linspace(-2, 2, 80)
    y = np.sin(2 * x) + 0.1 * np.random.default_rng(0).normal(size=80)
    prior = dist.Normal(0, 0.2)
    model = mfpda.Model.from_function(
        lambda theta, x: 3 * jnp.tanh(theta["w"] * x + theta["b"]), {"w": prior, "b": prior}, mfpda.losses.Squared(),
        0.01,
    )  # fmt: skip
    grid = exact.Quadrature.of(model, (x, y), (-4, 4), 201)
    best = grid.optimum()
    potential = Problem.of(model, jnp.asarray(x, float), jnp.asarray(y, float)).potential(
        jnp.asarray(best.dual / 80, float)
    )
    return potential, best.predictions


def off_by(potential, predictions, key):
    """The distance of a tempered sample's predictions, root mean square."""
    thetas = Tempering().sample(key, potential, 1000).thetas
    return float(np.sqrt(np.mean((np.asarray(potential.problem.predict(thetas)) - predictions) ** 2)))


def test_a_mode_far_out_in_the_prior_is_found(monkeypatch):
    """Weights allow one step from the prior to the target, because no first particle has seen the mode."""
    potential, predictions = far_mode()
    keys = jax.random.split(jax.random.key(0), 6)
    found = [off_by(potential, predictions, key) for key in keys]
    assert np.median(found) < 0.1
    assert max(found) < 0.3
    monkeypatch.setattr(tempering, "LONGEST_RUNG", 1.0)
    jax.clear_caches()
    assert np.median([off_by(potential, predictions, key) for key in keys]) > 0.3
    jax.clear_caches()
