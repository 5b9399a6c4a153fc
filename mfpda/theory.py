"""The paper's bounds as functions of their constants, and the schedules that satisfy them.

The symbols are the paper's. lambda1 and lambda2 weigh E|theta|^2 and E log q, and lambda2 is the temperature. A neuron
has p parameters, there are n examples, and delta is an accuracy or a probability of failure. The paper's T and M are
``outer_steps`` and ``particles``. The bounds assume |h| <= 1, and |l'| <= 2 except in classification.

A vacuous bound is returned as it is. Constants contain exp(8 / lambda2), so for small lambda2 a bound is infinite and
a step size is zero:

>>> warm_start_kl(lambda2=0.005, p=2, kl=0.25), inner_step_size(lambda1=1, lambda2=0.01, p=2, delta=0.25)
(inf, 0.0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mfpda.core import positive, positive_count
from mfpda.errors import InputError

StepSizes = Sequence[float]  # eta_t for t = 1..T
InnerSteps = Sequence[int]  # T_t for t = 1..T


def excess_entropy(negative_entropy: float, lambda1: float, lambda2: float, p: int) -> float:
    """Compute e(q) of Section 4.1: the negative entropy of q minus a lower bound on that of every q_*^(t),

        e(q) = E_q[log q] + 4 / lambda2 + (p / 2) (exp(4 / lambda2) + log(3 pi lambda2 / lambda1)).

    The paper gives the last two a minus. Its Proposition "Maximum Entropy" bounds the entropy -E[log q_*^(t)] by their
    sum. So e(q_*^(t)) >= 0, which the proof of Theorem 1 uses, holds only with a plus.
    """
    negative_entropy = _number(negative_entropy, "negative_entropy", least=-math.inf)
    lambda1, lambda2, p = positive(lambda1, "lambda1"), positive(lambda2, "lambda2"), positive_count(p, "p")
    return negative_entropy + 4 / lambda2 + p / 2 * (_exp(4 / lambda2) + math.log(3 * math.pi * lambda2 / lambda1))


class ConvergenceTerms(NamedTuple):
    """The parts of Theorem 1's bound on the weighted mean of L(q^(t)) - L(q_*).

    ``hidden_rate`` is only the order of the last part, up to the constant in the paper's O(.). So the sum is no bound.
    """

    tolerance: float
    start: float
    entropy: float
    hidden_rate: float


def convergence_terms(
    lambda1: float, lambda2: float, p: int, outer_steps: int, second_moment: float, excess: float, epsilon: float = 0.0
) -> ConvergenceTerms:
    """Compute the terms of Theorem 1 (Convergence of DA), from the last inequality of its proof: for any q_*,

        tolerance = 2 epsilon,    start = 2 (4 + lambda1 E|theta|^2) / (T (T + 3)),    entropy = 2 lambda2 e(q_*) / T,
        hidden_rate = (2 / T) (1 + exp(8 / lambda2)) p^2 lambda2 log(T + 2)^2.

    T is outer_steps; second_moment = E|theta|^2 and excess = e(q_*) belong to q_*. epsilon bounds the error of each
    prediction at which the loss was linearised. The theorem assumes KL(q^(t+1) || q_*^(t+1)) <= 1 / t^2.

    >>> excess = excess_entropy(-5.5, lambda1=1, lambda2=8, p=2)
    >>> terms = convergence_terms(1, 8, p=2, outer_steps=100, second_moment=8, excess=excess)
    >>> print(f"{terms.start:.4f} {terms.entropy:.3f} {terms.hidden_rate:.0f}")
    0.0023 0.155 51
    """
    lambda1, lambda2, p = positive(lambda1, "lambda1"), positive(lambda2, "lambda2"), positive_count(p, "p")
    steps = positive_count(outer_steps, "outer_steps")
    return ConvergenceTerms(
        tolerance=2 * _number(epsilon, "epsilon"),
        start=2 * (4 + lambda1 * _number(second_moment, "second_moment")) / (steps * (steps + 3)),
        entropy=2 * lambda2 * _number(excess, "excess", least=-math.inf) / steps,
        hidden_rate=2 / steps * (1 + _exp(8 / lambda2)) * p**2 * lambda2 * math.log(steps + 2) ** 2,
    )


def perturbed_log_sobolev_constant(alpha: float, bound: float) -> float:
    """Apply Holley and Stroock's lemma: if q has constant alpha and |B| <= bound, exp(B) q has alpha / exp(4 bound)."""
    return _number(alpha, "alpha") * _exp(-4 * _number(bound, "bound"))


