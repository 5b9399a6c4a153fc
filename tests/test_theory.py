"""Every statement against numbers worked out by hand, and against what it claims wherever that has a closed form.

By hand is mostly lambda1 = 1, lambda2 = 8, p = 2, where exp(8 / lambda2) = e and exp(4 / lambda2) = sqrt(e).
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

import mfpda
from mfpda import theory
from mfpda.core.schedules import values
from mfpda.errors import InputError

E = 2.718281828459045
ROOT_E = 1.6487212707001282
LOG_2 = 0.6931471805599453
LOG_3 = 1.0986122886681098
LOG_24_PI = 4.322783716197346


def approx(value):
    return pytest.approx(value, rel=1e-12)


def gaussian_kl(variance, target, p):
    """KL(N(0, variance I) || N(0, target I))."""
    return p / 2 * (variance / target - 1 - math.log(variance / target))


def gibbs_variance(lambda1, lambda2, t):
    """Of q_*^(t+1) where h = 0: exp(-lambda1 t |theta|^2 / (lambda2 (t + 2)))."""
    return lambda2 * (t + 2) / (2 * lambda1 * t)


class TestConvergence:
    def test_excess_entropy_by_hand(self):
        """The second: exp(4 / 8) again, and 3 pi 8 / 3 = 8 pi, whose logarithm is log(24 pi) - log 3."""
        assert theory.excess_entropy(-5.0, 1, 8, 2) == approx(-5.0 + 0.5 + (ROOT_E + LOG_24_PI))
        assert theory.excess_entropy(1.0, 3, 8, 5) == approx(1.0 + 0.5 + 2.5 * (ROOT_E + LOG_24_PI - LOG_3))

    @pytest.mark.parametrize(("lambda1", "lambda2"), [(1, 8), (0.1, 1), (5, 0.5), (1, 0.005)])
    @pytest.mark.parametrize("t", [1, 2, 100])
    def test_gaussian_gibbs_densities_have_a_positive_one(self, lambda1, lambda2, t):
        """h = 0, so that q_*^(t+1) is a Gaussian: E log q = -(p/2) log(2 pi e variance)."""
        negative_entropy = -3 / 2 * (1 + math.log(2 * math.pi * gibbs_variance(lambda1, lambda2, t)))
        assert theory.excess_entropy(negative_entropy, lambda1, lambda2, 3) > 0

    @pytest.mark.parametrize("lambda2", [0.7, 2.0, 8.0])
    def test_perturbed_gibbs_densities_have_a_positive_one(self, lambda2):
        """V = theta^2 / (3 lambda2) + B(theta) with |B| <= 2 / (3 lambda2), the potential at t = 1, by quadrature."""
        theta = np.linspace(-60, 60, 200_001)
        for frequency in (0.1, 1.0, 5.0):
            minus_log = theta**2 / (3 * lambda2) + 2 / (3 * lambda2) * np.cos(frequency * theta)
            log_q = -minus_log - math.log(np.trapezoid(np.exp(-minus_log), theta))
            assert theory.excess_entropy(np.trapezoid(np.exp(log_q) * log_q, theta), 1, lambda2, 1) > 0

    def test_the_sign_as_printed_would_be_negative(self):
        """At t = 1 the Gaussian's entropy is (p/2) (1 + log(24 pi)) = 5.32; printed: -5.32 - 0.5 - 1.65 - 4.32 < 0."""
        negative_entropy = -(1 + math.log(2 * math.pi * gibbs_variance(1, 8, t=1)))
        assert negative_entropy == approx(-1 - LOG_24_PI)
        correct = theory.excess_entropy(negative_entropy, 1, 8, 2)
        assert correct == approx(-1 + 0.5 + ROOT_E)  # the logarithms cancel
        printed = 2 * negative_entropy - correct
        assert printed == pytest.approx(-11.7943, abs=1e-4)

    def test_terms_by_hand(self):
        """T = 5: T (T + 3) = 40; log(T + 2) = log 7."""
        terms = theory.convergence_terms(1, 8, p=3, outer_steps=5, second_moment=6, excess=3, epsilon=0.01)
        assert terms.tolerance == approx(0.02)
        assert terms.start == approx(2 * 10 / 40)
        assert terms.entropy == approx(48 / 5)
        assert terms.hidden_rate == approx(2 / 5 * (1 + E) * 9 * 8 * 1.9459101490553132**2)

    def test_the_entropy_term_is_its_own_sum(self):
        """V_{T+1} weighs e(q_*) by sum_{t=1}^{T+2} t, the iterates by sum_{t=2}^{T+1} t: T + 3 is left."""
        for steps in (1, 4, 30):
            left = sum(range(1, steps + 3)) - sum(range(2, steps + 2))
            terms = theory.convergence_terms(1, 2, 1, steps, second_moment=0, excess=1)
            assert terms.entropy == approx(2 / (steps * (steps + 3)) * 2 * left)
            assert terms.tolerance == 0


