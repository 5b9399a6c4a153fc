"""What the adapters to other libraries' kernels share: a name, a step size, and settings by keyword."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core.schedules import positive_count
from mfpda.errors import InputError, listed, nearest
from mfpda.kernels.base import AUTO, Auto, number_or_auto


@dataclass(frozen=True, init=False, repr=False)
class Adapter:
    """A kernel of another library, named or given as the object it is there, with that library's settings.

    Settings that are floats or arrays are leaves, so they can change without compiling again; counts, flags and
    functions are not.
    """

    algorithm: Any
    step_size: Any
    settings: dict[str, Any]

    family: ClassVar[str]
    targets: ClassVar[Mapping[str, float]]  # the acceptance to tune to, of the kernels known to leave exp(-V) invariant
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(
        self, algorithm: Any, step_size: Any = AUTO, settings: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        found = self._found(algorithm)
        given = {name: _as_setting(name, value) for name, value in {**(settings or {}), **more}.items()}
        object.__setattr__(self, "algorithm", found)
        object.__setattr__(self, "step_size", number_or_auto(step_size))
        object.__setattr__(self, "settings", {**self.defaults.get(found, {}), **given})
        self._check()
        if isinstance(self.step_size, Auto) and not self.adjusted:
            advice = f"Only {listed(self.targets)} are tuned."
            raise InputError(f"a number as step_size of {self.name}", "'auto'", advice)

    def _found(self, algorithm: Any) -> Any:
        """The name of this algorithm in its library; refused where there is none."""
        raise NotImplementedError

    def _check(self) -> None:
        """Refuse settings that the algorithm does not have, or lacks."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(cls, cls._flatten, cls._unflatten)

    def _flatten(self) -> tuple[Any, Any]:
        leaves = {name: value for name, value in self.settings.items() if _is_leaf(value)}
        static = tuple((name, value) for name, value in self.settings.items() if name not in leaves)
        return (self.step_size, leaves), (self.algorithm, static)

    @classmethod
    def _unflatten(cls, static: Any, leaves: Any) -> "Adapter":
        adapter = object.__new__(cls)
        algorithm, choices = static
        step_size, numbers = leaves
        fields = {"algorithm": algorithm, "step_size": step_size, "settings": {**dict(choices), **numbers}}
        for name, value in fields.items():
            object.__setattr__(adapter, name, value)
        return adapter

    @property
    def name(self) -> str:
        """The name that stands for it, such as "blackjax:hmc"."""
        return f"{self.family}:{getattr(self.algorithm, '__name__', self.algorithm)}"

    @property
    def named_settings(self) -> dict[str, Any]:
        return {"step_size": self.step_size, **self.settings}

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.named_settings.items())
        return f"{type(self).__name__}({self.name.removeprefix(f'{self.family}:')!r}{settings})"

    @property
    def adjusted(self) -> bool:
        return self.algorithm in self.targets

    @property
    def target_acceptance(self) -> float:
        return self.targets[self.algorithm]

    def longest_step(self, spread: Array) -> Array:
        """For HMC with a fixed number of leapfrog steps, a quarter of the slowest period over that number.

        On a Gaussian of this spread longer trajectories turn back, and a full period ends where it began, accepted.
        """
        leapfrogs = self.settings.get("num_integration_steps", self.settings.get("num_steps"))
        return jnp.asarray(jnp.inf) if leapfrogs is None else jnp.pi / 2 * spread / leapfrogs

    @classmethod
    def _refuse(cls, algorithm: Any, known: Iterable[str]) -> NoReturn:
        """Refuse a name or an object that the library does not have."""
        meant = nearest(str(getattr(algorithm, "__name__", algorithm)), known)
        advice = f"Did you mean {meant[0]!r}?" if meant else f"Give one of {listed(cls.targets)}, say."
        raise InputError(f"an MCMC algorithm of {cls.family}", repr(algorithm), advice)

    def _refuse_unknown(self, known: Iterable[str]) -> None:
        known = list(known)
        unknown = [name for name in self.settings if name not in known]
        if unknown:
            tuning = any(name.startswith(("adapt_", "target_")) for name in unknown)
            advice = "mfpda tunes the step size itself." if tuning else "Correct the names."
            raise InputError(f"settings of {self.name} ({listed(known)})", listed(unknown), advice)
        try:
            hash(self._flatten()[1])
        except TypeError as error:
            advice = "Give a tuple or an array, say."
            raise InputError("settings that are numbers, arrays or hashable", str(error), advice) from None


def _as_setting(name: str, value: Any) -> Any:
    """A setting as it is kept: a list as an array, a count refused unless it is one."""
    if name.startswith("num_"):
        return positive_count(value, name)
    return np.asarray(value, float) if isinstance(value, list) else value


def _is_leaf(value: Any) -> bool:
    return isinstance(value, float) or (hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating))