def log_sobolev_constant(lambda1: float, lambda2: float) -> float:
    """Return a constant alpha = 2 lambda1 / (3 lambda2 exp(8 / lambda2)) of every Gibbs density q_*^(t+1), t >= 1.

    Corollary "Inner Loop Complexity": each is a Gaussian of curvature at least 2 lambda1 / (3 lambda2), times exp(B)
    with |B| <= 2 / lambda2.
    """
    lambda1, lambda2 = positive(lambda1, "lambda1"), positive(lambda2, "lambda2")
    return perturbed_log_sobolev_constant(2 * lambda1 / (3 * lambda2), 2 / lambda2)


def lipschitz_constant(lambda1: float, lambda2: float) -> float:
    """Return a constant L = (2 / lambda2) (1 + lambda1) of grad log q_*^(t+1), if grad h is 1-Lipschitz (A4)."""
    return 2 / positive(lambda2, "lambda2") * (1 + positive(lambda1, "lambda1"))


def langevin_kl(kl: float, alpha: float, lipschitz: float, p: int, eta: float, steps: int) -> float:
    """Bound the KL after ULA by Vempala and Wibisono's theorem: ``steps`` steps of size eta, beginning at ``kl``, give

        KL <= exp(-alpha eta steps) kl + 8 eta p L^2 / alpha    for eta <= alpha / (4 L^2).

    The paper calls the law after k - 1 steps q^(k) but writes k in the exponent. Here k is the number of steps taken.
    """
    alpha, lipschitz, eta = positive(alpha, "alpha"), positive(lipschitz, "lipschitz"), positive(eta, "eta")
    kl, p, steps = _number(kl, "kl"), positive_count(p, "p"), positive_count(steps, "steps")
    largest = alpha / 4 / lipschitz / lipschitz
    if eta > largest:
        raise InputError(f"eta <= alpha / (4 L^2) = {largest:.4g}", repr(eta), "The theorem does not cover larger eta.")
    contracted = _exp(math.log(kl) - alpha * eta * steps) if kl else 0.0
    return contracted + 8 * eta * p * lipschitz * lipschitz / alpha


def largest_step_size(alpha: float, lipschitz: float, p: int, delta: float) -> float:
    """Find eta for which ``langevin_kl`` can fall to delta: alpha / (4 L^2) min(1, delta / (4 p))."""
    lipschitz, delta = positive(lipschitz, "lipschitz"), positive(delta, "delta")
    return _number(alpha, "alpha") / 4 / lipschitz / lipschitz * min(1.0, delta / (4 * positive_count(p, "p")))


def inner_step_size(lambda1: float, lambda2: float, p: int, delta: float) -> float:
    """Find the step size with which ULA reaches KL(q^(t+1) || q_*^(t+1)) <= delta (Corollary "Inner Loop Complexity"),

    eta = lambda1 lambda2 delta / (96 p (1 + lambda1)^2 exp(8 / lambda2))    where delta <= 4 p.
    """
    return largest_step_size(log_sobolev_constant(lambda1, lambda2), lipschitz_constant(lambda1, lambda2), p, delta)


def inner_iterations(lambda1: float, lambda2: float, eta: float, kl: float, delta: float) -> float:
    """Count the ULA steps from KL ``kl`` to KL ``delta``, with eta at most ``inner_step_size``:

    (3 lambda2 exp(8 / lambda2) / (2 lambda1 eta)) log(2 kl / delta), and 0 if 2 kl <= delta.
    """
    lambda1, lambda2, eta = positive(lambda1, "lambda1"), positive(lambda2, "lambda2"), positive(eta, "eta")
    kl, delta = _number(kl, "kl"), positive(delta, "delta")
    log = math.log(2 * kl / delta) if 2 * kl > delta else 0.0
    return _times(3 * lambda2 * _exp(8 / lambda2) / (2 * lambda1) / eta, log)


@dataclass(frozen=True)
class CorollaryStepSize:
    """``inner_step_size`` at outer step t for the accuracy delta_{t+1} = 1 / (t + 1)^2. Use it as ULA's ``step_size``.

    >>> [f"{CorollaryStepSize(lambda1=1, lambda2=8, p=2)(t):.2e}" for t in (1, 2, 3)]
    ['9.58e-04', '4.26e-04', '2.40e-04']
    """

    lambda1: float
    lambda2: float
    p: int

    def __call__(self, t: int) -> float:
        return inner_step_size(self.lambda1, self.lambda2, self.p, 1 / (t + 1) ** 2)