class TestLangevin:
    def test_constants_by_hand(self):
        assert theory.perturbed_log_sobolev_constant(3, 0.25) == approx(3 / E)
        assert theory.log_sobolev_constant(1, 8) == approx(1 / (12 * E))
        assert theory.lipschitz_constant(3, 8) == approx(1.0)

    def test_the_constant_is_below_that_of_a_gaussian_gibbs_density(self):
        """A Gaussian's log-Sobolev constant is 1 / variance; with h = 0 the perturbation costs a factor for nothing."""
        for t in (1, 2, 1000):
            assert theory.log_sobolev_constant(2, 40) < 1 / gibbs_variance(2, 40, t)
        assert theory.log_sobolev_constant(2, 40) * E**0.2 == approx(1 / gibbs_variance(2, 40, t=1))

    def test_langevin_kl_by_hand(self):
        """alpha = 2, L = 4: eta <= 1/32. exp(-2 * 20 / 40) * 5 + 8 * 3 * 16 / (40 * 2)."""
        assert theory.langevin_kl(5, alpha=2, lipschitz=4, p=3, eta=1 / 40, steps=20) == approx(5 / E + 4.8)
        assert theory.langevin_kl(0, alpha=2, lipschitz=4, p=3, eta=1 / 40, steps=20) == approx(4.8)
        with pytest.raises(InputError, match=r"0\.03125"):
            theory.langevin_kl(5, alpha=2, lipschitz=4, p=3, eta=1 / 31, steps=20)

    @pytest.mark.parametrize("share", [1.0, 0.1])
    @pytest.mark.parametrize("start", [1e-3, 0.9, 50.0])
    def test_ula_on_a_gaussian_obeys(self, start, share):
        """N(0, 4 I), alpha = L = 1/4: a step of ULA takes a variance v to (1 - eta / 4)^2 v + 2 eta. The KL is below
        the bound after every step; from a wide start it would not be with k in the exponent after k - 1 steps."""
        target, p, variance = 4.0, 3, 4.0 * start
        eta = share * 0.25 / (4 * 0.25**2)
        first, broken = gaussian_kl(variance, target, p), False
        for steps in range(1, 300):
            before = gaussian_kl(variance, target, p)
            variance = (1 - eta / target) ** 2 * variance + 2 * eta
            bound = theory.langevin_kl(first, 0.25, 0.25, p, eta, steps)
            assert gaussian_kl(variance, target, p) <= bound
            broken |= before > bound
        assert broken == (start == 50.0)

    def test_largest_step_size_by_hand(self):
        """alpha / (4 L^2) = 1/8; delta / (4 p) = 1/16 or above 1."""
        assert theory.largest_step_size(alpha=2, lipschitz=2, p=4, delta=1) == approx(1 / 128)
        assert theory.largest_step_size(alpha=2, lipschitz=2, p=4, delta=99) == approx(1 / 8)

    @pytest.mark.parametrize(("lambda1", "lambda2", "p", "delta"), [(1, 8, 2, 1), (0.3, 2, 7, 0.01), (4, 1, 1, 3.9)])
    def test_the_corollary_agrees_with_the_theorem(self, lambda1, lambda2, p, delta):
        """The paper's 96 is what alpha, L and min(1, delta / (4 p)) make."""
        printed = lambda1 * lambda2 * delta / (96 * p * (1 + lambda1) ** 2 * math.exp(8 / lambda2))
        assert theory.inner_step_size(lambda1, lambda2, p, delta) == approx(printed)

    def test_inner_loop_by_hand(self):
        """8 delta / (96 * 2 * 4 e) = delta / (96 e); 24 e / (2 eta) log(2 * 4 / 0.25), log 32 = 5 log 2."""
        assert theory.inner_step_size(1, 8, 2, 0.25) == approx(1 / (384 * E))
        assert theory.inner_iterations(1, 8, eta=0.5, kl=4, delta=0.25) == approx(24 * E * 5 * LOG_2)
        assert theory.inner_iterations(1, 8, eta=0.5, kl=0.1, delta=0.25) == 0

    @pytest.mark.parametrize("kl", [0.2, 30.0])
    def test_the_corollary_reaches_its_accuracy_by_the_theorem(self, kl):
        """The first term comes to delta / 2 and the second to delta / 2."""
        lambda1, lambda2, p, delta = 0.7, 3.0, 5, 0.1
        alpha, lipschitz = theory.log_sobolev_constant(lambda1, lambda2), theory.lipschitz_constant(lambda1, lambda2)
        eta = theory.inner_step_size(lambda1, lambda2, p, delta)
        steps = math.ceil(theory.inner_iterations(lambda1, lambda2, eta, kl, delta))
        reached = theory.langevin_kl(kl, alpha, lipschitz, p, eta, steps)
        assert reached == pytest.approx(delta, rel=1e-4)
        assert reached <= delta


