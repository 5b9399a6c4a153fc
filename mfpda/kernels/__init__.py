"""Inner samplers: how M particles sample a Gibbs density. One file per kernel; the registry names them."""

from mfpda.kernels.gradient_descent import GradientDescent as GradientDescent
from mfpda.kernels.protocol import Kernel as Kernel
from mfpda.kernels.protocol import KernelInfo as KernelInfo
from mfpda.kernels.protocol import Position as Position
from mfpda.kernels.ula import ULA as ULA
from mfpda.registry import Registry

KERNELS = Registry("kernel", {"ula": ULA, "gradient_descent": GradientDescent})
