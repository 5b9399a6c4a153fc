import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

import mfpda
from mfpda import Model, sampling
from mfpda.exact import Quadrature
from mfpda.problem import losses
from mfpda.problem.problem import Problem
from mfpda.starts import move

KERNEL = mfpda.ULA(step_size=0.1)


def test_warm_leaves_the_particles_where_they_are(small):
    potential = Problem.of(small.model, jnp.asarray(small.x, float)).prior_potential()
    ensemble = sampling.begin(jax.random.key(0), jnp.ones((6, 2)), potential, KERNEL)
    after, _ = move(jax.random.key(1), mfpda.Warm(), ensemble, potential, potential, KERNEL)
    np.testing.assert_array_equal(after.theta, ensemble.theta)


def resampled(init):
    h = lambda theta, x: theta["w"] * x  # noqa: E731
    model = Model.from_function(h, {"w": dist.Gamma(3.0, 2.0)}, losses.Squared(), 1.0, init=init)
    potential = Problem.of(model, jnp.ones(1)).prior_potential()
    moved = mfpda.Resample()(jax.random.key(1), jnp.zeros((20_000, 1)), potential, potential)
    return np.asarray(jnp.exp(moved.thetas[:, 0]))


def test_resample_draws_the_prior():
    """Kolmogorov-Smirnov at a false-failure rate of 1e-4."""
    draws = resampled(None)
    assert scipy.stats.kstest(draws, scipy.stats.gamma(3.0, scale=0.5).cdf).pvalue > 1e-4
    assert scipy.stats.kstest(1.03 * draws, scipy.stats.gamma(3.0, scale=0.5).cdf).pvalue < 1e-4


def test_resample_draws_q1_where_the_model_gives_one():
    draws = resampled({"w": dist.LogNormal(1.0, 0.2)})
    assert scipy.stats.kstest(draws, scipy.stats.lognorm(0.2, scale=np.e).cdf).pvalue > 1e-4


def test_resampled_runs_forget_the_particles(small):
    """With one tiny inner step, every row is a fresh draw of q1."""
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, rule="dual_averaging", start="resample",
        kernel=mfpda.ULA(step_size=1e-9), particles=40_000, outer_steps=3, inner_steps=1, progress=False,
    )  # fmt: skip
    rows = [row.particles["b"] for row in fit.rows]
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 5 / 40_000**0.5
    assert scipy.stats.kstest(rows[-1], scipy.stats.norm.cdf).pvalue > 1e-4


def reweighted(small, kernel, particles=20_000, seed=0):
    """Exact draws of an old Gibbs law, the potentials, and what Reweight makes of them; and the grid for truth."""
    grid = Quadrature.of(small.model, small.data, (-9, 9), 61)
    rng = np.random.default_rng(0)
    problem = Problem.of(small.model, jnp.asarray(small.x, float))
    old, new = (
        problem.potential(jnp.asarray(c, float)) for c in (0.002 * rng.normal(size=40), -0.001 * np.sin(small.x[:, 0]))
    )
    chosen = np.random.default_rng(seed).choice(len(grid.thetas), particles, p=grid.law_of(old).probability)
    ensemble = sampling.begin(jax.random.key(1), jnp.asarray(grid.thetas[chosen], float), old, kernel)
    after, moved = move(jax.random.key(2 + seed), mfpda.Reweight(), ensemble, old, new, kernel)
    return grid, old, new, ensemble, after, moved


def test_reweight_turns_a_sample_of_the_old_law_into_one_of_the_new(small):
    """Mean predictions within 4 standard errors of self-normalised weights, at 40 anchors which move together.

    Errors are those of (1/M) sum_r w_r (h_r - z), w the normalised weights under the old law, by quadrature; systematic
    resampling adds at most as much as M draws of the new law. False failures: below 1e-3.
    """
    grid, old, new, ensemble, after, moved = reweighted(small, KERNEL)
    before, truth = (grid.law_of(potential) for potential in (old, new))
    ratio = truth.probability / np.where(before.probability > 0, before.probability, 1)
    z = grid.predictions(truth)
    centred = grid.outputs - z
    variance = (before.probability * ratio**2) @ centred**2 + truth.probability @ centred**2
    stderr = np.sqrt(variance / 20_000)
    x = small.x[:, 0]
    found = np.mean(2 * np.tanh(np.outer(after.theta[:, 0], x) + np.asarray(after.theta)[:, 1:]), axis=0)
    assert (np.abs(found - z) < 4 * stderr).all()
    assert np.abs(grid.predictions(before) - z).max() > 40 * stderr.max()  # to leave the sample as it was would not do
    left = 20_000 / (before.probability @ ratio**2)
    np.testing.assert_array_equal(after.theta, ensemble.theta[moved.parents])
    assert float(moved.stats["reweight_effective_sample_size"]) == pytest.approx(left, rel=0.05)
    assert 0.1 < left / 20_000 < 0.9


