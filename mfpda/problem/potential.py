"""The Gibbs potential that the inner sampler of an outer step samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem.blocks import Blocks
from mfpda.registry import pytree

if TYPE_CHECKING:
    from mfpda.problem.problem import Problem


@pytree
@dataclass(frozen=True, repr=False, eq=False)
class GibbsPotential:
    """V(theta) = gamma [ (1/T) sum_i c_i . h(theta, x_i) - log p0(theta) ], with density proportional to exp(-V).

    With p0 proportional to exp(-(lambda1/lambda2)|theta|^2), T = lambda2, and c and gamma as in ``DualAveraging``, this
    is the paper's potential g-bar of step t (Algorithm 1 and Appendix E.1).

    Pass a potential as an argument and never close over it: it changes at every outer step, and one compilation serves
    them all. Differentiate it in theta alone, in reverse mode or forward over reverse.
    """

    problem: "Problem"  # its examples are the anchors x_i
    coefficients: Array
    gamma: Array

    def __repr__(self) -> str:
        return f"GibbsPotential({self.problem.model}, {len(self.anchors)} anchors, gamma={self.gamma})"

    def __call__(self, theta: Array) -> Array:
        """Return V at one flat theta in unconstrained space."""
        return self.gamma * (self.data_energy(theta) - self.problem.log_prior(theta))

    @property
    def anchors(self) -> Array:
        return self.problem.x

    def data_energy(self, theta: Array) -> Array:
        """Return (1/T) sum_i c_i . h(theta, x_i)."""
        energy = _energy if self.problem.blocks.whole(len(self.anchors)) else _energy_in_blocks
        return energy(self.problem, theta, self.coefficients, self.anchors)

    def in_blocks(self, blocks: Blocks) -> "GibbsPotential":
        """Return the same potential, evaluated in other blocks."""
        return replace(self, problem=self.problem.in_blocks(blocks))

    def tempered(self, beta: Array) -> "GibbsPotential":
        """Return (1 - beta)(-log p0) + beta V, from the prior at beta = 0 to this potential at beta = 1.

        With V = gamma [E - log p0] it is gamma_b [E_b - log p0], gamma_b = 1 - beta (1 - gamma), and E_b has the
        coefficients c beta gamma / gamma_b.
        """
        gamma = 1 - beta * (1 - self.gamma)
        return replace(self, coefficients=self.coefficients * (beta * self.gamma / gamma), gamma=gamma)

    def thinning(self, anchors: int) -> Callable[[Array], "GibbsPotential"]:
        """Return a function from a key to this potential on m = ``anchors`` random anchors. It is unbiased.

        Anchor i is drawn with probability p_i = |c_i| / S, S = sum_i |c_i| (norms over outputs), and its coefficient
        becomes c_i / (m p_i) = (S / m) c_i / |c_i|. Draws are stratified: draw k = 0..m-1 is the anchor at which the
        cumulative sum of |c| passes S (k + u_k) / m, u_k uniform. i is still drawn m p_i times in expectation. With at
        most m anchors the potential stays as it is.
        """
        if anchors >= len(self.anchors):
            return lambda key: self
        c = self.coefficients
        sizes = jnp.linalg.norm(c.reshape(len(c), -1), axis=1)
        # Rounding may raise a sum at an anchor of size 0. That anchor gets the sum before it, so it is never drawn.
        cumulative = jax.lax.cummax(jnp.where(sizes > 0, jnp.cumsum(sizes), 0))
        total = cumulative[-1]

        def thinned(key: Array) -> GibbsPotential:
            places = jnp.arange(anchors) + jax.random.uniform(key, (anchors,), sizes.dtype)
            points = jnp.minimum(total * (places / anchors), jnp.nextafter(total, jnp.zeros_like(total)))
            drawn = jnp.searchsorted(cumulative, points, side="right")
            size = sizes[drawn].reshape(-1, *[1] * (c.ndim - 1))
            unit = c[drawn] / jnp.where(size > 0, size, 1)  # all sizes are 0 before the first outer step
            few = self.problem.at(drawn).in_blocks(Blocks())
            return GibbsPotential(few, unit * (total / anchors), self.gamma)

        return thinned


def _energy(problem: "Problem", theta: Array, coefficients: Array, anchors: Array) -> Array:
    outputs = jax.vmap(problem.output, in_axes=(None, 0))(theta, anchors)
    return jnp.sum(coefficients * outputs) / problem.temperature


@jax.custom_vjp
def _energy_in_blocks(problem: "Problem", theta: Array, coefficients: Array, anchors: Array) -> Array:
    return problem.blocks.summed(partial(_energy, problem, theta), coefficients, anchors)


def _energy_and_gradient(problem, theta, coefficients, anchors):
    """Compute energy and gradient in one pass over the blocks.

    JAX's own derivative of the loop would keep the outputs of all blocks for a second pass, or compute them again.
    """
    both = jax.value_and_grad(_energy, argnums=1)
    return problem.blocks.summed(partial(both, problem, theta), coefficients, anchors)


_energy_in_blocks.defvjp(_energy_and_gradient, lambda gradient, cotangent: (None, cotangent * gradient, None, None))
