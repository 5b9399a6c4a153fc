"""One problem: a model bound to its examples."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import largest_of_symmetric
from mfpda.problem.blocks import Blocks
from mfpda.problem.losses import Loss
from mfpda.problem.model import NO_INIT, Model
from mfpda.problem.neuron import Neuron, trace
from mfpda.problem.outputs import Outputs
from mfpda.problem.potential import GibbsPotential
from mfpda.registry import pytree


@pytree
@dataclass(frozen=True, repr=False, eq=False)
class Problem:
    """A model, the examples (x_i, y_i) with their weights w_i, and the blocks in which they are evaluated.

        L(q) = sum_i w_i loss(z_i, y_i) + T KL(q || p0),      z_i = E_q[h(theta, x_i)]

    x and y have their first axis over examples; y may be None. theta is one flat vector in unconstrained space, and
    thetas have shape (M, p). ``mfpda.problem.binding.bind`` checks a user's examples and makes a problem.
    """

    model: Model
    x: Array
    y: Any
    weights: Array
    neuron: Neuron = field(metadata={"static": True})
    blocks: Blocks = field(default=Blocks(), metadata={"static": True})

    @classmethod
    def of(cls, model: Model, x: Array, y: Any = None, blocks: Blocks = Blocks()) -> "Problem":
        """Make the problem with equal weights 1/n, without checks."""
        weights = jnp.full(len(x), 1 / max(len(x), 1), jnp.result_type(float))
        row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        return cls(model, x, y, weights, trace(model.declaration, row), blocks.over(len(x)))

    def __repr__(self) -> str:
        return f"Problem({self.model}, {len(self.x)} examples)"

    @property
    def loss(self) -> Loss:
        return self.model.loss

    @property
    def temperature(self) -> Array:
        return self.model.temperature

    def at(self, rows: Array | np.ndarray | slice) -> "Problem":
        """Return the problem on these examples alone, with the weights they have here."""
        y = None if self.y is None else self.y[rows]
        return replace(self, x=self.x[rows], y=y, weights=self.weights[rows])

    def in_blocks(self, blocks: Blocks) -> "Problem":
        """Return the same problem, evaluated in other blocks."""
        return replace(self, blocks=blocks.over(len(self.x)))

    def output(self, theta: Array, x: Array) -> Array:
        """Return h(theta, x) for one theta and one input."""
        return self.neuron.evaluate(theta, x).output

    def log_prior(self, theta: Array) -> Array:
        """Return log p0(theta) in unconstrained space, Jacobian included."""
        return sum(self.neuron.evaluate(theta, self.x[0]).log_densities, start=jnp.zeros((), theta.dtype))

    def constrain(self, thetas: Array) -> dict[str, Array]:
        """Return the sites' values on their supports, for every particle, in the order of their declaration."""
        values = _constrain(self.neuron, thetas)  # jit sorts the keys of a dict
        return {name: values[name] for name in self.neuron.site_names}

    def draw_prior(self, key: Array) -> Array:
        """Draw one theta from the prior p0."""
        return self.neuron.draw(key, NO_INIT, self.x[0])

    def draw_initial(self, key: Array) -> Array:
        """Draw one theta from q1: the model's ``init`` for the sites that it names, and the prior for the others."""
        return self.neuron.draw(key, self.model.declaration.init, self.x[0])

    def outputs(self, thetas: Array) -> Outputs:
        """Return a view of the outputs H of these particles at the examples."""
        return Outputs(self, thetas)

    def outputs_at(self, thetas: Array, x: Array) -> Array:
        """Return all of H: h(theta_r, x_i) for every particle and every row of x."""
        at_rows = jax.vmap(self.output, in_axes=(None, 0))
        return jax.vmap(at_rows, in_axes=(0, None))(thetas, x)

    def predict(self, thetas: Array, x: Array | None = None) -> Array:
        """Return (1/M) sum_r h(theta_r, x_i), the paper's h_Theta, at the examples or at the rows of x."""
        return self.blocks.mapped(lambda x: jnp.mean(self.outputs_at(thetas, x), axis=0), self.x if x is None else x)

    def projections(self, thetas: Array, direction: Array) -> Array:
        """Return sum_i direction_i . h(theta_r, x_i) for every particle."""

        def of_one(theta):
            return self.blocks.summed(lambda d, x: jnp.sum(d * self.outputs_at(theta[None], x)[0]), direction, self.x)

        return jax.vmap(of_one)(thetas)

    def potential(self, coefficients: Array, gamma: Array | float = 1.0) -> GibbsPotential:
        """Return the Gibbs potential with these coefficients, one per example and output."""
        return GibbsPotential(self, coefficients, jnp.asarray(gamma, float))

    def prior_potential(self) -> GibbsPotential:
        """Return -log p0, the potential with c = 0 and gamma = 1."""
        return self.potential(jnp.zeros((len(self.x), *self.neuron.output)))

    def per_example(self, function: Callable[..., Array], z: Array, batch: Array | None = None) -> Array:
        """Map a method of the loss over the rows of z and the examples (or a batch of them)."""
        y = self.y if batch is None or self.y is None else self.y[batch]
        return self.loss.over_rows(function, z, y)

    def derivative(self, z: Array, batch: Array | None = None) -> Array:
        """Return l'(z_i, y_i) for every example, or for those of a batch."""
        return self.per_example(self.loss.derivative, z, batch)

    def risk(self, z: Array) -> Array:
        """Return sum_i w_i loss(z_i, y_i)."""
        return self.weighted(self.per_example(self.loss.value, z))

    def weighted(self, values: Array) -> Array:
        """Return sum_i w_i value_i. An example of weight 0 (a free place in a stream's buffer) may have any value."""
        return jnp.sum(jnp.where(self.weights > 0, self.weights * values, 0))

    def batch_weights(self, batch: Array | None) -> Array:
        """Return the weights of an unbiased estimate from a batch: w_i n / b, or w_i for the full batch."""
        return self.weights if batch is None else self.weights[batch] * (len(self.x) / len(batch))

    def stiffness(self, thetas: Array, z: Array) -> Array:
        """Return kappa, the largest eigenvalue of C diag(w l''(z)) / T, with C the covariance of H's columns.

        ``z`` are the predictions of these particles. With C = B^T B, B diag(w l''(z)) B^T / T has the same largest
        eigenvalue. kappa amplifies Monte Carlo error in z. Exact dual averaging overshoots until t is about 1.5 kappa.
        """
        deviations = self.outputs(thetas).deviations(z)
        start = jnp.cos(jnp.arange(len(thetas), dtype=z.dtype))  # any vector without symmetries
        product = lambda b: deviations.curved(self, z, b)  # noqa: E731
        return largest_of_symmetric(product, start, iterations=6) / self.temperature


@jax.jit
def predictions(problem: Problem, thetas: Array, x: Array | None = None) -> Array:
    """``Problem.predict``, compiled."""
    return problem.predict(thetas, x)


@functools.partial(jax.jit, static_argnames="neuron")
def _constrain(neuron: Neuron, thetas: Array) -> dict[str, Array]:
    return jax.vmap(lambda theta: neuron.evaluate(theta).values)(thetas)