class TestSchedules:
    def test_by_hand(self):
        """t = 2, delta = 1/9: eta = 1 / (864 e); 12 e * 864 e log(2 * 5 * 9), log 90 = 4.4998."""
        assert theory.CorollaryStepSize(1, 8, 2)(2) == approx(1 / (864 * E))
        assert theory.CorollaryInnerSteps(1, 8, 2, kl=5)(2) == approx(10368 * E**2 * 4.499809670330265)
        assert theory.CorollaryInnerSteps(1, 8, 2, kl=0)(2) == 1

    @pytest.mark.parametrize(("lambda1", "lambda2"), [(1.0, 8.0), (20.0, 3.0), (0.05, 30.0)])
    def test_exact_gaussians_meet_the_accuracy_at_every_outer_step(self, lambda1, lambda2):
        """h = 0: the particles' law stays Gaussian. After k steps of ULA on N(0, s I) its variance is
        v_inf + (1 - eta / s)^(2 k) (v_0 - v_inf) with v_inf = s / (1 - eta / (2 s))."""
        p, variance = 2, lambda2 / (2 * lambda1)
        kl = max(theory.warm_start_kl(lambda2, p, 1 / 4), theory.gaussian_start_kl(lambda1, lambda2, p, variance))
        etas = values(theory.CorollaryStepSize(lambda1, lambda2, p), 20, "step_size")
        counts = values(theory.CorollaryInnerSteps(lambda1, lambda2, p, kl), 20, "inner_steps", whole=True)
        for t, (eta, steps) in enumerate(zip(etas, counts, strict=True), start=1):
            target = gibbs_variance(lambda1, lambda2, t)
            assert gaussian_kl(variance, target, p) <= kl
            limit = target / (1 - eta / (2 * target))
            variance = limit + (1 - eta / target) ** (2 * float(steps)) * (variance - limit)
            assert gaussian_kl(variance, target, p) <= 1 / (t + 1) ** 2

    def test_fit_takes_them(self, small):
        """At lambda1 = lambda2 = 100 they are small enough to run: exp(16 / lambda2) is 1.17."""
        model = mfpda.Model.from_function(
            lambda theta, x: jnp.tanh(theta["w"] * x[0]),
            {"w": mfpda.penalty(100, 100).prior},
            mfpda.losses.Squared(),
            100.0,
        )
        step_size, inner_steps = theory.CorollaryStepSize(100, 100, 1), theory.CorollaryInnerSteps(100, 100, 1, kl=8)
        fit = mfpda.fit(
            jax.random.key(0),
            model,
            small.data,
            kernel=mfpda.ULA(step_size=step_size),
            inner_steps=inner_steps,
            particles=10,
            outer_steps=2,
            progress=False,
        )
        stats = fit.idata["outer_stats"]
        np.testing.assert_allclose(np.ravel(stats["step_size"]), [step_size(1), step_size(2)], rtol=1e-6)
        assert np.ravel(stats["inner_steps"]).tolist() == [math.ceil(inner_steps(1)), math.ceil(inner_steps(2))]


