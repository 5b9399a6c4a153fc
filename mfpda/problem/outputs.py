"""The outputs H of the particles at the anchors, H_ri = h(theta_r, x_i). An outer rule sees only these."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.problem.blocks import Blocks

if TYPE_CHECKING:
    from mfpda.problem.problem import Problem

FAMILIES = 16.0  # with fewer families of particles, their variance is hardly known


class Outputs(NamedTuple):
    """A view of H. It evaluates only what is needed, and never all of H if the problem has blocks."""

    problem: "Problem"
    thetas: Array

    @property
    def mass(self) -> Array:
        """The weight of each particle, 1/M."""
        return jnp.full(len(self.thetas), 1 / len(self.thetas), self.thetas.dtype)

    def mean(self, batch: Array | None = None) -> Array:
        """Return predictions z_i = (1/M) sum_r h(theta_r, x_i) at the anchors of this batch, or at all of them."""
        return self.problem.predict(self.thetas, None if batch is None else self.problem.x[batch])

    def column(self, i: Array) -> Array:
        """Return h(theta_r, x_i) of every particle, for one anchor."""
        return jax.vmap(self.problem.output, in_axes=(0, None))(self.thetas, self.problem.x[i])

    def deviations(self, z: Array | None = None) -> "Deviations":
        """Return H - z. Give the predictions z if they are known already."""
        problem, z = self.problem, self.mean() if z is None else z
        centred = lambda z, x: problem.outputs_at(self.thetas, x) - z  # noqa: E731
        if problem.blocks.whole(len(problem.x)):
            whole = centred(z, problem.x)  # once, for all products
            centred = lambda z, x: whole  # noqa: E731
        return Deviations(z, self.mass, centred, problem.x, problem.blocks, len(self.thetas))


class Deviations(NamedTuple):
    """The outputs minus the predictions, and products with them. Each product passes over H once.

    With p the particles' mass and B = diag(sqrt(p)) (H - z), C = B^T B is the covariance of the outputs between all
    anchors and outputs. C itself is never formed.
    """

    z: Array
    mass: Array
    centred: Callable[[Array, Array], Array]  # from z and x in a block to H - z
    anchors: Array
    blocks: Blocks = Blocks()
    particles: Array | float = float("inf")  # the number of independent draws behind z and C

    def energies(self, direction: Array) -> Array:
        """Return sum_i direction_i . (h(theta_r, x_i) - z_i) for every particle."""
        of_block = lambda d, z, x: jnp.tensordot(self.centred(z, x), d, axes=d.ndim)  # noqa: E731
        return self.blocks.summed(of_block, direction, self.z, self.anchors)

    def matvec(self, direction: Array) -> Array:
        """Return B d, one number per particle."""
        return jnp.sqrt(self.mass) * self.energies(direction)

    def rmatvec(self, b: Array) -> Array:
        """Return B^T b, of the shape of the predictions."""
        of_block = lambda z, x: jnp.tensordot(jnp.sqrt(self.mass) * b, self.centred(z, x), axes=1)  # noqa: E731
        return self.blocks.mapped(of_block, self.z, self.anchors)

    def curved(self, problem: "Problem", at: Array, b: Array) -> Array:
        """Return B diag(w_i l''(at_i, y_i)) B^T b, a product with the dual's Hessian in the space of the particles."""
        root = jnp.sqrt(self.mass)

        def of_block(w, at, y, z, x):
            centred = self.centred(z, x)
            v = _second(problem, at, y, jnp.tensordot(root * b, centred, axes=1))
            return root * jnp.tensordot(centred, over_outputs(w, v) * v, axes=z.ndim)

        return self.blocks.summed(of_block, problem.weights, at, problem.y, self.z, self.anchors)

    def independent(self, problem: "Problem", ancestors: Array) -> Array:
        """Estimate how many independent draws would predict as precisely as these M particles, at most M.

        Particles with a common ancestor err together, unless they have moved since. With e over ancestors, the variance
        of the mean is estimated by (1/M^2) sum_e |sum_{r of e} (H_r - z)|^2 (Chan and Lai 2013), where independent
        draws have (1/M^2) sum_r |H_r - z|^2. The proof is for multinomial resampling. Few families show too little of
        the variance: with their effective number F = M^2 / sum_e M_e^2, the estimate is at most M F / min(16, M / 4).
        """
        count = len(self.mass)
        family = jnp.unique(ancestors, size=count, return_inverse=True)[1]

        def of_block(w, z, x):
            centred = self.centred(z, x)
            together = jax.ops.segment_sum(centred, family, count)
            return tuple(
                jnp.sum(over_outputs(w, z) * jnp.sum(jnp.square(part), axis=0)) for part in (centred, together)
            )

        alone, together = self.blocks.summed(of_block, problem.weights, self.z, self.anchors)
        sizes = jax.ops.segment_sum(jnp.ones_like(self.mass), family, count)
        families = float(count) ** 2 / jnp.sum(jnp.square(sizes))
        estimate = jnp.where(together > alone, alone / jnp.where(together > 0, together, 1), 1)
        return count * jnp.minimum(estimate, families / min(FAMILIES, count / 4))

    def noise(self, problem: "Problem") -> Array:
        """Return the particles' variance of l''(z) (h - z): M times the Monte Carlo variance of l'(z)."""

        def of_block(z, y, x):
            curved = jax.vmap(lambda v: _second(problem, z, y, v))(self.centred(z, x))
            return jnp.tensordot(self.mass, jnp.square(curved), axes=1)

        return self.blocks.mapped(of_block, self.z, problem.y, self.anchors)


def over_outputs(per_anchor: Array, like: Array) -> Array:
    """Reshape one number per anchor, so that it multiplies an array that has outputs as well."""
    return per_anchor.reshape(per_anchor.shape + (1,) * (like.ndim - per_anchor.ndim))


def _second(problem: "Problem", z: Array, y: Array | None, v: Array) -> Array:
    """Return l''(z_i, y_i) v_i for every row."""
    return jax.jvp(lambda z: problem.loss.over_rows(problem.loss.derivative, z, y), (z,), (v,))[1]
