"""The outputs H of the particles at the anchors, H_ri = h(theta_r, x_i): all that an outer rule sees of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.core.spectrum import largest_of_symmetric
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import Examples
from mfpda.problem.losses import Loss
from mfpda.problem.model import Model


class Outputs(NamedTuple):
    """A view of H, evaluated only where it is asked for, and never whole where there are blocks."""

    model: Model
    thetas: Array
    anchors: Array
    blocks: Blocks = Blocks()

    @property
    def mass(self) -> Array:
        """How much each particle counts: 1/M."""
        return jnp.full(len(self.thetas), 1 / len(self.thetas), self.thetas.dtype)

    def mean(self, batch: Array | None = None) -> Array:
        """Predictions z_i = (1/M) sum_r h(theta_r, x_i) at the anchors of this batch, or at all of them."""
        anchors = self.anchors if batch is None else self.anchors[batch]
        return predictions(self.model, self.thetas, anchors, self.blocks)

    def column(self, i: Array) -> Array:
        """h(theta_r, x_i) of every particle, for one anchor."""
        return jax.vmap(self.model.output, in_axes=(0, None))(self.thetas, self.anchors[i])

    def deviations(self, z: Array | None = None) -> "Deviations":
        """H - z; z are the predictions, given where they are known already."""
        z = self.mean() if z is None else z
        centred = lambda z, x: outputs_at(self.model, self.thetas, x) - z  # noqa: E731
        if self.blocks.whole(len(self.anchors)):
            whole = centred(z, self.anchors)  # once, for all products
            centred = lambda z, x: whole  # noqa: E731
        return Deviations(z, self.mass, centred, self.anchors, self.blocks, len(self.thetas))


class Deviations(NamedTuple):
    """The outputs less the predictions, and their products, of which each passes over H once.

    With p the particles' mass, B = diag(sqrt(p)) (H - z): B^T B is the covariance C of the outputs, of all anchors and
    outputs with each other, which never exists itself.
    """

    z: Array
    mass: Array
    centred: Callable[[Array, Any], Array]  # of the anchors in a block, and of their z: H - z
    anchors: Any
    blocks: Blocks = Blocks()
    particles: Array | float = float("inf")  # independent draws that z and C are estimated from

    def energies(self, direction: Array) -> Array:
        """sum_i direction_i . (h(theta_r, x_i) - z_i) for every particle."""

        def of_block(d, z, x):
            return jnp.tensordot(self.centred(z, x), d, axes=d.ndim)

        return self.blocks.summed(of_block, direction, self.z, self.anchors)

    def matvec(self, direction: Array) -> Array:
        """B d, one number a particle."""
        return jnp.sqrt(self.mass) * self.energies(direction)

    def rmatvec(self, b: Array) -> Array:
        """B^T b, of the shape of the predictions."""
        of_block = lambda z, x: jnp.tensordot(jnp.sqrt(self.mass) * b, self.centred(z, x), axes=1)  # noqa: E731
        return self.blocks.mapped(of_block, self.z, self.anchors)

    def curved(self, loss: Loss, weights: Array, at: Array, y: Any, b: Array) -> Array:
        """B diag(w_i l''(at_i, y_i)) B^T b: of the dual's Hessian in the space of the particles."""
        root = jnp.sqrt(self.mass)

        def second(w, at, y, v):  # w l'' v of one example
            return w * jax.jvp(lambda z: loss.derivative(z, y), (at,), (v,))[1]

        def of_block(w, at, y, z, x):
            centred = self.centred(z, x)
            along = jnp.tensordot(root * b, centred, axes=1)
            v = jax.vmap(second, in_axes=(0, 0, None if y is None else 0, 0))(w, at, y, along)
            return root * jnp.tensordot(centred, v, axes=z.ndim)

        return self.blocks.summed(of_block, weights, at, y, self.z, self.anchors)

    def noise(self, loss: Loss, y: Any) -> Array:
        """The variance of l''(z) (h - z) over the particles, per anchor and output: of l'(z), but for their number."""

        def second(z, y, v):
            return jax.jvp(lambda z: loss.derivative(z, y), (z,), (v,))[1]

        def of_block(z, y, x):
            over_anchors = jax.vmap(second, in_axes=(0, None if y is None else 0, 0))
            curved = jax.vmap(over_anchors, in_axes=(None, None, 0))(z, y, self.centred(z, x))
            return jnp.tensordot(self.mass, jnp.square(curved), axes=1)

        return self.blocks.mapped(of_block, self.z, y, self.anchors)


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

    ``z`` are the predictions of these particles; ``weights`` of the examples take the place of 1/n. With C = B^T B it
    is the largest eigenvalue of B diag(w l''(z)) B^T / T, a matrix over the particles.

    How strongly a small error in the dual g moves q_g: exact dual averaging overshoots until t has passed about 1.5
    kappa, and Monte Carlo error in z is amplified by kappa.
    """
    x, y, blocks = examples
    weights = jnp.full(len(x), 1 / len(x), z.dtype) if weights is None else weights
    deviations = Outputs(model, thetas, x, blocks).deviations(z)
    start = jnp.cos(jnp.arange(len(thetas), dtype=z.dtype))  # any vector without symmetries
    product = lambda b: deviations.curved(model.loss, weights, z, y, b)  # noqa: E731
    return largest_of_symmetric(product, start, iterations=6) / model.temperature
