"""The base class of inner samplers, and the parts that kernels share."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import positive
from mfpda.errors import InputError
from mfpda.problem import GibbsPotential
from mfpda.registry import Plug

KernelState = Any  # the state of one particle: any pytree with its position as ``.theta``
Number = Any  # a number of a plug: a float, a traced array, a schedule of t, or "auto"
Stepped = TypeVar("Stepped", bound="Kernel")
State = TypeVar("State")


class KernelInfo(NamedTuple):
    """The report of one step of any kernel."""

    energy: Array  # V before the step
    acceptance: Array  # the probability of acceptance
    diverging: Array
    gradients: Array | int = 1  # evaluations of grad V


class Position(NamedTuple):
    """The state of a kernel that stores nothing but the particle's position."""

    theta: Array


class Evaluated(NamedTuple):
    """The state of a kernel that stores V and grad V at its particle."""

    theta: Array
    energy: Array
    gradient: Array

    @classmethod
    def at(cls, theta: Array, potential: GibbsPotential) -> "Evaluated":
        return cls(theta, *jax.value_and_grad(potential)(theta))


class Kernel(Plug):
    """One step of one particle under a potential. The engine maps it over M particles.

    theta is one flat vector in unconstrained space, with the sites in the order of their declaration.
    ``potential(theta)`` is V there, and the density is exp(-V). ``jax.value_and_grad(potential)`` also gives grad V.

    Every subclass is made a frozen dataclass and a pytree. It must define ``init`` and ``step``; everything else has a
    default. If theta would not stay finite, the particle stays and the step reports ``diverging``. For example:

    >>> import jax, jax.numpy as jnp, mfpda
    >>> from mfpda.kernels import AUTO, KernelInfo, Position
    >>> class RandomWalk(mfpda.Kernel):
    ...     step_size: float = AUTO
    ...     adjusted = True
    ...     target_acceptance = 0.3
    ...     def init(self, key, theta, potential):
    ...         return Position(theta)
    ...     def step(self, key, state, potential):
    ...         walk_key, accept_key = jax.random.split(key)
    ...         walk = jax.random.normal(walk_key, state.theta.shape, state.theta.dtype)
    ...         proposal = state.theta + self.step_size * walk
    ...         old, new = potential(state.theta), potential(proposal)
    ...         finite = jnp.isfinite(new - old)
    ...         acceptance = jnp.where(finite, jnp.exp(jnp.minimum(0, old - new)), 0)
    ...         accepted = jax.random.uniform(accept_key) < acceptance
    ...         theta = jnp.where(accepted, proposal, state.theta)
    ...         return Position(theta), KernelInfo(old, acceptance, ~finite, gradients=0)
    >>> RandomWalk(step_size=0.5)
    RandomWalk(step_size=0.5)
    """

    kind: ClassVar[str] = "kernel"
    # Whether the kernel leaves exp(-V) invariant at any step size. Tempering accepts only such kernels. Their diverging
    # steps are rejected proposals. A diverging step of any other kernel ends the run.
    adjusted = False
    # The acceptance that step_size="auto" aims at. An adjusted kernel without one must be given a step size.
    target_acceptance = None  # type: float | None
    # Whether the kernel samples exp(-V). False for a kernel that only minimises V.
    samples = True

    def __post_init__(self) -> None:
        if "step_size" in self.settings_by_name:
            object.__setattr__(self, "step_size", number_or_auto(self.settings_by_name["step_size"]))

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> KernelState:
        """Return the state of a particle that begins at theta."""
        raise NotImplementedError

    def step(self, key: Array, state: KernelState, potential: GibbsPotential) -> tuple[KernelState, KernelInfo]:
        """Make one step. Return the new state and a report."""
        raise NotImplementedError

    def refresh(self, key: Array, state: KernelState, theta: Array, potential: GibbsPotential) -> KernelState:
        """Return the state of a particle that continues at theta under a new potential.

        By default it begins again at theta. A kernel with momentum keeps it, and computes stored values of V again.
        """
        return self.init(key, theta, potential)

    def tuned(self, curvature: Array) -> Self:
        """Return the kernel with numbers in place of "auto", for a V of this curvature.

        An adjusted kernel begins tuning at this step size, by default 1 / sqrt(curvature). An unadjusted kernel keeps
        it. Without this method, an unadjusted kernel refuses "auto".
        """
        if not self.adjusted:
            advice = f"{type(self).__name__} defines no tuned(curvature) to choose one."
            raise InputError(f"a number as step_size of {type(self).__name__}", "'auto'", advice)
        return with_step_size(self, 1 / jnp.sqrt(curvature))

    def around(self, centre: Array, spread: Array) -> Self:
        """Return the kernel for particles of this mean and standard deviation, coordinate by coordinate."""
        return self

    def longest_step(self, spread: Array) -> Array:
        """Bound the tuned step size, for particles of this standard deviation. There is no bound by default."""
        return jnp.asarray(jnp.inf)

    def thinning(self, potential: GibbsPotential) -> Callable[[Array], GibbsPotential]:
        """Return a function from a step's key to the potential of all particles in that step: by default V."""
        return lambda key: potential


@jax.tree_util.register_static
class Auto(str):
    """The word "auto" in place of a number. It is static, so a kernel that has it can be a traced argument."""

    __slots__ = ()


AUTO: Any = Auto("auto")


def number_or_auto(value: Number, name: str = "step_size") -> Number:
    """Return a number that the user gave. Refuse it unless it is positive, a schedule of t, or "auto"."""
    if isinstance(value, str):
        if value == "auto":
            return AUTO
        name = name.replace("_", " ")
        raise InputError(f'a {name} (a float, a schedule of t, or "auto")', repr(value), 'Give 0.01 or "auto".')
    if value is None or isinstance(value, (int, float, np.generic)):
        positive(value, name)
    return value


def step_size_of(kernel: Kernel) -> Number:
    """Return the step size of a kernel, or None if it has none."""
    return kernel.settings_by_name.get("step_size")


def with_step_size(kernel: Stepped, step_size: Number) -> Stepped:
    """Return the kernel with another step size."""
    return dataclasses.replace(kernel, **{"step_size": step_size})


def stay_finite(before: State, after: State, checked: Array) -> tuple[State, Array]:
    """Return (new state, False), or (old state, True) if ``checked`` is not finite."""
    finite = jnp.all(jnp.isfinite(checked))
    return jax.tree.map(lambda old, new: jnp.where(finite, new, old), before, after), ~finite


def metropolis(key: Array, correction: Array, before: Evaluated, proposal: Evaluated) -> tuple[Evaluated, KernelInfo]:
    """Accept with probability min(1, exp(V - V' + correction)).

    Reject a proposal whose V' or correction is not finite. Always move a particle whose own V is not finite.
    """
    finite = jnp.isfinite(proposal.energy) & jnp.isfinite(correction)
    log_ratio = jnp.where(jnp.isfinite(before.energy), before.energy - proposal.energy + correction, 0)
    acceptance = jnp.where(finite, jnp.exp(jnp.minimum(log_ratio, 0)), 0)
    accepted = jax.random.uniform(key, dtype=acceptance.dtype) < acceptance
    after = jax.tree.map(lambda old, new: jnp.where(accepted, new, old), before, proposal)
    return after, KernelInfo(before.energy, acceptance, ~finite)
