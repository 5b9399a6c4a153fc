"""The base class of adapters to other libraries' kernels: a name, a step size, and settings by keyword."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.core import positive_count
from mfpda.errors import InputError, listed, nearest
from mfpda.kernels.base import AUTO, Auto, Kernel, Number, number_or_auto


class Adapter(Kernel):
    """A kernel of another library, given by its name or as that library's object, with that library's settings.

    Settings that are floats or arrays are leaves. Counts, flags and functions are static.
    """

    algorithm: Any
    step_size: Number
    settings: dict[str, Any]

    family: ClassVar[str]
    targets: ClassVar[Mapping[str, float]]  # the kernels that leave exp(-V) invariant, and their target acceptance
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(
        self, algorithm: object, step_size: Number = AUTO, settings: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        found = self._find(algorithm)
        given = {name: _as_setting(name, value) for name, value in {**(settings or {}), **more}.items()}
        settings = {**self.defaults.get(found, {}), **given}
        vars(self).update(algorithm=found, step_size=number_or_auto(step_size), settings=settings)
        self._check()
        if isinstance(self.step_size, Auto) and not self.adjusted:
            advice = f"Only {listed(self.targets)} are tuned."
            raise InputError(f"a number as step_size of {self.name}", "'auto'", advice)

    def _find(self, algorithm: object) -> Any:
        """Return the name of this algorithm in its library. Refuse one that cannot be used."""
        raise NotImplementedError

    def _check(self) -> None:
        """Refuse unknown and missing settings."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: object) -> None:
        """Register a subclass as a pytree. The value of a setting decides whether it is a leaf."""
        jax.tree_util.register_pytree_node(cls, cls._flatten, cls._unflatten)

    def _flatten(self) -> tuple[Any, Any]:
        leaves = {name: value for name, value in self.settings.items() if _is_leaf(value)}
        static = tuple((name, value) for name, value in self.settings.items() if name not in leaves)
        return (self.step_size, leaves), (self.algorithm, static)

    @classmethod
    def _unflatten(cls, static: Any, leaves: Any) -> "Adapter":
        adapter = object.__new__(cls)
        (algorithm, choices), (step_size, numbers) = static, leaves
        vars(adapter).update(algorithm=algorithm, step_size=step_size, settings={**dict(choices), **numbers})
        return adapter

    @property
    def name(self) -> str:
        """The name in the registry, such as "blackjax:hmc"."""
        return f"{self.family}:{getattr(self.algorithm, '__name__', self.algorithm)}"

    @property
    def settings_by_name(self) -> dict[str, Any]:
        return {"step_size": self.step_size, **self.settings}

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings_by_name.items())
        return f"{type(self).__name__}({self.name.removeprefix(f'{self.family}:')!r}{settings})"

    @property
    def adjusted(self) -> bool:  # type: ignore[override]
        return self.algorithm in self.targets

    @property
    def target_acceptance(self) -> float | None:  # type: ignore[override]
        return self.targets.get(self.algorithm)

    def longest_step(self, spread: Array) -> Array:
        """For HMC with L leapfrog steps, the slowest period / (4 L).

        Longer trajectories turn back on a Gaussian of this spread. A full period is accepted, but moves nowhere.
        """
        leapfrogs = self.settings.get("num_integration_steps", self.settings.get("num_steps"))
        return jnp.asarray(jnp.inf) if leapfrogs is None else jnp.pi / 2 * spread / leapfrogs

    def _refuse(self, algorithm: Any, known: Iterable[str]) -> NoReturn:
        """Refuse an algorithm that the library does not have."""
        meant = nearest(str(getattr(algorithm, "__name__", algorithm)), known)
        advice = f"Did you mean {meant[0]!r}?" if meant else f"For example, give one of {listed(self.targets)}."
        raise InputError(f"an MCMC algorithm of {self.family}", repr(algorithm), advice)

    def _check_settings(self, known: list[str]) -> None:
        """Refuse settings that are not known, or that cannot be part of a compiled program."""
        unknown = [name for name in self.settings if name not in known]
        if unknown:
            tuning = any(name.startswith(("adapt_", "target_")) for name in unknown)
            advice = "mfpda tunes the step size itself." if tuning else "Correct the names."
            raise InputError(f"settings of {self.name} ({listed(known)})", listed(unknown), advice)
        try:
            hash(self._flatten()[1])
        except TypeError as error:
            advice = "Give a tuple or an array instead."
            raise InputError("settings that are numbers, arrays or hashable", str(error), advice) from None


def _as_setting(name: str, value: Any) -> Any:
    """Turn a list into an array. Check a count."""
    if name.startswith("num_"):
        return positive_count(value, name)
    return np.asarray(value, float) if isinstance(value, list) else value


def _is_leaf(value: Any) -> bool:
    return isinstance(value, float) or (hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating))