class TestDivergences:
    def test_kl_bound_by_hand(self):
        """c_* = 1, c_# = 1/2, r = 2, p = 2, kl = 2: 4 + 1 + 9 e - log 2 + (1 + 12 e^2) 2 + 1/2 sqrt(4)."""
        bound = theory.kl_bound(2, 2, c_star=1, lambda_star=6, c_sharp=0.5, lambda_sharp=3)
        assert bound == approx(5 + 9 * E - LOG_2 + 2 + 24 * E**2 + 1)

    def test_warm_start_by_hand(self):
        """12/8 + 12 sqrt(e) + log 3 + (1 + 16 e) / 2 + (2/8) sqrt(1)."""
        bound = theory.warm_start_kl(8, p=2, kl=0.5)
        assert bound == approx(1.5 + 12 * ROOT_E + LOG_3 + 0.5 + 8 * E + 0.25)

    @pytest.mark.parametrize("kl", [0.0, 0.01, 0.25])
    @pytest.mark.parametrize("ratio", [1 / 3, 1.0, 3.0])
    def test_warm_start_is_the_proposition_at_its_worst(self, ratio, kl):
        """6 = 3/2 (1 + 3) and 16 = 4 (1 + 3) need r <= 3, log 3 needs r >= 1/3; at r = 3 only the log is loose."""
        general = theory.kl_bound(kl, 4, 2 / 5, ratio, 2 / 5, 1.0)
        bound = theory.warm_start_kl(5, 4, kl)
        assert general <= bound
        if ratio == 3:
            assert bound - general == pytest.approx(4 * math.log(3), rel=1e-9)

    def test_ratios_of_consecutive_gibbs_densities_are_within_three(self):
        """r = lambda_* / lambda_# = t (t + 1) / ((t + 2) (t - 1)) for t >= 2: 3/2, 6/5, ..., falling to 1."""
        ratios = [gibbs_variance(1, 1, t - 1) / gibbs_variance(1, 1, t) for t in range(2, 50)]
        assert ratios[0] == approx(1.5)
        assert all(1 < later < earlier for earlier, later in itertools.pairwise(ratios))

    def test_gaussian_start_by_hand(self):
        """variance 4 is the prior's, r = 1: 1 + 6 + log 3; variance 12, r = 3, or 4 at lambda1 = 3: 1 + 12 + log 1."""
        assert theory.gaussian_start_kl(1, 8, p=2, variance=4) == approx(7 + LOG_3)
        assert theory.gaussian_start_kl(1, 8, p=2, variance=12) == approx(13)
        assert theory.gaussian_start_kl(3, 8, p=2, variance=4) == approx(13)

    @pytest.mark.parametrize("variance", [0.01, 1.0, 4.0, 300.0])
    def test_gaussian_start_is_the_proposition_and_holds(self, variance):
        for t in (1, 2, 10, 1000):
            target = gibbs_variance(1, 8, t)
            general = theory.kl_bound(
                0, 2, c_star=2 / 8, lambda_star=1 / (2 * target), c_sharp=0, lambda_sharp=0.5 / variance
            )
            assert gaussian_kl(variance, target, 2) <= general <= theory.gaussian_start_kl(1, 8, 2, variance)


