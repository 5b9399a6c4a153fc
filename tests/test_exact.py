"""The yardstick, itself measured: against the reference files, which were computed elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.special

import mfpda
from mfpda import InputError, exact
from mfpda.exact import Quadrature
from tests.helpers import reference, slow_but

NAMES = ["tanh_squared", "tanh_logistic", "sine_squared"]

# L(q_t) - L* and L(q_t) - D(g_t) after outer step t, from the table that comes with the reference files. Two of its
# rows were computed on boxes that cut off the wide early densities (gamma = 1/3 at t = 1): |theta| <= 2 and <= 6.
TABLE = {
    "tanh_squared": ((-2, 2), {10: (1.7e-5, 5.1e-5), 20: (4.4e-6, 7.0e-6), 50: (7.6e-7, 8.6e-7), 100: (1.9e-7, 2.1e-7),
                               200: (4.9e-8, 5.1e-8), 400: (1.2e-8, 1.3e-8)}),
    "sine_squared": ((-12, 12), {10: (0.60, 0.71), 20: (0.26, 0.34), 50: (0.18, 0.18), 100: (4.0e-2, 4.1e-2),
                                 200: (1.5e-7, 2.7e-7), 400: (3.6e-8, 6.7e-8)}),
    "tanh_logistic": ((-6, 6), {10: (1.5, 1.6), 20: (0.76, 0.78), 50: (0.70, 0.71), 100: (3.5e-2, 3.8e-2),
                                200: (1.4e-5, 7.7e-5), 400: (4.6e-7, 2.8e-6)}),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(["sine_squared"], NAMES))
def test_optimum_is_the_references(name):
    problem = reference(name)
    best = Quadrature.of(problem.model, problem.data, problem.bounds).optimum()
    assert abs(best.objective - problem.optimum.objective) < 1e-8
    assert best.gap < 1e-10
    np.testing.assert_allclose(best.predictions, problem.optimum.predictions, atol=1e-5)
    np.testing.assert_allclose(best.dual, np.ravel(problem.optimum.dual_g), atol=1e-5)


def trajectory(name, bounds, steps, points=301):
    problem = reference(name)
    grid = Quadrature.of(problem.model, problem.data, bounds, points)
    return problem, {step.outer_step: step for step in grid.run(max(steps)) if step.outer_step in steps}


def check_table(name, steps, monkeypatch):
    bounds, rows = TABLE[name]
    monkeypatch.setattr(exact, "EDGE_MASS", 1.0)  # the table's boxes are too narrow, and mfpda would say so
    problem, found = trajectory(name, bounds, steps)
    for t, step in found.items():
        pair = step.objective - problem.optimum.objective, step.objective - step.dual_value
        for ours, theirs in zip(pair, rows[t], strict=True):
            digit = 10 ** (np.floor(np.log10(theirs)) - 1)
            assert abs(ours - theirs) <= 0.5 * digit + 1e-9, f"t = {t}: {ours:.3g}, table {theirs:.2g}"


@pytest.mark.parametrize("name", slow_but(["sine_squared"], NAMES))
def test_exact_dual_averaging_follows_the_table(name, monkeypatch):
    check_table(name, {10, 20, 50}, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_exact_dual_averaging_follows_the_table_to_the_end(name, monkeypatch):
    check_table(name, {100, 200, 400}, monkeypatch)


def test_a_grid_that_cuts_a_density_off_is_refused():
    problem = reference("tanh_squared")
    with pytest.raises(InputError, match="edge"):
        list(Quadrature.of(problem.model, problem.data, (-2, 2), 201).run(2))


@pytest.mark.parametrize("name", slow_but(["tanh_logistic"], NAMES))
def test_primal_minus_dual_is_fenchel_young_plus_kl(name):
    """L(q_t) - D(g_t) = (FY) + T KL(q_t || q_g) with q_t's predictions; L(q_g) - D(g_t) = (FY) with q_g's."""
    problem, found = trajectory(name, reference(name).bounds, {1, 5, 20})
    grid = Quadrature.of(problem.model, problem.data, problem.bounds, 301)
    for step in found.values():
        difference = step.objective - step.dual_value
        assert abs(difference - step.fenchel_young - problem.temperature * step.kl) < 1e-10
        of_dual, _ = grid.gibbs(step.dual / len(step.dual))
        assert abs(grid.objective(of_dual) - step.dual_value - step.gap) < 1e-10
        assert step.dual_value <= problem.optimum.objective + 1e-9 <= step.objective + 2e-9


@pytest.mark.slow
def test_mini_batches_and_estimated_predictions_are_algorithm_four():
    """Random batches and 100,000 draws a step stay near the full-batch path, and a few draws do not."""
    problem = reference("tanh_squared")
    grid = Quadrature.of(problem.model, problem.data, problem.bounds, 201)
    far = {}
    for particles in (10, 100_000):
        *_, last = grid.run(30, key=jax.random.key(0), batch_size=20, particles=particles)
        far[particles] = last.objective - problem.optimum.objective
    assert 0 < far[100_000] < 5e-3
    assert far[100_000] < far[10]
    with pytest.raises(InputError, match="key"):
        next(grid.run(3, particles=10))


@pytest.mark.parametrize("loss", [mfpda.losses.SmoothedHinge(), mfpda.losses.Logistic(), lambda z, y: (1 - y * z) ** 2])
def test_optimum_for_other_losses(loss):
    problem = reference("tanh_logistic")
    model = mfpda.Model(problem.model.declaration.neuron, loss, 0.3)
    best = Quadrature.of(model, problem.data, (-14, 14), 201).optimum()
    assert best.gap < 1e-10
    assert abs(best.objective - best.dual_value) < 1e-9


def test_optimum_for_several_outputs():
    h = lambda theta, x: 2 * jnp.stack([jnp.tanh(theta["w"] * x), jnp.tanh(theta["b"]), 0.0])  # noqa: E731
    prior = dist.Normal(0, 1)
    model = mfpda.Model.from_function(h, {"w": prior, "b": prior}, mfpda.losses.Softmax(), 0.05)
    x = np.linspace(-2, 2, 15)
    best = Quadrature.of(model, (x, (x > -1).astype(int) + (x > 1)), points=201).optimum()
    assert best.gap < 1e-10
    assert abs(best.objective - best.dual_value) < 1e-9


def test_a_prior_whose_tail_underflows_still_counts():
    """Prior N(0, 0.02) and an optimum 40 deviations out, where exp(log p0) is 0 in float64.

    For one example the problem is one-dimensional in g: D(g) is maximised by a bounded search in log space.
    """
    model = mfpda.Model.from_function(
        lambda theta, x: 10 * jnp.tanh(theta["w"] * x), {"w": dist.Normal(0, 0.02)}, mfpda.losses.Squared(), 1e-3
    )
    best = Quadrature.of(model, (np.ones(1), np.full(1, 7.0)), (-3, 3), 6001).optimum()
    w = np.linspace(-3, 3, 60001)
    log_prior = -0.5 * (w / 0.02) ** 2 - np.log(0.02 * np.sqrt(2 * np.pi)) + np.log(w[1] - w[0])

    def negative_dual(g):
        return 7 * g + g**2 / 2 + 1e-3 * scipy.special.logsumexp(log_prior - g * 10 * np.tanh(w) / 1e-3)

    searched = scipy.optimize.minimize_scalar(negative_dual, bounds=(-7, 0), method="bounded", options={"xatol": 1e-10})
    assert best.objective == pytest.approx(-searched.fun, abs=1e-7)
    assert abs(best.predictions[0]) > 3


def test_latest_on_batches_puts_coefficients_where_they_belong():
    """A batch that is a permutation of all the data is the full batch."""
    problem = reference("tanh_squared")
    grid = Quadrature.of(problem.model, problem.data, problem.bounds, 201)
    rule = mfpda.Latest()
    for full, shuffled in zip(grid.run(3, rule), grid.run(3, rule, jax.random.key(0), batch_size=60), strict=True):
        np.testing.assert_allclose(shuffled.coefficients, full.coefficients, atol=1e-9)


def test_more_than_two_parameters_are_refused():
    sites = {"w": dist.Normal(0, 1).expand([3]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: jnp.tanh(x @ theta["w"]), sites, mfpda.losses.Squared(), 0.1)
    with pytest.raises(InputError, match="at most 2"):
        Quadrature.of(model, (np.ones((4, 3)), np.ones(4)))


def test_a_constrained_prior_has_the_optimum_of_its_own_space():
    """A bounded amplitude and a positive slope, against quadrature on their supports and BFGS in NumPy."""
    temperature, x = 0.02, np.linspace(-2, 2, 15)
    y = np.tanh(1.5 * x)
    sites = {"a": dist.Uniform(0.0, 3.0), "s": dist.Gamma(2.0, 2.0)}
    h = lambda theta, x: theta["a"] * jnp.tanh(theta["s"] * x)  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), temperature)
    best = Quadrature.of(model, (x, y), bounds=((-35, 35), (-25, 6)), points=701).optimum()

    nodes, weights = np.polynomial.legendre.leggauss(200)
    a, wa = 1.5 + 1.5 * nodes, 0.5 * weights
    s, ws = 8 + 8 * nodes, 8 * weights
    prior = np.outer(wa, ws * 4 * s * np.exp(-2 * s)).ravel()
    outputs = (a[:, None, None] * np.tanh(s[None, :, None] * x)).reshape(-1, len(x))

    def negative_dual(g):
        energy = -outputs @ g / (len(x) * temperature)
        top = energy.max()
        mass = prior * np.exp(energy - top)
        z = mass @ outputs / mass.sum()
        value = np.mean(g * y + g**2 / 2) + temperature * (top + np.log(mass.sum()))
        return value, (y + g - z) / len(x)

    result = scipy.optimize.minimize(negative_dual, np.zeros(len(x)), jac=True, method="BFGS", options={"gtol": 1e-10})
    assert abs(best.objective + result.fun) < 1e-7
    np.testing.assert_allclose(best.dual, result.x, atol=1e-5)


def test_the_law_of_a_potential_with_anchors_of_its_own(small):
    """The Gibbs density of a run, on a grid made with other data: by hand, from H at the run's anchors."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    potential, other = fit.last_potential, (small.x[::4] + 0.1, np.zeros(10))
    found = Quadrature.of(small.model, other, (-12, 12), points=81).law_of(potential)
    own = Quadrature.of(small.model, small.data, (-12, 12), points=81)
    by_hand, _ = own.gibbs(np.asarray(potential.coefficients), float(potential.gamma))
    np.testing.assert_allclose(found.probability, by_hand.probability, atol=1e-4 * by_hand.probability.max())
    likely = by_hand.probability > 1e-6
    np.testing.assert_allclose(found.log_ratio[likely], by_hand.log_ratio[likely], atol=1e-3)
    assert 0.5 * np.abs(by_hand.probability - np.exp(own.log_prior)).sum() > 0.1  # the data say something
