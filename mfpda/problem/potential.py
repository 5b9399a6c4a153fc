"""The Gibbs potential that an outer step hands to the inner sampler."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem.blocks import Blocks
from mfpda.problem.model import Model


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["model", "anchors", "coefficients", "gamma"],
    meta_fields=["blocks"],
)
@dataclass(frozen=True, repr=False)
class GibbsPotential:
    """V(theta) = gamma [ (1/T) sum_i c_i . h(theta, x_i) - log p0(theta) ], whose density is proportional to exp(-V).

    With p0 proportional to exp(-(lambda1/lambda2)|theta|^2), T = lambda2, c_i = 2 w_i / (t (t+1)) and gamma = t /
    (t+2) this is the paper's potential g-bar of step t (Algorithm 1 and Appendix E.1). It is a pytree and is passed
    as an argument, never closed over: it changes every outer step, and one compilation serves them all.

    ``blocks`` says how many anchors are looked at together. It is to be differentiated in theta alone, in reverse mode
    or forward over reverse.
    """

    model: Model
    anchors: Array
    coefficients: Array
    gamma: Array
    blocks: Blocks = Blocks()

    def __repr__(self) -> str:
        return f"GibbsPotential({self.model}, {len(self.anchors)} anchors, gamma={self.gamma})"

    def __call__(self, theta: Array) -> Array:
        """V at one flat theta in unconstrained space."""
        return self.gamma * (self.data_energy(theta) - self.model.log_prior(theta, self.anchors[0]))

    def data_energy(self, theta: Array) -> Array:
        """(1/T) sum_i c_i . h(theta, x_i)."""
        if self.blocks.whole(len(self.anchors)):
            return _energy(self.model, theta, self.coefficients, self.anchors)
        return _energy_in_blocks(self.blocks, self.model, theta, self.coefficients, self.anchors)

    def draw_initial(self, key: Array) -> Array:
        """One flat theta drawn from the model's q1."""
        return self.model.draw_initial(key, self.anchors[0])

    def draw_prior(self, key: Array) -> Array:
        """One flat theta drawn from the prior."""
        return self.model.draw_prior(key, self.anchors[0])

    def tempered(self, beta: Array) -> "GibbsPotential":
        """(1 - beta)(-log p0) + beta V: the prior at beta = 0, this potential at beta = 1, of the same form between.

        With V = gamma [E - log p0] it is gamma_b [E_b - log p0], gamma_b = 1 - beta (1 - gamma), and E_b has the
        coefficients c beta gamma / gamma_b.
        """
        gamma = 1 - beta * (1 - self.gamma)
        return replace(self, coefficients=self.coefficients * (beta * self.gamma / gamma), gamma=gamma)

    def thinning(self, anchors: int) -> Callable[[Array], "GibbsPotential"]:
        """key -> this potential on m = ``anchors`` anchors drawn by that key, whose expectation is this potential.

        Anchor i is drawn with probability p_i = |c_i| / S, S = sum_i |c_i| (norms over outputs), and its coefficient
        becomes c_i / (m p_i) = (S / m) c_i / |c_i|. Draws are stratified: draw k = 0..m-1 is the anchor at which the
        cumulative sum of |c| passes S (k + u_k) / m, u_k uniform, so that i is still drawn m p_i times in expectation.
        The cumulative sum is computed here, once for many keys. Where there are no more than m anchors the potential
        comes back as it is.
        """
        if anchors >= len(self.anchors):
            return lambda key: self
        c = self.coefficients
        sizes = jnp.linalg.norm(c.reshape(len(c), -1), axis=1)
        # Rounding may lift a sum also at an anchor of size 0: it gets the sum before it, and so is never drawn.
        cumulative = jax.lax.cummax(jnp.where(sizes > 0, jnp.cumsum(sizes), 0))
        total = cumulative[-1]

        def thinned(key: Array) -> GibbsPotential:
            places = jnp.arange(anchors) + jax.random.uniform(key, (anchors,), sizes.dtype)
            points = jnp.minimum(total * (places / anchors), jnp.nextafter(total, jnp.zeros_like(total)))
            drawn = jnp.searchsorted(cumulative, points, side="right")
            size = sizes[drawn].reshape(-1, *[1] * (c.ndim - 1))
            unit = c[drawn] / jnp.where(size > 0, size, 1)  # all sizes are 0 before the first outer step
            return GibbsPotential(self.model, self.anchors[drawn], unit * (total / anchors), self.gamma)

        return thinned


def prior_potential(model: Model, anchors: Array, blocks: Blocks = Blocks()) -> GibbsPotential:
    """-log p0: the potential without data, c = 0 and gamma = 1."""
    outputs = model.structure(anchors[0]).output
    return GibbsPotential(model, anchors, jnp.zeros((len(anchors), *outputs)), jnp.ones(()), blocks)


def _energy(model: Model, theta: Array, coefficients: Array, anchors: Array) -> Array:
    outputs = jax.vmap(model.output, in_axes=(None, 0))(theta, anchors)
    return jnp.sum(coefficients * outputs) / model.temperature


@jax.custom_vjp
def _energy_in_blocks(blocks: Blocks, model: Model, theta: Array, coefficients: Array, anchors: Array) -> Array:
    return blocks.summed(partial(_energy, model, theta), coefficients, anchors)


def _energy_and_gradient(blocks, model, theta, coefficients, anchors):
    """In one pass over the blocks: the gradient of a block is taken while its outputs are there.

    Left to JAX, the loop would keep the outputs of all blocks for a second pass, or compute them again.
    """
    both = jax.value_and_grad(_energy, argnums=1)
    return blocks.summed(partial(both, model, theta), coefficients, anchors)


def _pulled_back(gradient, cotangent):
    return None, None, cotangent * gradient, None, None


_energy_in_blocks.defvjp(_energy_and_gradient, _pulled_back)