@dataclass(frozen=True)
class CorollaryInnerSteps:
    """``inner_iterations`` at outer step t with ``CorollaryStepSize``, at least 1. Use it as ``fit(inner_steps=...)``.

    kl bounds KL(q^(t) || q_*^(t+1)) at every t. For ``start="resample"`` use ``gaussian_start_kl``. For
    ``start="warm"`` use the larger of it and ``warm_start_kl`` at kl = 1/4.

    >>> kl = max(gaussian_start_kl(1, 8, p=2, variance=4), warm_start_kl(8, p=2, kl=1 / 4))
    >>> [f"{CorollaryInnerSteps(lambda1=1, lambda2=8, p=2, kl=kl)(t):.2e}" for t in (1, 2, 3)]
    ['1.91e+05', '4.91e+05', '9.51e+05']
    """

    lambda1: float
    lambda2: float
    p: int
    kl: float

    def __call__(self, t: int) -> float:
        eta, delta = CorollaryStepSize(self.lambda1, self.lambda2, self.p)(t), 1 / (t + 1) ** 2
        return max(1.0, inner_iterations(self.lambda1, self.lambda2, eta, self.kl, delta)) if eta > 0 else math.inf


def kl_bound(kl: float, p: int, c_star: float, lambda_star: float, c_sharp: float, lambda_sharp: float) -> float:
    """Bound KL(q || q_*), given kl = KL(q || q_#), by Proposition "Boundedness of KL-divergence":

        4 c_* + 2 c_# + (3/2) (1 + r) p exp(2 c_#) - (p/2) log r + (1 + 4 (1 + r) exp(4 c_#)) kl + c_# sqrt(2 kl)

    with r = lambda_* / lambda_#. Both densities are proportional to exp(-H - lambda |theta|^2) with |H| <= c.
    """
    kl, p = _number(kl, "kl"), positive_count(p, "p")
    c_star, c_sharp = _number(c_star, "c_star"), _number(c_sharp, "c_sharp")
    r = positive(lambda_star, "lambda_star") / positive(lambda_sharp, "lambda_sharp")
    fixed = 4 * c_star + 2 * c_sharp + 1.5 * (1 + r) * p * _exp(2 * c_sharp) - p / 2 * math.log(r)
    return fixed + _times(1 + 4 * (1 + r) * _exp(4 * c_sharp), kl) + _times(c_sharp, math.sqrt(2 * kl))


def warm_start_kl(lambda2: float, p: int, kl: float) -> float:
    """Bound KL(q^(t) || q_*^(t+1)) at every t >= 2, if kl bounds KL(q^(t) || q_*^(t)):

        12 / lambda2 + 6 p exp(4 / lambda2) + (p/2) log 3 + (1 + 16 exp(8 / lambda2)) kl + (2 / lambda2) sqrt(2 kl).

    This is ``kl_bound`` with c = 2 / lambda2 and 1/3 <= r <= 3, as in the proof of Corollary "Inner Loop Complexity":
    a Gibbs density's lambda lies between lambda1 / (3 lambda2) and lambda1 / lambda2. (There is no q_*^(1).)
    """
    lambda2, p, kl = positive(lambda2, "lambda2"), positive_count(p, "p"), _number(kl, "kl")
    fixed = 12 / lambda2 + 6 * p * _exp(4 / lambda2) + p / 2 * math.log(3)
    return fixed + _times(1 + 16 * _exp(8 / lambda2), kl) + 2 / lambda2 * math.sqrt(2 * kl)


def gaussian_start_kl(lambda1: float, lambda2: float, p: int, variance: float) -> float:
    """Bound KL(q^(1) || q_*^(t+1)) at every t >= 1, if q^(1) is Normal(0, sqrt(variance)) in every coordinate:

        8 / lambda2 + (3/2) p (1 + r) + (p/2) log(3 / r),    r = 2 variance lambda1 / lambda2.

    This is ``kl_bound`` with q = q_# = q^(1), as in the paper for resampling. r = 1 is the prior from ``penalty``.
    """
    lambda1, lambda2, p = positive(lambda1, "lambda1"), positive(lambda2, "lambda2"), positive_count(p, "p")
    r = 2 * positive(variance, "variance") * lambda1 / lambda2
    return 8 / lambda2 + 1.5 * p * (1 + r) + p / 2 * math.log(3 / r)


