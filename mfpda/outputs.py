"""The outputs H of the particles at the anchors, H_ri = h(theta_r, x_i): all that an outer rule sees of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.model import Model


class Outputs(NamedTuple):
    """A view of H, evaluated only where it is asked for."""

    model: Model
    thetas: Array
    anchors: Array

    def mean(self, batch: Array | None = None) -> Array:
        """Predictions z_i = (1/M) sum_r h(theta_r, x_i) at the anchors of this batch, or at all of them."""
        return predictions(self.model, self.thetas, self.anchors if batch is None else self.anchors[batch])


def predictions(model: Model, thetas: Array, x: Array) -> Array:
    """(1/M) sum_r h(theta_r, x_i) for every row of x: the paper's h_Theta."""
    at_anchors = jax.vmap(model.output, in_axes=(None, 0))
    return jnp.mean(jax.vmap(at_anchors, in_axes=(0, None))(thetas, x), axis=0)