class TestParticles:
    def test_hoeffding_by_hand(self):
        """rho^2 M / (2 a^2) = 0.04 * 400 / 8 = 2; (8 / 0.04) log(2 * 5 / delta) = 200 * 4 at delta = 10 e^-4."""
        assert theory.hoeffding_tail(0.2, 400, a=2) == approx(2 / E**2)
        assert theory.hoeffding_particles(0.2, 10.0001 / E**4, a=2, events=5) == 800
        assert theory.hoeffding_particles(0.1, 2.0001 / E**4) == 800

    def test_hoeffding_holds_for_coins(self):
        for particles in (1, 10, 101):
            for rho in (0.05, 0.3, 0.8):
                heads = np.arange(particles + 1)
                off = np.abs(2 * heads / particles - 1) > rho
                assert binom.pmf(heads, particles, 0.5)[off].sum() <= theory.hoeffding_tail(rho, particles)

    def test_the_count_is_the_smallest_that_does(self):
        particles = theory.hoeffding_particles(0.1, 0.05, events=30)
        assert 30 * theory.hoeffding_tail(0.1, particles) <= 0.05 < 30 * theory.hoeffding_tail(0.1, particles - 1)

    def test_warm_start_gap_by_hand(self):
        """M = 8 and delta = 2 (T + 1)^2 / e^4 make the width 1. lambda1 = 1, lambda2 = 4.

        t = 1, eta = 1/2, T_1 = 3: a = 4 / (2 * 4 * 3) = 1/6, sum = 1 + 7/6 + 49/36 = 127/36, rho_2 = 1/24 * 127/36.
        t = 2, eta = 1, T_2 = 2: a = 8 / 16 = 1/2, sum = 5/2, rho_3 = 9/4 rho_2 + 1/8 (rho_2 + 1) 5/2.
        """
        once = theory.warm_start_gap(1, 4, 8, 8 / E**4, step_sizes=[0.5], inner_steps=[3])
        assert once == approx(127 / 864 + 1)
        twice = theory.warm_start_gap(1, 4, 8, 18 / E**4, step_sizes=[0.5, 1.0], inner_steps=[3, 2])
        assert twice == approx(127 / 864 * (9 / 4 + 5 / 16) + 5 / 16 + 1)

    def test_contracting_gap_by_hand(self):
        """lambda1 = 5/2: 1 + 4/4; with slope 2 and lambda1 = 3 the same. 3 * 4 log(4) / (4 * 0.5) = 8.3 steps."""
        plan = {"step_sizes": [0.5, 0.5], "inner_steps": [9, 9]}
        assert theory.contracting_warm_start_gap(2.5, 4, 8, 18 / E**4, **plan) == approx(2)
        assert theory.contracting_warm_start_gap(3, 4, 8, 18 / E**4, **plan, slope=2) == approx(2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lambda1": 1.49}, r"lambda1 >= 1\.5, found 1\.49"),
            ({"lambda1": 1.9, "slope": 2.0}, "lambda1 >= 2, found 1.9"),
            ({"step_sizes": [0.5, 0.81]}, r"step sizes <= 0\.8, found 0\.81 at outer step 2"),
            ({"inner_steps": [8, 9]}, r"inner steps >= 8\.318, found 8 at outer step 1"),
            ({"inner_steps": [9]}, "as many step_sizes as inner_steps"),
            ({"inner_steps": [9, 9.5]}, "whole number of at least 1 as inner steps at outer step 2"),
            ({"step_sizes": [0.5, -1.0]}, "step size at outer step 2"),
            ({"particles": 0}, "particles"),
            ({"delta": 1.0}, "probability of failure"),
        ],
    )
    def test_conditions_are_checked(self, change, message):
        right = {
            "lambda1": 2.5,
            "lambda2": 4,
            "particles": 8,
            "delta": 0.1,
            "step_sizes": [0.5] * 2,
            "inner_steps": [9] * 2,
        }
        theory.contracting_warm_start_gap(**right)
        with pytest.raises(InputError, match=message):
            theory.contracting_warm_start_gap(**right | change)

    @pytest.mark.parametrize(("lambda1", "slope"), [(1.5, 1.0), (4.0, 1.0), (2.0, 2.0), (5.0, 2.0)])
    def test_the_worst_coupling_stays_within_the_contracting_gap(self, lambda1, slope):
        """The proof's inequality for two coupled particles, taken as an equality, at every inner step."""
        assert worst_coupling(lambda1, slope) <= self.contracting(lambda1, slope)

    def test_as_printed_it_would_fail_for_a_loss_of_slope_two(self):
        """At lambda1 = 3/2 and |l'| <= 2, m = 1: the distance grows by the width every outer step."""
        assert worst_coupling(1.5, slope=2.0) > 10 * self.contracting(1.5, slope=1.0)

    @staticmethod
    def contracting(lambda1, slope):
        eta, steps = 0.9 / (2 * lambda1), math.ceil(3 * math.log(4) / ((2 * lambda1 - slope) * 0.9 / (2 * lambda1)))
        return theory.contracting_warm_start_gap(lambda1, 1, 8, 2 * 41**2 / E**9, [eta] * 40, [steps] * 40, slope)


