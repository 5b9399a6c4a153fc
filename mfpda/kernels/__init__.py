"""Inner samplers: how M particles sample a Gibbs density. One file per kernel; the registry names them."""

from functools import partial

from mfpda.kernels.base import AUTO as AUTO
from mfpda.kernels.base import Kernel as Kernel
from mfpda.kernels.base import KernelInfo as KernelInfo
from mfpda.kernels.base import Position as Position
from mfpda.kernels.from_blackjax import FromBlackJAX as FromBlackJAX
from mfpda.kernels.from_numpyro import FromNumPyro as FromNumPyro
from mfpda.kernels.gradient_descent import GradientDescent as GradientDescent
from mfpda.kernels.mala import MALA as MALA
from mfpda.kernels.stochastic_gradient import StochasticGradient as StochasticGradient
from mfpda.kernels.ula import ULA as ULA
from mfpda.kernels.underdamped import Underdamped as Underdamped
from mfpda.registry import Registry

FROM_BLACKJAX = ("mala", "hmc", "nuts", "ghmc", "barker_proposal")
FROM_NUMPYRO = ("HMC", "NUTS", "BarkerMH")

KERNELS = Registry(
    "kernel",
    {
        "ula": ULA,
        "mala": MALA,
        "underdamped": Underdamped,
        "stochastic_gradient": StochasticGradient,
        "gradient_descent": GradientDescent,
        **{f"blackjax:{name}": partial(FromBlackJAX, name) for name in FROM_BLACKJAX},
        **{f"numpyro:{name}": partial(FromNumPyro, name) for name in FROM_NUMPYRO},
    },
    families={"blackjax": FromBlackJAX, "numpyro": FromNumPyro},
)

__all__ = [
    "AUTO",
    "KERNELS",
    "MALA",
    "ULA",
    "FromBlackJAX",
    "FromNumPyro",
    "GradientDescent",
    "Kernel",
    "KernelInfo",
    "Position",
    "StochasticGradient",
    "Underdamped",
]
