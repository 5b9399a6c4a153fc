"""What every inner sampler is: the Kernel protocol, and the parts that kernels share."""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core.schedules import positive
from mfpda.errors import InputError
from mfpda.problem.potential import GibbsPotential


class KernelInfo(NamedTuple):
    """What one step of any kernel tells diagnostics: V before it, chance of acceptance, divergence.

    ``gradients`` counts evaluations of grad V, for kernels that spend more than one a step.
    """

    energy: Array
    acceptance: Array
    diverging: Array
    gradients: Array | int = 1


class Position(NamedTuple):
    """The state of a kernel that remembers only where the particle is."""

    theta: Array


class Evaluated(NamedTuple):
    """The state of a kernel that remembers V and grad V where the particle is."""

    theta: Array
    energy: Array
    gradient: Array

    @classmethod
    def at(cls, theta: Array, potential: GibbsPotential) -> "Evaluated":
        return cls(theta, *jax.value_and_grad(potential)(theta))


@runtime_checkable
class Kernel(Protocol):
    """One step of one particle under a potential. sampling.py makes M particles of it.

    theta is one flat vector in unconstrained space; ``potential(theta)`` is V there, ``jax.value_and_grad(potential)``
    gives its gradient too, and the density is exp(-V).

    A kernel is a frozen dataclass registered as a pytree, its numbers leaves, so that they can change without compiling
    again. A step never leaves the finite numbers: where it would, the particle stays and the step is ``diverging``.
    This one is random-walk Metropolis, whole:

    >>> import jax, jax.numpy as jnp, mfpda
    >>> from dataclasses import dataclass
    >>> from typing import Any, ClassVar
    >>> from mfpda.kernels import AUTO, Kernel, KernelInfo, Position
    >>> @mfpda.plug
    ... @dataclass(frozen=True)
    ... class RandomWalk:
    ...     step_size: Any = AUTO
    ...     adjusted: ClassVar[bool] = True
    ...     target_acceptance: ClassVar[float] = 0.3
    ...     def init(self, key, theta, potential):
    ...         return Position(theta)
    ...     def refresh(self, state, potential):
    ...         return state
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
    >>> isinstance(RandomWalk(), Kernel)
    True

    More that a kernel may have. ``adjusted = True`` says that it leaves exp(-V) invariant whatever its numbers
    are: tempering accepts it, and a diverging step of it is a rejected proposal, not the end of the run.
    ``target_acceptance`` lets ``step_size="auto"`` tune an adjusted kernel. ``tuned(curvature)`` returns the kernel
    with a step size for a V of that curvature: all that "auto" is for an unadjusted kernel, and where it begins (else
    at 1 / sqrt(curvature)) for an adjusted one. ``longest_step(spread)`` bounds the tuned step size of an adjusted one.
    ``thinning(potential)`` returns a function key -> potential: it is asked for once in a run of many steps, and the
    function then gives the potential of each step, one for all particles, in place of the run's own.
    """

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Any:
        """The state of a particle that begins at theta. Every state has ``.theta``."""

    def refresh(self, state: Any, potential: GibbsPotential) -> Any:
        """The state under a new potential: what was cached is dropped, momentum is kept."""

    def step(self, key: Array, state: Any, potential: GibbsPotential) -> tuple[Any, KernelInfo]:
        """One step."""


def is_adjusted(kernel: Any) -> bool:
    """Whether the kernel says that it leaves exp(-V) invariant."""
    return bool(getattr(kernel, "adjusted", False))


@jax.tree_util.register_static
class Auto(str):
    """The word "auto" as a part of a kernel that is not a number yet. It is no leaf, so a kernel that holds it can be
    an argument of a compiled function, where the number is found."""

    __slots__ = ()


AUTO = Auto("auto")


def number_or_auto(value: Any, name: str = "step_size") -> Any:
    """A number of a kernel as the user gave it: refused unless positive, a schedule of t, or "auto"."""
    if isinstance(value, str):
        if value != "auto":
            name = name.replace("_", " ")
            raise InputError(f'a {name} (a float, a schedule of t, or "auto")', repr(value), 'Give 0.01 or "auto".')
        return AUTO
    if value is None or isinstance(value, (int, float, np.generic)):
        positive(value, name)
    return value


State = TypeVar("State")


def stay_finite(before: State, after: State, checked: Array) -> tuple[State, Array]:
    """The state after a step, or the one before it where ``checked`` is not finite; and whether it was not."""
    finite = jnp.all(jnp.isfinite(checked))
    return jax.tree.map(lambda old, new: jnp.where(finite, new, old), before, after), ~finite


def metropolis(key: Array, correction: Array, before: Evaluated, proposal: Evaluated) -> tuple[Evaluated, KernelInfo]:
    """Accept with probability min(1, exp(V - V' + correction)).

    Never where V' or the correction is not finite; always out of a place where V is not.
    """
    finite = jnp.isfinite(proposal.energy) & jnp.isfinite(correction)
    log_ratio = jnp.where(jnp.isfinite(before.energy), before.energy - proposal.energy + correction, 0)
    acceptance = jnp.where(finite, jnp.exp(jnp.minimum(log_ratio, 0)), 0)
    accepted = jax.random.uniform(key, dtype=acceptance.dtype) < acceptance
    after = jax.tree.map(lambda old, new: jnp.where(accepted, new, old), before, proposal)
    return after, KernelInfo(before.energy, acceptance, ~finite)
