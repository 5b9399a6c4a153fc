"""Stochastic-gradient Langevin: the unadjusted Langevin algorithm on a few anchors a step."""

from collections.abc import Callable
from dataclasses import dataclass, field

from jax import Array

from mfpda.core.schedules import positive_count
from mfpda.kernels.ula import ULA
from mfpda.problem.potential import GibbsPotential
from mfpda.registry import plug


@plug
@dataclass(frozen=True)
class StochasticGradient(ULA):
    """ULA's step on m = ``anchors`` anchors, drawn anew for every step and the same for all particles (after Welling
    and Teh 2011). With step size eta and xi ~ N(0, I),

        theta <- theta - eta grad V_m(theta) + sqrt(2 eta) xi,      E V_m = V,

    V_m the potential V on anchors drawn in proportion to the size of their coefficients (``GibbsPotential.thinning``).
    A step costs the same however many anchors there are: in a Stream, where every outer step adds a batch of them, its
    cost is constant in t. Where there are no more than m, the step is ULA's.

    What it adds to ULA's bias: let grad V_m have variance v along a direction in which V is quadratic, of curvature k.
    The variance after a step is (1 - eta k)^2 times that before it, plus 2 eta + eta^2 v, and stays the same at

        Var theta = (1/k) (1 + eta v / 2) / (1 - eta k / 2),

    ULA's times 1 + eta v / 2. The anchors are shared, so their noise moves all M particles together. It leaves the
    spread around their mean as ULA's, and goes into the mean, whose variance a step makes (1 - eta k)^2 times itself
    plus 2 eta / M + eta^2 v:

        Var mean = (2/M) / (k (2 - eta k)) + eta v / (k (2 - eta k)).

    The second part does not fall with M. By it all predictions err together: it averages out over steps, about
    1 / (eta k) of them for one independent error, and over outer steps under dual averaging, never over particles. v is
    of the order of (gamma sum|c| / T)^2 / m times the variance of dh/dtheta between neighbouring anchors, so a low
    temperature makes it large. A smaller ``step_size`` and more ``anchors`` lessen it, each in proportion; ``ULA`` has
    none of it.

    ``step_size="auto"`` is ULA's, 0.1 / curvature, for the curvature of a V_m: its noise makes that larger on average,
    so the step is shorter; but v has no part in it.
    """

    anchors: int = field(default=256, metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "anchors", positive_count(self.anchors, "anchors"))

    def thinning(self, potential: GibbsPotential) -> Callable[[Array], GibbsPotential]:
        """key -> the potential of one step."""
        return potential.thinning(self.anchors)
