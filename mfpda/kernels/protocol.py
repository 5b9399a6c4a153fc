"""What every inner sampler is: the Kernel protocol, and the parts that kernels share."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax import Array

from mfpda.errors import InputError
from mfpda.potential import GibbsPotential
from mfpda.schedules import positive


class KernelInfo(NamedTuple):
    """What one step of any kernel tells diagnostics: V before it, chance of acceptance, divergence."""

    energy: Array
    acceptance: Array
    diverging: Array


class Position(NamedTuple):
    """The state of a kernel that remembers only where the particle is."""

    theta: Array


@runtime_checkable
class Kernel(Protocol):
    """One step of one particle under a potential. sampling.py makes M particles of it.

    A kernel is a frozen dataclass registered as a pytree, its numbers leaves, so that they can change without compiling
    again. This one is a random walk that accepts everything downhill:

    >>> import jax, jax.numpy as jnp
    >>> from dataclasses import dataclass
    >>> @jax.tree_util.register_dataclass
    ... @dataclass(frozen=True)
    ... class Downhill:
    ...     step_size: float = 0.1
    ...     def init(self, key, theta, potential):
    ...         return Position(theta)
    ...     def refresh(self, state, potential):
    ...         return state
    ...     def step(self, key, state, potential):
    ...         old = potential(state.theta)
    ...         proposal = state.theta + self.step_size * jax.random.normal(key, state.theta.shape)
    ...         lower = potential(proposal) < old
    ...         info = KernelInfo(old, lower.astype(old.dtype), ~jnp.isfinite(old))
    ...         return Position(jnp.where(lower, proposal, state.theta)), info
    >>> isinstance(Downhill(), Kernel)
    True
    """

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Any:
        """The state of a particle that begins at theta. Every state has ``.theta``."""

    def refresh(self, state: Any, potential: GibbsPotential) -> Any:
        """The state under a new potential: what was cached is dropped, momentum is kept."""

    def step(self, key: Array, state: Any, potential: GibbsPotential) -> tuple[Any, KernelInfo]:
        """One step."""


@jax.tree_util.register_static
class Auto:
    """Stands in a kernel for a step size that is found inside the compiled outer step."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Auto)

    def __hash__(self) -> int:
        return hash(Auto)


def check_step_size(step_size: Any) -> None:
    """Refuse what cannot be a step size: a float, a schedule of t or "auto" is asked of the user."""
    if isinstance(step_size, str) and step_size != "auto":
        raise InputError(
            'a step size (a float, a schedule of t, or "auto")', repr(step_size), 'Give 0.01 or "auto", say.'
        )
    if isinstance(step_size, (int, float)):
        positive(step_size, "step_size")
