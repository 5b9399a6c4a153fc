"""The base class of outer rules, and the parts that rules share."""

from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from mfpda.problem import Outputs, Problem, over_outputs
from mfpda.registry import Plug

RuleState = Any  # any pytree of arrays


class Coefficients(NamedTuple):
    """The decision of a rule: one coefficient per anchor and output, and the factor gamma of the whole potential."""

    c: Array
    gamma: Array


class Dual(NamedTuple):
    """A feasible dual g. ``mass`` is 0 at anchors that no batch has contained."""

    g: Array
    mass: Array

    def filled(self, fresh: Array) -> Array:
        """Return g, with ``fresh`` at anchors that no batch has contained."""
        return jnp.where(over_outputs(self.mass, self.g) > 0, self.g, fresh)


class Linearisations(NamedTuple):
    """Weighted sums of loss derivatives per anchor, sum_s weight_s l'(z_i^(s)), and the sums of their weights."""

    weighted: Array
    mass: Array

    @classmethod
    def empty(cls, anchors: int, outputs: tuple[int, ...]) -> "Linearisations":
        return cls(jnp.zeros((anchors, *outputs)), jnp.zeros(anchors))

    def add(self, batch: Array | None, weight: Array, derivative: Array) -> "Linearisations":
        if batch is None:
            return Linearisations(self.weighted + weight * derivative, self.mass + weight)
        return Linearisations(self.weighted.at[batch].add(weight * derivative), self.mass.at[batch].add(weight))

    def average(self) -> Dual:
        """Return the average of the values of l'. It is always in the domain of the conjugate."""
        mass = over_outputs(self.mass, self.weighted)
        return Dual(self.weighted / jnp.where(mass > 0, mass, 1), self.mass)


class Defaults(NamedTuple):
    """The kernel, the start and the inner steps that a run uses if the user names none."""

    kernel: str = "ula"
    start: str = "warm"
    inner_steps: int = 20


REWEIGHTED = Defaults("mala", "reweight", 10)  # for a rule that bounds its steps by importance weights


class Rule(Plug):
    """How linearisations of the loss become the coefficients of the next Gibbs potential.

    A rule sees outputs at the anchors, never particles. Every subclass is made a frozen dataclass and a pytree. It
    must define ``init``, ``update`` and ``dual``. The guide ``tutorials/guides/extending.md`` has a complete example.
    """

    kind: ClassVar[str] = "rule"
    # The examples that the rule needs: "anything"; "data set" (it returns to its examples, so streams are refused); or
    # "full batch" (it needs all examples at every step, so batches are refused too).
    requires: ClassVar[Literal["anything", "data set", "full batch"]] = "anything"
    defaults: ClassVar[Defaults] = Defaults()
    # Whether coefficients belong to the anchors of the batch alone. By default they belong to all anchors.
    on_batch: ClassVar[bool] = False
    # Whether the rule uses l''. Losses whose slope only jumps, such as |z - y| and the hinge, are then refused.
    needs_curvature: ClassVar[bool] = False
    # Whether a fit moves its particles a little, so that they predict as the fitted density does.
    calibrates: ClassVar[bool] = False
    # Whether the rule takes a step back if the start cannot sample the new density, or if its particles contradict the
    # step: see ``allows`` and ``taken_back``. Its first particles must be draws of the prior.
    takes_back: ClassVar[bool] = False
    # Whether exact steps overshoot until t exceeds the stiffness. Verdicts and summaries then mention it.
    overshoots: ClassVar[bool] = False

    @property
    def smallest_gamma(self) -> float:
        """The smallest factor gamma that the rule ever uses. p0^gamma must be integrable."""
        return 1.0

    def init(self, anchors: int, outputs: tuple[int, ...]) -> RuleState:
        """Return the state before step 1, for this number of anchors and this output shape."""
        raise NotImplementedError

    def update(
        self, key: Array, state: RuleState, t: Array, outputs: Outputs, batch: Array | None, problem: Problem
    ) -> tuple[RuleState, Coefficients]:
        """Make step t. Return the new state and the coefficients of the potential to sample.

        ``outputs.mean(batch)`` are the predictions, and ``outputs.deviations()`` the outputs minus the predictions.
        ``batch`` contains the indices of the examples of this step, or is None for all of them.
        """
        raise NotImplementedError

    def dual(self, state: RuleState) -> Dual:
        """Return g for the fitted density q_g and its certificate."""
        raise NotImplementedError

    def grow(self, state: RuleState, anchors: int) -> RuleState:
        """Return the state with room for more anchors. Only rules that accept streams need it."""
        raise NotImplementedError

    def allows(self, state: RuleState, outputs: Outputs, problem: Problem) -> Array:
        """Return whether the step that led to this state stays, judged by the outputs of the new density's particles.

        The engine asks only if ``takes_back``.
        """
        raise NotImplementedError

    def taken_back(self, before: RuleState, after: RuleState) -> RuleState:
        """Return the state that replaces both after a step that is taken back. Potential and particles stay."""
        raise NotImplementedError

    def stats(self, state: RuleState) -> dict[str, Array]:
        """Return scalars by name. The run records them in ``outer_stats``."""
        return {}

    def predictions(self, state: RuleState) -> Array | None:
        """Return the predictions that belong to the dual, l'(z_i) = g_i, if ``calibrates``. None if it has none yet."""
        return None


class AveragingRule(Rule):
    """A rule whose state is the sum of its linearisations, and whose dual is their average."""

    def init(self, anchors: int, outputs: tuple[int, ...]) -> Linearisations:
        return Linearisations.empty(anchors, outputs)

    def dual(self, state: Linearisations) -> Dual:
        return state.average()

    def grow(self, state: Linearisations, anchors: int) -> Linearisations:
        return Linearisations(padded(state.weighted, anchors), padded(state.mass, anchors))


def padded(part: Array, anchors: int) -> Array:
    """Append zeros to the first axis, up to this number of anchors."""
    return jnp.pad(part, [(0, anchors - len(part))] + [(0, 0)] * (part.ndim - 1))
