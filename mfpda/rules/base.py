"""What every outer rule is: the Rule protocol, and the parts that rules share."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array

from mfpda.problem.losses import Loss


class Problem(NamedTuple):
    """What a rule knows of the problem: the anchors' labels (or None), the loss, the temperature."""

    y: Any
    loss: Loss
    temperature: Array

    def derivative(self, z: Array, batch: Array | None) -> Array:
        """l'(z_i, y_i) for the anchors of this batch (None for all)."""
        y = self.y if batch is None or self.y is None else self.y[batch]
        return self.loss.over_rows(self.loss.derivative, z, y)


def over_outputs(per_anchor: Array, like: Array) -> Array:
    """One number per anchor, shaped to multiply what has outputs as well."""
    return per_anchor.reshape(per_anchor.shape + (1,) * (like.ndim - per_anchor.ndim))


def grown(part: Array, anchors: int) -> Array:
    """With zeros for more anchors, the first axis."""
    return jnp.pad(part, [(0, anchors - len(part))] + [(0, 0)] * (part.ndim - 1))


REWEIGHTED = {"kernel": "mala", "start": "reweight", "inner_steps": 10}  # suits rules that keep within weights


class Coefficients(NamedTuple):
    """What a rule decides: one coefficient per anchor and output, and the factor gamma of the whole potential."""

    c: Array
    gamma: Array


class Dual(NamedTuple):
    """A feasible dual g, and how much evidence each entry rests on: 0 for an anchor that no batch has held."""

    g: Array
    mass: Array

    def filled(self, fresh: Array) -> Array:
        """g, with ``fresh`` where no batch has held the anchor."""
        return jnp.where(over_outputs(self.mass, self.g) > 0, self.g, fresh)


class Linearisations(NamedTuple):
    """Weighted sums of loss derivatives per anchor, sum_s weight_s l'(z_i^(s)), and the sums of their weights.

    Their quotient is an average of values of l', so it always lies in the domain of the conjugate.
    """

    weighted: Array
    mass: Array

    @classmethod
    def empty(cls, anchors: int, outputs: tuple[int, ...]) -> "Linearisations":
        return cls(jnp.zeros((anchors, *outputs)), jnp.zeros(anchors))

    def add(self, batch: Array | None, weight: Array, derivative: Array) -> "Linearisations":
        if batch is None:
            return Linearisations(self.weighted + weight * derivative, self.mass + weight)
        return Linearisations(self.weighted.at[batch].add(weight * derivative), self.mass.at[batch].add(weight))

    def grow(self, anchors: int) -> "Linearisations":
        return Linearisations(*(grown(part, anchors) for part in self))

    def average(self) -> Dual:
        mass = over_outputs(self.mass, self.weighted)
        return Dual(self.weighted / jnp.where(mass > 0, mass, 1), self.mass)


@runtime_checkable
class Rule(Protocol):
    """How the linearisations of the loss are combined into the coefficients of the next Gibbs potential.

    A rule is a frozen dataclass, registered as a pytree or as static. It sees outputs at the anchors, never particles.
    ``on_batch`` says which anchors its coefficients belong to: those of the batch, or all of them.
    ``smallest_gamma`` is the smallest factor it will ever use: p0^gamma must be integrable.

    More that a rule may have. ``data_set = True``: it comes back to its examples, and streams are refused;
    ``full_batch = True``: it needs all of them at every step, and batches are refused too. ``suited``: the kernel,
    start and inner_steps of ``fit`` where the user names none. ``stats(state)``: scalars by name, which go into
    ``outer_stats``. ``stale(state)``: whether to draw the particles anew, tempered from the prior, and
    ``renewed(state, times)``: the state for ``times`` as many new ones; with a statistic named "settled", the number of
    steps that it averages noise over, ``stop_at_gap`` may raise M as well.
    """

    @property
    def on_batch(self) -> bool: ...

    @property
    def smallest_gamma(self) -> float: ...

    def init(self, anchors: int, outputs: tuple[int, ...]) -> Any:
        """The state before step 1, for this many anchors and this output shape."""

    def grow(self, state: Any, anchors: int) -> Any:
        """The state with room for more anchors (a stream's next bucket)."""

    def update(
        self, key: Array, state: Any, t: Array, outputs: Any, batch: Array | None, problem: Problem
    ) -> tuple[Any, Coefficients]:
        """Step t: from the outputs (``outputs.mean(batch)``), the coefficients of the potential to sample."""

    def dual(self, state: Any, t: Array) -> Dual:
        """g for the fitted density q_g and its certificate."""
