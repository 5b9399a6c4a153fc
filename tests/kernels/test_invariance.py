"""Adjusted kernels keep the law that they are said to keep, and the test sees it when they do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import mfpda
from mfpda import HMC, MALA, Model, sampling
from mfpda.kernels import KERNELS
from mfpda.kernels.base import Evaluated, KernelInfo, metropolis
from mfpda.kernels.hmc import LONGEST, SHORTEST
from mfpda.problem import losses
from mfpda.problem.problem import Problem
from mfpda.sampling import tuning
from tests.helpers import slow_but

FALSE_FAILURE_RATE = 1e-4  # of each test below, for a kernel that is right
DRAWS, STEPS = 200_000, 5
# Long steps, with acceptances of 0.5 to 0.9 here: short ones would be accepted whatever the ratio.
STEP_SIZES = {
    "mala": 0.8,
    "hmc": 0.9,
    "nuts": 0.9,
    "ghmc": 0.7,
    "dynamic_hmc": 0.9,
    "barker_proposal": 2.0,
    "HMC": 0.9,
    "NUTS": 0.9,
    "BarkerMH": 2.0,
}
CLAIMED = [name for name in KERNELS if KERNELS.resolve(name).adjusted]
CLAIMED += [f"blackjax:{name}" for name in mfpda.FromBlackJAX.targets if f"blackjax:{name}" not in KERNELS]
ADJUSTED = slow_but(["mala", "hmc", "blackjax:hmc", "numpyro:HMC"], CLAIMED)

SITES = {"w": dist.Gumbel(0, 1), "b": dist.Gumbel(0, 1)}
MODEL = Model.from_function(lambda theta, x: jnp.tanh(theta["w"] * x + theta["b"]), SITES, losses.Squared(), 1.0)
POTENTIAL = Problem.of(MODEL, jnp.ones(1)).prior_potential()


TEN_SITES = {"w": dist.Gumbel(0, 1).expand([10]).to_event(1)}
TEN_MODEL = Model.from_function(lambda theta, x: jnp.sum(theta["w"]) * x, TEN_SITES, losses.Squared(), 1.0)
TEN_DIMENSIONS = Problem.of(TEN_MODEL, jnp.ones(1)).prior_potential()


def p_values(kernel, potential=POTENTIAL):
    """Kolmogorov-Smirnov p-values of all coordinates, after a few steps from exact draws of a Gumbel law.

    A setting "auto" of the kernel, other than its step size, is taken from these draws.
    """

    @jax.jit
    def after(key, kernel):
        draw_key, begin_key, run_key = jax.random.split(key, 3)
        thetas = sampling.draw_prior(draw_key, DRAWS, potential.problem)
        kernel = kernel.around(*tuning.moments(thetas))
        ensemble = sampling.begin(begin_key, thetas, potential, kernel)
        ensemble, stats, _ = sampling.run(run_key, ensemble, potential, kernel, STEPS)
        return ensemble.theta, jnp.mean(stats.acceptance)

    thetas, acceptance = after(jax.random.key(0), kernel)
    assert 0.1 < acceptance < 0.97, f"acceptance {acceptance}: too short or too long a step to test anything"
    return [scipy.stats.kstest(np.asarray(column, float), scipy.stats.gumbel_r.cdf).pvalue for column in thetas.T]


@pytest.mark.parametrize("name", ADJUSTED)
def test_an_adjusted_kernel_leaves_a_skewed_law_invariant(name):
    kernel = dataclasses.replace(KERNELS.resolve(name), step_size=STEP_SIZES[name.partition(":")[2] or name])
    assert min(p_values(kernel)) > FALSE_FAILURE_RATE / 2


@pytest.mark.parametrize("scale", ["auto", 0.7])
def test_hmc_leaves_a_skewed_law_of_ten_dimensions_invariant(scale):
    """Around the particles' own moments, and around a normal law that is too narrow and not centred on them."""
    kernel = HMC(step_size=0.9 if scale == "auto" else 0.5, scale=scale)
    assert min(p_values(kernel, TEN_DIMENSIONS)) > FALSE_FAILURE_RATE / 10