def test_reweight_takes_momenta_along(small):
    """What a particle was with stays with it."""
    _, _, _, ensemble, after, _ = reweighted(small, mfpda.Underdamped(step_size=0.1), 500)
    momenta = {tuple(theta): [] for theta in np.asarray(ensemble.theta)}
    for theta, momentum in zip(np.asarray(ensemble.theta), np.asarray(ensemble.velocity), strict=True):
        momenta[tuple(theta)].append(tuple(momentum))
    pairs = list(zip(np.asarray(after.theta), np.asarray(after.velocity), strict=True))
    assert all(tuple(momentum) in momenta[tuple(theta)] for theta, momentum in pairs)
    assert len({tuple(theta) for theta, _ in pairs}) < len(momenta)


def test_reweight_refuses_particles_that_do_not_begin_as_the_prior():
    model = Model.from_function(
        lambda theta, x: theta["w"] * x, {"w": dist.Normal(0, 1)}, losses.Squared(), 1.0, init={"w": dist.Normal(1, 1)}
    )
    x = np.linspace(-1, 1, 5)
    with pytest.raises(mfpda.InputError, match="init"):
        mfpda.fit(jax.random.key(0), model, (x, x), start="reweight", particles=10, outer_steps=1, progress=False)


def test_reweight_survives_particles_outside_the_support(small):
    """A particle whose potential is not finite is never taken; where none is finite all are kept."""
    c = 0.001 * jnp.sin(jnp.asarray(small.x[:, 0], float))
    potential = Problem.of(small.model, jnp.asarray(small.x, float)).potential(c)
    thetas = jnp.ones((6, 2)).at[:, 0].set(jnp.arange(6.0))
    moved = mfpda.Reweight()(jax.random.key(1), thetas.at[2, 1].set(jnp.nan), potential, potential)
    assert bool(jnp.all(jnp.isfinite(moved.thetas)))
    assert 2 not in np.asarray(moved.parents)
    moved = mfpda.Reweight()(jax.random.key(1), thetas.at[:, 1].set(jnp.nan), potential, potential)
    np.testing.assert_array_equal(moved.thetas[:, 0], thetas[:, 0])


def test_the_first_particles_are_chosen_out_of_many_draws_of_the_prior(small):
    """The error of their predictions is that of weights of 16 M draws, and less than M draws would leave.

    By quadrature: of weights of m draws (1/m) E_p0[w^2 (h - z)^2], w = dq/dp0; systematic resampling adds what M draws
    of q have at most. 200 samples of 100 particles: a variance has a standard error of a tenth, and root mean squares
    over 40 anchors one of at most that. False failures: below 1e-4.
    """
    grid = Quadrature.of(small.model, small.data, (-9, 9), 61)
    x = jnp.asarray(small.x, float)
    problem = Problem.of(small.model, x)
    prior, new = problem.prior_potential(), problem.potential(jnp.asarray(-0.006 * np.sin(small.x[:, 0]), float))
    before, truth = (grid.law_of(potential) for potential in (prior, new))
    ratio = truth.probability / np.where(before.probability > 0, before.probability, 1)
    z = grid.predictions(truth)
    squares = np.square(grid.outputs - z)
    weighting, drawing = (before.probability * ratio**2) @ squares, truth.probability @ squares

    @jax.jit
    @jax.vmap
    def chosen(key):
        moved = mfpda.Reweight()(key, jnp.zeros((100, 2)), prior, new)
        return problem.predict(moved.thetas), moved.stats["reweight_effective_sample_size"]

    found, left = (np.asarray(each) for each in chosen(jax.random.split(jax.random.key(1), 200)))
    squared = np.mean(np.square(found - z))
    assert squared < 1.6 * np.mean(weighting / 1600 + drawing / 100)
    assert squared < 0.6 * np.mean(weighting / 100)
    assert left.mean() == pytest.approx(100 / (before.probability @ ratio**2), rel=0.1)


def bump(width, dimensions):
    """A density with nearly all of its mass in one bump, two standard deviations out in two of the parameters."""

    def neuron(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([dimensions]).to_event(1))
        return x[0] * jnp.exp(-jnp.sum(jnp.square(w[:2] - 2)) / (2 * width**2))

    problem = Problem.of(mfpda.Model(neuron, mfpda.losses.Squared(), 1.0), jnp.ones((1, 1)))
    return problem.prior_potential(), problem.potential(jnp.asarray([-30.0]))


@pytest.mark.parametrize("dimensions", [2, 10, 50])
@pytest.mark.parametrize(("width", "sound"), [(1.0, True), (0.1, False)])
def test_a_tempered_sample_that_descends_from_a_few_lucky_draws_is_refused(dimensions, width, sound):
    """With this key a few of 16,000 prior draws fall into the narrow bump. The old particles then stay."""
    old, new = bump(width, dimensions)
    thetas = jnp.zeros((1000, dimensions))
    moved = mfpda.Temper()(jax.random.key(5), thetas, old, new)
    assert bool(moved.sound) is sound
    assert bool(jnp.all(moved.thetas == thetas)) is not sound
    assert moved.stats["temper_effective_sample_size"] >= 100  # the weights between temperatures do not show it