def hoeffding_tail(rho: float, particles: int, a: float = 1.0) -> float:
    """Bound P(a mean of M values in [-a, a] is off by more than rho) by Hoeffding's 2 exp(-rho^2 M / (2 a^2))."""
    ratio = positive(rho, "rho") / positive(a, "a")
    return 2 * _exp(-ratio * ratio * positive_count(particles, "particles") / 2)


def hoeffding_particles(rho: float, delta: float, a: float = 1.0, events: int = 1) -> int:
    """Find M = (2 a^2 / rho^2) log(2 events / delta): all ``events`` means are within rho with probability 1 - delta.

    With ``start="resample"`` and events = outer_steps, rho is Theorem 1's epsilon.

    >>> hoeffding_particles(rho=0.1, delta=0.05, events=100)
    1659
    """
    ratio, events = positive(a, "a") / positive(rho, "rho"), positive_count(events, "events")
    return math.ceil(positive(2 * ratio * ratio * math.log(2 * events / _probability(delta)), "the particle count"))


def warm_start_gap(
    lambda1: float, lambda2: float, particles: int, delta: float, step_sizes: StepSizes, inner_steps: InnerSteps
) -> float:
    """Bound how far predictions of M warm-started particles are from those of the mean-field limit.

    By Proposition "Finite Particle Approximation" (i), the bound rho_{T+1} + width holds with probability 1 - delta at
    all outer steps and their inputs, where rho_1 = 0 and

        rho_{t+1} = (1 + a)^T_t rho_t + (t eta_t / (lambda2 (t + 2))) (rho_t + width) sum_{s < T_t} (1 + a)^s,
        a = 2 (1 + lambda1) t eta_t / (lambda2 (t + 2)),    width = sqrt((2 / M) log(2 (T + 1)^2 / delta)),

    with step_sizes eta_t and inner_steps T_t. h, its gradient and l' are assumed to be 1-Lipschitz.
    """
    lambda1, lambda2 = positive(lambda1, "lambda1"), positive(lambda2, "lambda2")
    plan, rho = _plan(step_sizes, inner_steps), 0.0
    width = _width(particles, delta, len(plan))
    for t, (eta, steps) in enumerate(plan, start=1):
        a = 2 * (1 + lambda1) * t * eta / (lambda2 * (t + 2))
        growth = _exp(steps * math.log1p(a))
        rho += _times(growth - 1, rho + (rho + width) / (2 * (1 + lambda1)))  # the sum over s is (growth - 1) / a
    return rho + width  # rho never falls, so it equals the paper's running maximum


def contracting_warm_start_gap(
    lambda1: float,
    lambda2: float,
    particles: int,
    delta: float,
    step_sizes: StepSizes,
    inner_steps: InnerSteps,
    slope: float = 1.0,
) -> float:
    """Bound the distance of ``warm_start_gap`` if lambda1 is large enough for inner steps to contract (part (ii)):

        (1 + 4 / m) sqrt((2 / M) log(2 (T + 1)^2 / delta)),    m = 2 lambda1 - slope >= 2,

    for eta_t <= lambda2 / (2 lambda1) and T_t >= 3 lambda2 log(4) / (m eta_t). slope bounds |l'|. The paper prints 1,
    which fits the logistic loss, but assumes 2 in (A1) and in part (i). Its proof then gives the bound at slope 2.
    """
    lambda1, lambda2, slope = positive(lambda1, "lambda1"), positive(lambda2, "lambda2"), positive(slope, "slope")
    m, largest = 2 * lambda1 - slope, lambda2 / (2 * lambda1)
    if m < 2:
        raise InputError(f"lambda1 >= {1 + slope / 2:g}", repr(lambda1), "For smaller lambda1 use warm_start_gap.")
    plan = _plan(step_sizes, inner_steps)
    for t, (eta, steps) in enumerate(plan, start=1):
        if eta > largest:
            raise InputError(f"step sizes <= {largest:.4g}", f"{eta} at outer step {t}", "Else use warm_start_gap.")
        fewest = 3 * lambda2 * math.log(4) / (m * eta)
        if steps < fewest:
            raise InputError(f"inner steps >= {fewest:.4g}", f"{steps} at outer step {t}", "Else use warm_start_gap.")
    return (1 + 4 / m) * _width(particles, delta, len(plan))


