"""Underdamped (kinetic) Langevin."""

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError, listed
from mfpda.kernels.base import AUTO, Auto, Kernel, KernelInfo, Number, number_or_auto, stay_finite
from mfpda.problem import GibbsPotential

INTEGRATORS = ("baoab", "frozen_force")


class PhasePoint(NamedTuple):
    """The position and the velocity of a particle."""

    theta: Array
    velocity: Array


class Underdamped(Kernel):
    """dtheta = v dt,  dv = -grad V dt - g v dt + sqrt(2 g) dW, with friction g, in steps of h = ``step_size``.

    ``integrator="baoab"`` (Leimkuhler and Matthews 2013) alternates exact flows. With f2 = exp(-g h),

        v <- v - h grad V(theta),  theta <- theta + (h/2) v,  v <- f2 v + sqrt(1 - f2^2) xi,  theta <- theta + (h/2) v.

    The two half kicks become one here, so a step costs one gradient. Positions are as in BAOAB. The stationary law of
    theta has a bias of O(h^2), and none on a Gaussian.

    ``integrator="frozen_force"`` is the one the paper cites (Cheng, Chatterji, Bartlett and Jordan 2018): the exact
    solution with grad V fixed during the step. Its bias is O(h). With f0 = (1 - f2)/g and f1 = (h - f0)/g,

        theta <- theta + f0 v - f1 grad V + e_x,   v <- f2 v - f0 grad V + e_v,
        Var e_x = (2/g)(h - 2 f0 + (1 - f2^2)/(2 g)),   Cov = (1 - f2)^2 / g,   Var e_v = 1 - f2^2.

    The velocity survives from one outer step to the next: with one inner step and ``rule="latest"`` this is mean-field
    underdamped Langevin. Step sizes are lengths of time here, so they compare to the square root of ULA's.
    """

    step_size: Number = AUTO
    friction: Number = AUTO
    integrator: str = field(default="baoab", metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "friction", number_or_auto(self.friction, "friction"))
        if callable(self.friction):
            raise InputError('a float or "auto" as friction', "a schedule", "Only the step size can depend on t.")
        if self.integrator not in INTEGRATORS:
            raise InputError(f"an integrator ({listed(INTEGRATORS)})", repr(self.integrator), "Give one of these.")

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> PhasePoint:
        return PhasePoint(theta, jax.random.normal(key, theta.shape, theta.dtype))

    def refresh(self, key: Array, state: PhasePoint, theta: Array, potential: GibbsPotential) -> PhasePoint:
        return PhasePoint(theta, state.velocity)

    def step(self, key: Array, state: PhasePoint, potential: GibbsPotential) -> tuple[PhasePoint, KernelInfo]:
        energy, gradient = jax.value_and_grad(potential)(state.theta)
        move = _baoab if self.integrator == "baoab" else _frozen_force
        after = move(key, state, gradient, self.step_size, self.friction)
        after, diverging = stay_finite(state, after, after.theta)
        return after, KernelInfo(energy, jnp.ones_like(energy), diverging)

    def tuned(self, curvature: Array) -> "Underdamped":
        """Return the kernel with numbers in place of "auto". With w = sqrt(curvature), h = 1 / w and friction is w / 2.

        With a frozen force, h = 0.2 / w and friction is 2 w, as in Cheng et al. Variance is then 5 % too large.
        """
        w = jnp.sqrt(curvature)
        h, g = (1 / w, w / 2) if self.integrator == "baoab" else (0.2 / w, 2 * w)
        h = h if isinstance(self.step_size, Auto) else self.step_size
        return replace(self, step_size=h, friction=g if isinstance(self.friction, Auto) else self.friction)


def _baoab(key: Array, state: PhasePoint, gradient: Array, h: Array, g: Array) -> PhasePoint:
    noise = jax.random.normal(key, state.theta.shape, state.theta.dtype)
    velocity = state.velocity - h * gradient
    theta = state.theta + h / 2 * velocity
    velocity = jnp.exp(-g * h) * velocity + jnp.sqrt(-jnp.expm1(-2 * g * h)) * noise
    return PhasePoint(theta + h / 2 * velocity, velocity)


def _frozen_force(key: Array, state: PhasePoint, gradient: Array, h: Array, g: Array) -> PhasePoint:
    x_key, v_key = jax.random.split(key)
    f2, f0, f1, x_variance, covariance, v_variance = frozen_force_coefficients(h, g)
    v_noise = jnp.sqrt(v_variance) * jax.random.normal(v_key, state.theta.shape, state.theta.dtype)
    slope = covariance / v_variance
    x_noise = jax.random.normal(x_key, state.theta.shape, state.theta.dtype)
    x_noise = slope * v_noise + jnp.sqrt(x_variance - slope * covariance) * x_noise
    theta = state.theta + f0 * state.velocity - f1 * gradient + x_noise
    return PhasePoint(theta, f2 * state.velocity - f0 * gradient + v_noise)


def frozen_force_coefficients(h: Array, g: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return f2, f0, f1, Var e_x, Cov, Var e_v of the frozen-force step, accurate for any g h.

    With a = g h, f1 = h^2 (a - (1 - e^-a)) / a^2 and Var e_x = (2/g^2)(a - 2 (1 - e^-a) + (1 - e^-2a)/2) lose digits
    if a is small. For a < 1/2 use their Taylor series in -a: coefficients 1/k! (k >= 2) and (2 - 2^(k-1))/k! (k >= 3).
    """
    a = jnp.asarray(g * h)
    once, twice = -jnp.expm1(-a), -jnp.expm1(-2 * a)
    small = a < 0.5
    safe = jnp.where(small, 1.0, a)
    phi = jnp.where(small, _series(a, 2, lambda k: 1.0), (safe - once) / safe**2)
    psi = jnp.where(small, -a * _series(a, 3, lambda k: 2 - 2.0 ** (k - 1)), (safe - 2 * once + twice / 2) / safe**2)
    return jnp.exp(-a), h * once / a, h**2 * phi, 2 * h**2 * psi, once**2 / g, twice


def _series(a: Array, first: int, numerator: Callable[[int], float]) -> Array:
    """Sum numerator(k) / k! (-a)^(k - first) over k >= first by Horner's rule. Twenty terms suffice at a = 1/2."""
    total = jnp.zeros_like(a)
    for k in reversed(range(first, first + 20)):
        total = numerator(k) / math.factorial(k) - a * total
    return total
