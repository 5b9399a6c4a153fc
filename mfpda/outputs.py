"""The outputs H of the particles at the anchors, H_ri = h(theta_r, x_i): all that an outer rule sees of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.model import Model
from mfpda.spectrum import largest_eigenvalue


class Outputs(NamedTuple):
    """A view of H, evaluated only where it is asked for."""

    model: Model
    thetas: Array
    anchors: Array

    def mean(self, batch: Array | None = None) -> Array:
        """Predictions z_i = (1/M) sum_r h(theta_r, x_i) at the anchors of this batch, or at all of them."""
        return predictions(self.model, self.thetas, self.anchors if batch is None else self.anchors[batch])


def outputs_at(model: Model, thetas: Array, x: Array) -> Array:
    """H whole: h(theta_r, x_i) for every particle and every row of x."""
    at_anchors = jax.vmap(model.output, in_axes=(None, 0))
    return jax.vmap(at_anchors, in_axes=(0, None))(thetas, x)


def predictions(model: Model, thetas: Array, x: Array) -> Array:
    """(1/M) sum_r h(theta_r, x_i) for every row of x: the paper's h_Theta."""
    return jnp.mean(outputs_at(model, thetas, x), axis=0)


def projections(model: Model, thetas: Array, x: Array, direction: Array) -> Array:
    """sum_i direction_i . h(theta_r, x_i) for every particle."""
    return jax.vmap(lambda theta: jnp.sum(direction * outputs_at(model, theta[None], x)[0]))(thetas)


def stiffness(model: Model, outputs: Array, y: Any, weights: Array | None = None) -> Array:
    """kappa, the largest eigenvalue of C diag(l''(z)) / (n T), C the covariance of H's columns, by power iteration.

    ``weights`` of the examples take the place of 1/n.

    How strongly a small error in the dual g moves q_g: exact dual averaging overshoots until t has passed about 1.5
    kappa, and Monte Carlo error in z is amplified by kappa.
    """
    z = jnp.mean(outputs, axis=0)
    centred = outputs - z
    particles, n = outputs.shape[:2]
    weights = jnp.full(n, 1 / n, z.dtype) if weights is None else weights

    def curved(v):  # w l''(z) v, a block per example
        along = lambda w, z, y, v: w * jax.jvp(lambda z: model.loss.derivative(z, y), (z,), (v,))[1]  # noqa: E731
        return jax.vmap(along, in_axes=(0, 0, None if y is None else 0, 0))(weights, z, y, v)

    def product(v):
        return jnp.tensordot(jnp.tensordot(centred, curved(v), axes=z.ndim), centred, axes=1)

    start = jnp.cos(jnp.arange(z.size, dtype=z.dtype)).reshape(z.shape)  # any vector without symmetries
    return largest_eigenvalue(product, start, iterations=12) / (particles * model.temperature)
