"""The base class of starts: where the particles of one outer step begin the next."""

from typing import ClassVar, NamedTuple

import jax
from jax import Array

from mfpda import sampling
from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.problem import GibbsPotential, Model
from mfpda.registry import Plug
from mfpda.sampling import Tempering


class Moved(NamedTuple):
    """Where the particles begin the next inner loop."""

    thetas: Array
    parents: Array | None = None  # the indices of the particles whose momenta these inherit; None: their own
    stats: dict[str, Array] = {}  # noqa: RUF012  # scalars by name, recorded in ``outer_stats``
    gradients: Array | float = 0.0  # evaluations of grad V per particle
    sound: Array | bool = True  # False if the start could not sample the new density


class Start(Plug):
    """From particles of the old potential to positions where the kernel begins on the new one.

    A start sees potentials, never data, and returns positions. The engine carries momenta along and updates stored
    values of V. Every subclass is made a frozen dataclass and a pytree. It must define ``__call__``. The guide
    ``tutorials/guides/extending.md`` has a complete example.
    """

    kind: ClassVar[str] = "start"
    # Whether the particles are independent of the old ones. They get new momenta.
    draws_fresh: ClassVar[bool] = False
    # Whether particles may share ancestors. Their predictions then have more noise than independent draws.
    resamples: ClassVar[bool] = False

    def __call__(self, key: Array, thetas: Array, old: GibbsPotential, new: GibbsPotential) -> Moved:
        """Return M positions for the new potential, from M particles of the old one."""
        raise NotImplementedError

    def check(self, model: Model) -> None:
        """Refuse a model that this start cannot serve. The engine calls it before it compiles anything."""

    @property
    def tempering(self) -> Tempering:
        """How a run with this start draws fresh particles of the fitted density."""
        return Tempering()


def move(
    key: Array,
    start: Start,
    ensemble: sampling.Ensemble,
    old: GibbsPotential,
    new: GibbsPotential,
    kernel: Kernel,
) -> tuple[sampling.Ensemble, Moved]:
    """Apply a start to an ensemble. Particles inherit the momenta of their parents, and get values of the new V."""
    start_key, state_key = jax.random.split(key)
    moved = start(start_key, ensemble.theta, old, new)
    if not isinstance(moved, Moved) or moved.thetas.shape != ensemble.theta.shape:
        found = f"shape {moved.thetas.shape}" if isinstance(moved, Moved) else type(moved).__name__
        expected = f"Moved(thetas, ...) with thetas of shape {ensemble.theta.shape} from {type(start).__name__}"
        raise InputError(expected, found, "Return as many positions as there are particles.")
    if start.draws_fresh:
        return sampling.begin(state_key, moved.thetas, new, kernel), moved
    if moved.parents is not None:
        ensemble = jax.tree.map(lambda part: part[moved.parents], ensemble)
    return sampling.refresh(state_key, ensemble, moved.thetas, new, kernel), moved
