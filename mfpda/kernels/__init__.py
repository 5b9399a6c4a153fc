"""Inner samplers: how M particles sample a Gibbs density. One file per kernel; the registry names them."""

from functools import partial

from mfpda.kernels.base import AUTO, Auto, Kernel, KernelInfo, KernelState, Position, step_size_of, with_step_size
from mfpda.kernels.from_blackjax import FromBlackJAX
from mfpda.kernels.from_numpyro import FromNumPyro
from mfpda.kernels.gradient_descent import GradientDescent
from mfpda.kernels.hmc import HMC
from mfpda.kernels.mala import MALA
from mfpda.kernels.stochastic_gradient import StochasticGradient
from mfpda.kernels.ula import ULA
from mfpda.kernels.underdamped import Underdamped
from mfpda.registry import Registry

FROM_BLACKJAX = ("mala", "hmc", "nuts", "ghmc", "barker_proposal")

KERNELS: Registry[Kernel] = Registry(
    Kernel,
    {
        "ula": ULA,
        "mala": MALA,
        "hmc": HMC,
        "underdamped": Underdamped,
        "stochastic_gradient": StochasticGradient,
        "gradient_descent": GradientDescent,
        **{f"blackjax:{name}": partial(FromBlackJAX, name) for name in FROM_BLACKJAX},
        **{f"numpyro:{name}": partial(FromNumPyro, name) for name in FromNumPyro.targets},
    },
    families={"blackjax": FromBlackJAX, "numpyro": FromNumPyro},
)
