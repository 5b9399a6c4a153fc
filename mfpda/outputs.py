"""The outputs H of the particles at the anchors, H_ri = h(theta_r, x_i): all that an outer rule sees of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.blocks import Blocks
from mfpda.data import Examples
from mfpda.model import Model
from mfpda.spectrum import largest_of_symmetric


class Outputs(NamedTuple):
    """A view of H, evaluated only where it is asked for, and never whole where there are blocks."""

    model: Model
    thetas: Array
    anchors: Array
    blocks: Blocks = Blocks()

    def mean(self, batch: Array | None = None) -> Array:
        """Predictions z_i = (1/M) sum_r h(theta_r, x_i) at the anchors of this batch, or at all of them."""
        anchors = self.anchors if batch is None else self.anchors[batch]
        return predictions(self.model, self.thetas, anchors, self.blocks)


def outputs_at(model: Model, thetas: Array, x: Array) -> Array:
    """H whole: h(theta_r, x_i) for every particle and every row of x."""
    at_anchors = jax.vmap(model.output, in_axes=(None, 0))
    return jax.vmap(at_anchors, in_axes=(0, None))(thetas, x)


def predictions(model: Model, thetas: Array, x: Array, blocks: Blocks = Blocks()) -> Array:
    """(1/M) sum_r h(theta_r, x_i) for every row of x: the paper's h_Theta."""
    return blocks.mapped(lambda x: jnp.mean(outputs_at(model, thetas, x), axis=0), x)


def projections(model: Model, thetas: Array, x: Array, direction: Array, blocks: Blocks = Blocks()) -> Array:
    """sum_i direction_i . h(theta_r, x_i) for every particle."""

    def of_one(theta):
        return blocks.summed(lambda d, x: jnp.sum(d * outputs_at(model, theta[None], x)[0]), direction, x)

    return jax.vmap(of_one)(thetas)


def stiffness(model: Model, thetas: Array, examples: Examples, z: Array, weights: Array | None = None) -> Array:
    """kappa, the largest eigenvalue of C diag(l''(z)) / (n T), C the covariance of H's columns.

    ``z`` are the predictions of these particles; ``weights`` of the examples take the place of 1/n.

    With H_c = H - z and D = diag(w l''(z)) that is the largest eigenvalue of H_c D H_c^T / (M T), a matrix over the
    particles: its products are sums over examples, so that H need not exist whole.

    How strongly a small error in the dual g moves q_g: exact dual averaging overshoots until t has passed about 1.5
    kappa, and Monte Carlo error in z is amplified by kappa.
    """
    x, y, blocks = examples
    particles, n = len(thetas), len(x)
    weights = jnp.full(n, 1 / n, z.dtype) if weights is None else weights
    centred_at = lambda z, x: outputs_at(model, thetas, x) - z  # noqa: E731
    whole = centred_at(z, x) if blocks.whole(n) else None  # once, for all iterations

    def curved(w, z, y, v):  # w l''(z) v for one example
        return w * jax.jvp(lambda z: model.loss.derivative(z, y), (z,), (v,))[1]

    def product(u):
        def of_block(w, z, y, x):
            centred = centred_at(z, x) if whole is None else whole
            v = jax.vmap(curved, in_axes=(0, 0, None if y is None else 0, 0))(w, z, y, jnp.tensordot(u, centred, 1))
            return jnp.tensordot(centred, v, axes=z.ndim)

        return blocks.summed(of_block, weights, z, y, x)

    start = jnp.cos(jnp.arange(particles, dtype=z.dtype))  # any vector without symmetries
    return largest_of_symmetric(product, start, iterations=6) / (particles * model.temperature)
