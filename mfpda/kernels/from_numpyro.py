"""Any gradient-based MCMC kernel of NumPyro as a kernel."""

import inspect
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from numpyro import infer
from numpyro.infer.mcmc import MCMCKernel

from mfpda.errors import InputError
from mfpda.kernels.adapters import Adapter
from mfpda.kernels.base import Evaluated, KernelInfo, stay_finite
from mfpda.problem import GibbsPotential

# The adapter decides these itself: V is given, mfpda tunes the step size, and there is no model to initialise from.
OURS: dict[str, Any] = {"adapt_step_size": False, "adapt_mass_matrix": False, "find_heuristic_step_size": False}
NOT_SETTINGS = {"model", "potential_fn", "step_size", "init_strategy", *OURS}
NOT_SETTINGS |= {"target_accept_prob", "trajectory_length", "regularize_mass_matrix"}


class FromNumPyro(Adapter):
    """A kernel of NumPyro with its settings, such as ``FromNumPyro(numpyro.infer.HMC, num_steps=20)``.

    Every compiled step builds NumPyro's kernel with V as ``potential_fn`` and without NumPyro's adaptation. The state
    is theta, V and grad V. HMC takes ``num_steps`` leapfrog steps, 3 by default. "auto" tunes to ``targets``.

    >>> FromNumPyro("HMC", num_steps=20)
    FromNumPyro('HMC', step_size='auto', num_steps=20)
    """

    family: ClassVar[str] = "numpyro"
    targets: ClassVar = {"HMC": 0.7, "NUTS": 0.8, "BarkerMH": 0.4}
    defaults: ClassVar = {"HMC": {"num_steps": 3}}

    def _find(self, algorithm: object) -> Any:
        found: Any = getattr(infer, algorithm, None) if isinstance(algorithm, str) else algorithm
        if not (isinstance(found, type) and issubclass(found, MCMCKernel)):
            self._refuse(algorithm, self.targets)
        name, takes = found.__name__, inspect.signature(found).parameters
        if "potential_fn" not in takes or "step_size" not in takes:
            raise InputError("a kernel that takes potential_fn and step_size", name, "HMC, NUTS and BarkerMH do.")
        return name if getattr(infer, name, None) is found else found

    def _check(self) -> None:
        known = inspect.signature(self._class).parameters
        self._check_settings([name for name in known if name not in NOT_SETTINGS])

    @property
    def _class(self) -> Any:
        return getattr(infer, self.algorithm) if isinstance(self.algorithm, str) else self.algorithm

    def init(self, key: Array, theta: Array, potential: GibbsPotential) -> Evaluated:
        return Evaluated.at(theta, potential)

    def step(self, key: Array, state: Evaluated, potential: GibbsPotential) -> tuple[Evaluated, KernelInfo]:
        takes = inspect.signature(self._class).parameters
        ours: dict[str, Any] = {name: value for name, value in OURS.items() if name in takes}
        if "num_steps" in self.settings:
            ours["trajectory_length"] = None  # else NumPyro's HMC divides its default length by the number of steps
        sampler = self._class(potential_fn=potential, step_size=self.step_size, **ours, **self.settings)
        # The state has V and grad V already. They replace what init computes, so the compiler drops that computation.
        before = sampler.init(key, 0, state.theta, (), {})
        before = before._replace(potential_energy=state.energy, z_grad=state.gradient)
        after = sampler.sample(before, (), {})
        reached = Evaluated(after.z, after.potential_energy, after.z_grad)
        kept, diverging = stay_finite(state, reached, reached.energy)
        diverging |= getattr(after, "diverging", ~jnp.isfinite(state.energy))
        gradients = getattr(after, "num_steps", 1)
        return kept, KernelInfo(state.energy, jnp.nan_to_num(after.accept_prob), diverging, gradients)

    def tuned(self, curvature: Array) -> "FromNumPyro":
        """Begin tuning at the root of 0.5 / curvature."""
        return replace(self, step_size=jnp.sqrt(0.5 / curvature))