def worst_coupling(lambda1, slope):
    """lambda2 = 1, 40 outer steps, M = 8, log(2 (T + 1)^2 / delta) = 9, so width 3/2; enough inner steps to settle."""
    width, eta, rho = 1.5, 0.9 / (2 * lambda1), 0.0
    for t in range(1, 41):
        share, distance = t * eta / (t + 2), rho
        for _ in range(200):
            distance = (1 - 2 * lambda1 * share + slope * share) * distance + share * (rho + width)
        rho = max(rho, distance)
    return rho + width


class TestGeneralisation:
    def test_by_hand(self):
        """kl = 1/4, n = 100, delta = 2 / e^2: sqrt(log(2 / delta) / (2 n)) = 1/10; the corollary's lambda2 is 1/10."""
        assert theory.rademacher_bound(0.25, 100) == approx(0.1)
        assert theory.classification_bound(0.25, 100, 2 / E**2, lambda2=0.4) == approx(0.1 + 0.8 + 1.5)
        assert theory.regression_bound(0.25, 100, 2 / E**2, lambda2=0.4) == approx(0.1 + 0.4 + 0.6)
        assert theory.classification_bound(0.25, 100, 2 / E**2) == approx(0.025 + 0.8 + 1.5)
        assert theory.regression_bound(0.25, 100, 2 / E**2) == approx(0.025 + 0.4 + 0.6)

    def test_at_one_half_something_is_said(self):
        assert theory.rademacher_bound(0.5, 2) == approx(1.0)

    @pytest.mark.parametrize("bound", [theory.classification_bound, theory.regression_bound])
    def test_above_one_half_nothing_is_said(self, bound):
        with pytest.raises(InputError, match="at most 1/2"):
            bound(0.51, 100, 0.1)

    @pytest.mark.parametrize("kl", [0.01, 0.5])
    def test_the_richest_class_obeys(self, kl):
        """h takes all 2^n sign patterns on n inputs and p0 is uniform on them: every sign draw has the same supremum,
        min over s of (kl + n log cosh(s / n)) / s by duality, about sqrt(2 kl / n)."""
        n = 12
        dual = minimize_scalar(lambda s: (kl + n * math.log(math.cosh(s / n))) / s, bounds=(1e-3, 50), method="bounded")
        assert theory.rademacher_bound(kl, n) / 2 < dual.fun <= theory.rademacher_bound(kl, n)

    def test_the_constants_are_those_of_the_losses(self):
        """On |z| <= 1: the smoothed hinge has slope 4 and values up to 5, the squared loss slope 2 and up to 2."""
        z = np.linspace(-1, 1, 9)
        for loss, slope, largest in ((mfpda.losses.SmoothedHinge(), 4, 5), (mfpda.losses.Squared(), 2, 2)):
            assert np.max(np.abs([loss.derivative(each, 1.0) for each in z])) == pytest.approx(slope)
            assert np.max([loss.value(each, 1.0) for each in z]) == pytest.approx(largest)


