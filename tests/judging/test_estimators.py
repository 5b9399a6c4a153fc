"""Entropy, KL and the objective against Gaussians and quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import HighDimensionWarning, InputError, exact
from mfpda.judging import estimators
from mfpda.problem import losses
from mfpda.problem.problem import Problem
from tests.helpers import reference

pytestmark = pytest.mark.optimised


def gaussian_entropy(p, scale=1.0):
    return 0.5 * p * math.log(2 * math.pi * math.e * scale**2)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_entropy_of_gaussians(p):
    """Within 4 errors, plus the bias of nearest neighbours that is known to grow with p: 0.02 nats at p = 5 here."""
    points = np.random.default_rng(p).normal(scale=0.3, size=(8000, p))
    H = estimators.entropy(points)
    slack = 0.05 if p == 5 else 0.005
    assert abs(H.value - gaussian_entropy(p, 0.3)) < 4 * H.stderr + slack
    wrong = abs(estimators.entropy(1.2 * points).value - gaussian_entropy(p, 0.3))  # a spread 20 % off is seen
    assert wrong > 4 * H.stderr + slack


def test_entropy_of_a_skewed_law():
    """Exponential of rate 2: H = 1 - log 2."""
    H = estimators.entropy(np.random.default_rng(0).exponential(0.5, size=8000))
    assert abs(H.value - (1 - math.log(2))) < 4 * H.stderr


def test_points_that_coincide_count_once():
    points = np.random.default_rng(0).normal(size=(2000, 2))
    assert estimators.entropy(np.repeat(points, 30, axis=0)) == estimators.entropy(points)
    with pytest.raises(InputError, match=r"more than k = 10 distinct points, found 1 distinct of 50"):
        estimators.entropy(np.zeros((50, 2)))


def test_in_many_dimensions_it_is_off_and_says_so():
    points = np.random.default_rng(0).normal(size=(500, 51))
    with pytest.warns(HighDimensionWarning, match="51 dimensions"):
        H = estimators.entropy(points)
    assert 5 < H.value - gaussian_entropy(51) < 15


@pytest.mark.slow
def test_kl_to_the_prior_in_fifty_dimensions():
    """h = theta . x and one anchor: q is the prior shifted by m, KL = |m|^2 / (2 s^2)."""
    p, scale, temperature = 51, 0.5, 0.1
    sites = {"w": dist.Normal(0, scale).expand([p]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: x @ theta["w"], sites, losses.Squared(), temperature)
    x = jnp.ones((1, p)) / math.sqrt(p)
    for gamma in (1.0, 0.8):  # at gamma < 1 the variance is s^2 / gamma, the mean is the same
        potential = Problem.of(model, x).potential(jnp.array([0.6]), gamma)
        shift = (scale * 0.6 / temperature) ** 2 / 2
        spread = 0.5 * p * (1 / gamma - 1 + math.log(gamma))
        kl = estimators.kl_to_prior(jax.random.key(0), potential)
        assert abs(kl.value - (shift + spread)) < 5.4 * kl.stderr
        assert kl.stderr < 0.1 * shift


@pytest.mark.slow
def test_the_objective_of_a_run_agrees_with_quadrature():
    """tanh_squared near its optimum: L* is known, the particles' noise adds at most as much as shown."""
    ours = reference("tanh_squared")
    fit = mfpda.fit(
        jax.random.key(0), ours.model, ours.data, kernel="mala", particles=4000, outer_steps=40, inner_steps=30,
        record=mfpda.Record(every=40), progress=False,
    )  # fmt: skip
    L = estimators.objective(jax.random.key(1), fit)
    grid = exact.Quadrature.of(ours.model, ours.data, ours.bounds, 301)
    law, _ = grid.gibbs(np.asarray(fit.last_potential.coefficients, float), float(fit.last_potential.gamma))
    assert L.method == "nearest neighbours"
    assert abs(L.kl - grid.kl(law)) < 4 * L.stderr / ours.temperature + 0.02
    assert abs(L.value - grid.objective(law)) < 4 * L.stderr + 2e-4
    tempered = estimators.kl_to_prior(jax.random.key(2), fit.last_potential)
    assert abs(tempered.value - grid.kl(law)) < 5.4 * tempered.stderr
    # the paper's form, term by term: risk + lambda1 E|theta|^2 + lambda2 E log q
    thetas = np.asarray(fit.thetas, float)
    direct = L.risk + 1e-2 * np.mean(np.sum(thetas**2, axis=1)) - 1e-3 * estimators.entropy(thetas).value
    assert estimators.in_paper_form(L.value, 2, 1e-2, 1e-3) == pytest.approx(direct, rel=1e-5)


@pytest.mark.slow
def test_above_five_dimensions_the_objective_tempers():
    sites = {"w": dist.Normal(0, 1).expand([8]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: jnp.tanh(x @ theta["w"]), sites, losses.Squared(), 0.05)
    x = np.random.default_rng(0).normal(size=(40, 8))
    fit = mfpda.fit(jax.random.key(0), model, (x, np.sign(x[:, 0])), kernel="mala", outer_steps=30, progress=False)
    L = estimators.objective(jax.random.key(1), fit)
    certificate = fit.certify(jax.random.key(2))
    assert L.method == "tempering"
    assert L.value == pytest.approx(certificate.objective, abs=0.02)


@pytest.mark.parametrize(
    ("points", "k", "message"), [(np.array([1.0, np.nan]), 10, "finite points"), (np.arange(20.0), 0, "k")]
)
def test_refusals(points, k, message):
    with pytest.raises(InputError, match=message):
        estimators.entropy(points, k=k)
