"""Starts: where the particles of one outer step begin the next."""

from mfpda.kernels import KERNELS
from mfpda.registry import Registry
from mfpda.starts.base import Moved, Start, move
from mfpda.starts.resample import Resample
from mfpda.starts.reweight import Reweight
from mfpda.starts.temper import Temper
from mfpda.starts.warm import Warm

STARTS: Registry[Start] = Registry(
    Start, {"warm": Warm, "resample": Resample, "reweight": Reweight, "temper": Temper}, parts={"kernel": KERNELS}
)
