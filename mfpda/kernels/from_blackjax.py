"""Any MCMC algorithm of BlackJAX as a kernel."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from mfpda.errors import InputError, listed
from mfpda.kernels.adapters import Adapter
from mfpda.kernels.base import Auto, KernelInfo, stay_finite
from mfpda.problem import GibbsPotential

MASSES = ("inverse_mass_matrix", "momentum_inverse_scale")  # settings that are 1 by default
OURS = ("rng_key", "state", "logdensity_fn", "step_size")


class BlackJAXState(NamedTuple):
    """BlackJAX's own state of one particle."""

    inner: Any

    @property
    def theta(self) -> Array:
        return self.inner.position


class FromBlackJAX(Adapter):
    """An algorithm of BlackJAX with its settings, such as ``FromBlackJAX(blackjax.hmc, num_integration_steps=20)``.

    It samples the log-density -V. Settings are the arguments of BlackJAX's ``build_kernel`` and of the kernel that it
    builds; masses are 1 by default. When the potential changes, the stored value and gradient are computed again. All
    else, such as the momentum of ``ghmc``, stays. "auto" tunes the acceptance to ``targets``.

    >>> FromBlackJAX("hmc", num_integration_steps=20)
    FromBlackJAX('hmc', step_size='auto', num_integration_steps=20)
    """

    family: ClassVar[str] = "blackjax"
    targets: ClassVar = dict(mala=0.574, hmc=0.7, dynamic_hmc=0.7, nuts=0.8, ghmc=0.9, barker_proposal=0.4)
    defaults: ClassVar = {"hmc": {"num_integration_steps": 3}, "ghmc": {"alpha": 0.3, "delta": 0.15}}

    def _find(self, algorithm: object) -> str:
        known = {
            name: value
            for name, value in vars(_blackjax()).items()
            if hasattr(value, "init") and hasattr(value, "build_kernel") and not isinstance(value, ModuleType)
        }
        given = known.get(algorithm) if isinstance(algorithm, str) else algorithm
        for name in (*self.targets, *known):  # one algorithm may have several names: prefer the one in targets
            if known.get(name) is given and given is not None:
                return name
        self._refuse(algorithm, known)

    def _check(self) -> None:
        build, kernel = self._arguments()
        required = [name for name, parameter in {**build, **kernel}.items() if parameter.default is parameter.empty]
        missing = [name for name in required if name not in (*OURS, *MASSES, *self.settings)]
        if missing:
            advice = f"Give it by keyword: FromBlackJAX({self.algorithm!r}, {missing[0]}=...)."
            raise InputError(f"every setting of {self.name}", f"no {listed(missing)}", advice)
        if "logdensity_fn" not in kernel:
            self._refuse(self.algorithm, self.targets)
        self._check_settings([name for name in {**build, **kernel} if name not in OURS])
        if "step_size" not in kernel:
            if not isinstance(self.step_size, Auto):
                expected = f"no step_size for {self.name}, which takes none"
                raise InputError(expected, repr(self.step_size), "Leave it out.")
            vars(self).update(step_size=None)

    def _arguments(self) -> tuple[dict[str, inspect.Parameter], dict[str, inspect.Parameter]]:
        """Return the parameters of BlackJAX's build_kernel, and of the kernel that it builds."""
        build = dict(inspect.signature(self._algorithm.build_kernel).parameters)
        if any(each.default is each.empty and name not in self.settings for name, each in build.items()):
            return build, {}
        return build, dict(inspect.signature(self._built(build)).parameters)

    def _built(self, build: Any) -> Callable[..., Any]:
        return self._algorithm.build_kernel(**{k: v for k, v in self.settings.items() if k in build})

    @property
    def _algorithm(self) -> Any:
        return getattr(_blackjax(), self.algorithm)

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> BlackJAXState:
        offered = {"rng_key": key, "random_generator_arg": jax.random.key_data(key)}
        wanted = inspect.signature(self._algorithm.init).parameters
        extra = {name: value for name, value in offered.items() if name in wanted}
        return BlackJAXState(self._algorithm.init(theta, _log_density(potential), **extra))

    def refresh(self, key: Array, state: BlackJAXState, theta: Array, potential: GibbsPotential) -> BlackJAXState:
        value, gradient = jax.value_and_grad(_log_density(potential))(theta)
        fresh = {"position": theta, "logdensity": value, "logdensity_grad": gradient}
        return BlackJAXState(state.inner._replace(**{k: v for k, v in fresh.items() if k in state.inner._fields}))

    def step(self, key: Array, state: BlackJAXState, potential: GibbsPotential) -> tuple[BlackJAXState, KernelInfo]:
        build, arguments = self._arguments()
        given = {**dict.fromkeys(MASSES, jnp.ones_like(state.theta)), **self.settings_by_name}
        settings = {name: value for name, value in given.items() if name in arguments}
        after, info = self._built(build)(key, state.inner, _log_density(potential), **settings)
        after, diverging = stay_finite(state, BlackJAXState(after), getattr(after, "logdensity", after.position))
        energy = -state.inner.logdensity
        acceptance = jnp.nan_to_num(getattr(info, "acceptance_rate", jnp.ones_like(energy)))
        diverging |= getattr(info, "is_divergent", ~jnp.isfinite(energy))
        return after, KernelInfo(energy, acceptance, diverging, getattr(info, "num_integration_steps", 1))

    def tuned(self, curvature: Array) -> "FromBlackJAX":
        """Begin tuning at 0.5 / curvature for mala, whose step is ULA's, and at the square root of that for others."""
        step = 0.5 / curvature
        return replace(self, step_size=step if self.algorithm == "mala" else jnp.sqrt(step))


def _log_density(potential: GibbsPotential) -> Callable[[Array], Array]:
    return lambda theta: -potential(theta)


def _blackjax() -> ModuleType:
    try:
        import blackjax
    except ImportError:
        advice = "Install it: pip install 'mfpda[blackjax]'."
        raise InputError("the package blackjax for its kernels", "no such package", advice) from None
    return blackjax
