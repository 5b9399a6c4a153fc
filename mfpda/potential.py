"""The Gibbs potential that an outer step hands to the inner sampler."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.model import Model


@partial(jax.tree_util.register_dataclass, data_fields=["model", "anchors", "coefficients", "gamma"], meta_fields=[])
@dataclass(frozen=True, repr=False)
class GibbsPotential:
    """V(theta) = gamma [ (1/T) sum_i c_i . h(theta, x_i) - log p0(theta) ], whose density is proportional to exp(-V).

    With p0 proportional to exp(-(lambda1/lambda2)|theta|^2), T = lambda2, c_i = 2 w_i / (t (t+1)) and gamma = t /
    (t+2) this is the paper's potential g-bar of step t (Algorithm 1 and Appendix E.1). It is a pytree and is passed
    as an argument, never closed over: it changes every outer step, and one compilation serves them all.
    """

    model: Model
    anchors: Array
    coefficients: Array
    gamma: Array

    def __repr__(self) -> str:
        return f"GibbsPotential({self.model}, {len(self.anchors)} anchors, gamma={self.gamma})"

    def __call__(self, theta: Array) -> Array:
        """V at one flat theta in unconstrained space."""
        return self.gamma * (self.data_energy(theta) - self.model.log_prior(theta, self.anchors[0]))

    def data_energy(self, theta: Array) -> Array:
        """(1/T) sum_i c_i . h(theta, x_i)."""
        outputs = jax.vmap(self.model.output, in_axes=(None, 0))(theta, self.anchors)
        return jnp.sum(self.coefficients * outputs) / self.model.temperature

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


def prior_potential(model: Model, anchors: Array) -> GibbsPotential:
    """-log p0: the potential without data, c = 0 and gamma = 1."""
    outputs = model.structure(anchors[0]).output
    return GibbsPotential(model, anchors, jnp.zeros((len(anchors), *outputs)), jnp.ones(()))
