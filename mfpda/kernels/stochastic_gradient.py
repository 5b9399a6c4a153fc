"""Stochastic-gradient Langevin: the unadjusted Langevin algorithm on a few anchors a step."""

from collections.abc import Callable
from dataclasses import field

from jax import Array

from mfpda.core import positive_count
from mfpda.kernels.ula import ULA
from mfpda.problem import GibbsPotential


class StochasticGradient(ULA):
    """ULA on m = ``anchors`` random anchors (after Welling and Teh 2011). With step size eta and xi ~ N(0, I),

        theta <- theta - eta grad V_m(theta) + sqrt(2 eta) xi,      E V_m = V.

    V_m has m anchors, drawn for every step in proportion to the size of their coefficients and shared by all particles
    (``GibbsPotential.thinning``). So the cost of a step does not grow with the number of anchors. For other kernels
    in a Stream it does. With at most m anchors this is ULA.

    Let grad V_m have variance v along a direction in which V is quadratic with curvature k. The stationary variances of
    a particle and of the mean of M particles are

        Var theta = (1/k) (1 + eta v / 2) / (1 - eta k / 2),    Var mean = (2/M + eta v) / (k (2 - eta k)).

    ULA has v = 0. Particles share anchors, so the error eta v of their mean does not fall with M. It averages out over
    about 1 / (eta k) steps. v is of the order of (gamma sum|c| / T)^2 / m times the variance of dh/dtheta between
    neighbouring anchors. A smaller ``step_size`` and more ``anchors`` reduce the error in proportion; "auto" ignores v.
    """

    anchors: int = field(default=256, metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "anchors", positive_count(self.anchors, "anchors"))

    def thinning(self, potential: GibbsPotential) -> Callable[[Array], GibbsPotential]:
        """Draw ``anchors`` anchors for each step."""
        return potential.thinning(self.anchors)
