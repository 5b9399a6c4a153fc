"""What every start is: the Start protocol."""

from typing import Protocol, runtime_checkable

from jax import Array

from mfpda.kernels import Kernel
from mfpda.problem.potential import GibbsPotential
from mfpda.sampling import Ensemble

Stats = dict[str, Array]


@runtime_checkable
class Start(Protocol):
    """From particles of the old potential to particles from which the kernel begins on the new one.

    A start is a frozen dataclass registered as a pytree. It sees potentials, never data; the stats it returns
    (scalars by name) go into ``outer_stats``; the one named "gradients" is added to those of the inner loop. It may
    have a ``check(model)``, which refuses a model that it cannot serve before anything is compiled, and
    ``draws_anew = True``, where nothing of the old particles is left.
    """

    def __call__(
        self, key: Array, ensemble: Ensemble, old: GibbsPotential, new: GibbsPotential, kernel: Kernel
    ) -> tuple[Ensemble, Stats]: ...