class BrokenHMC(HMC):
    """HMC with one thing wrong, which a subclass says."""

    def step(self, key, state, potential):
        velocity_key, length_key, accept_key = jax.random.split(key, 3)
        centre, scale = self.centre, self.scale
        u, place = (state.theta - centre) / scale, state
        h = self.step_size * jax.random.uniform(length_key, (), u.dtype, SHORTEST, LONGEST)
        begun = v = jax.random.normal(velocity_key, u.shape, u.dtype)
        for _ in range(2):  # two steps of 0.9 make a quarter of a circle, rounded
            v = v - h / 2 * (scale * place.gradient - u)
            u, v = u * jnp.cos(h) + v * jnp.sin(h), v * jnp.cos(h) - u * jnp.sin(h)
            place = Evaluated.at(centre + scale * u, potential)
            v = v - h / 2 * (scale * place.gradient - u)
        after, info = metropolis(accept_key, self.kinetic * (begun @ begun - v @ v) / 2, state, place)
        return (after, info) if self.accepts else (place, info)

    step_size: float = 0.9
    kinetic, accepts = 1, True


class HMCAcceptsEverything(BrokenHMC):
    accepts = False


class HMCForgetsItsVelocity(BrokenHMC):
    kinetic = 0


@pytest.mark.parametrize("potential", [POTENTIAL, TEN_DIMENSIONS], ids=["2", "10"])
@pytest.mark.parametrize("broken", [HMCAcceptsEverything, HMCForgetsItsVelocity])
def test_a_broken_hmc_does_not(broken, potential):
    values = p_values(broken(), potential)
    print(f"{broken.__name__}: p = {min(values):.1e}")
    assert max(values) < FALSE_FAILURE_RATE


def test_what_was_broken_of_hmc_was_right_before():
    """It takes the very steps of HMC."""
    key = jax.random.key(1)
    thetas, ends = sampling.draw_prior(key, 100, TEN_DIMENSIONS.problem), []
    for kernel in (HMC(step_size=0.9, scale=1.2, centre=0.5), BrokenHMC(scale=1.2, centre=0.5)):
        ensemble = sampling.begin(key, thetas, TEN_DIMENSIONS, kernel)
        ends.append(sampling.run(key, ensemble, TEN_DIMENSIONS, kernel, 3)[0].theta)
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-5)


class Broken(MALA):
    """MALA with one thing wrong, which a subclass says."""

    def step(self, key, state, potential):
        noise_key, accept_key = jax.random.split(key)
        eta, noise = self.step_size, jax.random.normal(noise_key, state.theta.shape, state.theta.dtype)
        proposal = Evaluated.at(
            state.theta + self.drift_sign * eta * state.gradient + jnp.sqrt(2 * eta) * noise, potential
        )
        both = state.gradient + proposal.gradient
        correction = jnp.sqrt(eta / 2) * noise @ both - eta / 4 * both @ both
        after, info = metropolis(accept_key, correction * self.proposal_ratio, state, proposal)
        return (after, info) if self.accepts else (proposal, KernelInfo(*info[:3]))

    drift_sign, proposal_ratio, accepts = -1, True, True


class NothingWrong(Broken):
    step_size: float = 0.8


class AcceptsEverything(NothingWrong):
    accepts = False


class WrongProposalRatio(NothingWrong):
    proposal_ratio = False


class SignError(NothingWrong):
    drift_sign = 1


@pytest.mark.parametrize("broken", [AcceptsEverything, WrongProposalRatio, SignError])
def test_a_broken_kernel_does_not(broken):
    values = p_values(broken())
    print(f"{broken.__name__}: p = {min(values):.1e}")
    assert max(values) < FALSE_FAILURE_RATE


def test_what_was_broken_was_right_before():
    assert min(p_values(NothingWrong())) > FALSE_FAILURE_RATE / 2


@pytest.mark.slow
def test_our_mala_takes_blackjaxs_steps():
    """The same keys lead both along the same path: two derivations of one algorithm."""
    potential, key = POTENTIAL, jax.random.key(1)
    thetas = sampling.draw_prior(key, 500, potential.problem)
    ends = []
    for kernel in (MALA(step_size=0.8), mfpda.FromBlackJAX("mala", step_size=0.8)):
        ensemble = sampling.begin(key, thetas, potential, kernel)
        ends.append(jax.jit(sampling.run)(key, ensemble, potential, kernel, 10)[0].theta)
    np.testing.assert_allclose(*ends, atol=1e-4)