class TestVacuous:
    """exp(8 / lambda2) overflows below lambda2 = 0.0113: that is an answer, and no warning (they are errors here)."""

    @pytest.mark.parametrize("lambda2", [1e-2, 1e-3, 1e-200])
    def test_overflow_is_infinite_and_underflow_zero(self, lambda2):
        terms = theory.convergence_terms(1, lambda2, 2, 10, 1.0, theory.excess_entropy(-1.0, 1, lambda2, 2))
        assert terms.hidden_rate == math.inf
        assert terms.start == approx(1 / 13)
        assert theory.CorollaryInnerSteps(1, lambda2, 2, kl=1)(1) == math.inf
        assert theory.warm_start_kl(lambda2, 2, 0.25) == math.inf
        assert theory.inner_iterations(1, lambda2, eta=0.1, kl=math.inf, delta=0.1) == math.inf
        assert theory.inner_iterations(1, lambda2, eta=0.1, kl=0.01, delta=0.1) == 0
        assert theory.kl_bound(math.inf, 2, 1, 1, 0, 1) == math.inf
        assert theory.log_sobolev_constant(1, lambda2) == 0
        assert theory.CorollaryStepSize(1, lambda2, 2)(1) == 0

    def test_zero_divergence_costs_nothing_even_times_infinity(self):
        """lambda2 = 0.01: exp(400) is a number, exp(800) is not, and kl = 0 multiplies the latter."""
        assert theory.warm_start_kl(0.01, 1, kl=0) == approx(1200 + 6 * math.exp(400) + math.log(3) / 2)

    def test_particles_drift_apart_without_limit(self):
        assert theory.warm_start_gap(1, 0.01, 100, 0.1, [0.1] * 3, [1000] * 3) == math.inf

    def test_fit_is_told(self):
        with pytest.raises(InputError, match=r"inner_steps at outer step 1, found inf"):
            values(theory.CorollaryInnerSteps(1, 0.01, 2, kl=1), 3, "inner_steps", whole=True)
        with pytest.raises(InputError, match=r"step_size at outer step 1, found 0\.0"):
            values(theory.CorollaryStepSize(1, 0.01, 2), 3, "step_size")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: theory.excess_entropy(math.nan, 1, 1, 1), "negative_entropy"),
        (lambda: theory.excess_entropy(0, 0, 1, 1), "lambda1"),
        (lambda: theory.excess_entropy(0, 1, -1, 1), "lambda2"),
        (lambda: theory.excess_entropy(0, 1, 1, 1.5), "p"),
        (lambda: theory.convergence_terms(1, 1, 1, 0, 1, 0), "outer_steps"),
        (lambda: theory.convergence_terms(1, 1, 1, 5, -1, 0), "second_moment"),
        (lambda: theory.convergence_terms(1, 1, 1, 5, 1, 0, epsilon=-0.1), "epsilon"),
        (lambda: theory.langevin_kl(-1, 1, 1, 1, 0.1, 1), "kl"),
        (lambda: theory.inner_iterations(1, 1, 0, 1, 1), "eta"),
        (lambda: theory.inner_step_size(1, 1, 1, 0), "delta"),
        (lambda: theory.gaussian_start_kl(1, 1, 1, 0), "variance"),
        (lambda: theory.hoeffding_particles(0, 0.1), "rho"),
        (lambda: theory.hoeffding_particles(1e-200, 0.1), "the particle count"),
        (lambda: theory.rademacher_bound("small", 10), "kl"),
    ],
)
def test_wrong_numbers_are_named(call, name):
    with pytest.raises(InputError, match=f"as {name}, found"):
        call()