def rademacher_bound(kl: float, n: int) -> float:
    """Bound the Rademacher complexity of all h_q with KL(q || p0) <= kl <= 1/2 on n inputs by 2 sqrt(kl / n) (D.1)."""
    if _number(kl, "kl") > 0.5:
        raise InputError("a KL divergence of at most 1/2 as kl", repr(kl), "The lemma does not cover larger kl.")
    return 2 * math.sqrt(float(kl) / positive_count(n, "n"))


def classification_bound(kl: float, n: int, delta: float, lambda2: float | None = None) -> float:
    """Bound the 0-1 risk of the minimiser under the smoothed hinge, with probability 1 - delta (Appendix D.2):

        lambda2 kl + 16 sqrt(kl / n) + 15 sqrt(log(2 / delta) / (2 n))

    if some q with KL(q || p0) = kl <= 1/2 has y h_q(x) >= 1/2 for all data. Default lambda2: 1 / sqrt(n) (corollary).
    """
    return _generalisation_bound(kl, n, delta, lambda2, slope=4, largest=5)


def regression_bound(kl: float, n: int, delta: float, lambda2: float | None = None) -> float:
    """Bound the risk of the minimiser under (z - y)^2 / 2, with probability 1 - delta (Appendix D.3):

        lambda2 kl + 8 sqrt(kl / n) + 6 sqrt(log(2 / delta) / (2 n))

    if some q with KL(q || p0) = kl <= 1/2 has h_q(x) = y for all data. Default lambda2: 1 / sqrt(n) (corollary).
    """
    return _generalisation_bound(kl, n, delta, lambda2, slope=2, largest=2)


def _generalisation_bound(kl: float, n: int, delta: float, lambda2: float | None, slope: int, largest: int) -> float:
    """Add empirical risk, complexity and confidence, for a loss with this slope and values from 0 to ``largest``."""
    complexity = 2 * slope * rademacher_bound(kl, n)
    lambda2 = 1 / math.sqrt(n) if lambda2 is None else positive(lambda2, "lambda2")
    return lambda2 * float(kl) + complexity + 3 * largest * math.sqrt(math.log(2 / _probability(delta)) / (2 * n))


def _width(particles: int, delta: float, outer_steps: int) -> float:
    """Bound the error of all (T + 1)^2 predictions by Hoeffding: sqrt((2 / M) log(2 (T + 1)^2 / delta))."""
    log = math.log(2 * (outer_steps + 1) ** 2 / _probability(delta))
    return math.sqrt(2 / positive_count(particles, "particles") * log)


def _plan(step_sizes: StepSizes, inner_steps: InnerSteps) -> list[tuple[float, int]]:
    """Check the lists and return pairs (eta_t, T_t) for t = 1..T."""
    if not len(step_sizes) == len(inner_steps) > 0:
        found = f"{len(step_sizes)} and {len(inner_steps)}"
        raise InputError("as many step_sizes as inner_steps, at least 1", found, "Give one of each per outer step.")
    return [
        (positive(eta, f"step size at outer step {t}"), positive_count(steps, f"inner steps at outer step {t}"))
        for t, (eta, steps) in enumerate(zip(step_sizes, inner_steps, strict=True), start=1)
    ]


def _exp(exponent: float) -> float:
    """Return exp(exponent), or infinity where it overflows."""
    with np.errstate(over="ignore"):
        return float(np.exp(exponent))


def _times(factor: float, other: float) -> float:
    """Multiply, with 0 * inf = 0: here a zero is exact and an infinity is only a large number."""
    return 0.0 if factor == 0 or other == 0 else factor * other


def _number(number: float, name: str, least: float = 0.0) -> float:
    """Return the number as a float, which may be infinite. Refuse it below ``least``."""
    try:
        value = math.nan if isinstance(number, (str, bool)) else float(number)
    except (TypeError, ValueError):
        value = math.nan
    if not (value >= least and value > -math.inf):
        raise InputError(f"a number of at least {least:g} as {name}", repr(number), "Give a number in that range.")
    return value


def _probability(delta: float) -> float:
    if not positive(delta, "delta") < 1:
        raise InputError("a probability of failure below 1 as delta", repr(delta), "Give 0.05, for example.")
    return float(delta)
