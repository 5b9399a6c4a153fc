"""Starts: where the particles of one outer step begin the next."""

from mfpda.kernels import KERNELS
from mfpda.registry import Registry
from mfpda.starts.base import Start as Start
from mfpda.starts.resample import Resample as Resample
from mfpda.starts.reweight import Reweight as Reweight
from mfpda.starts.temper import Temper as Temper
from mfpda.starts.warm import Warm as Warm

STARTS = Registry(
    "start", {"warm": Warm, "resample": Resample, "reweight": Reweight, "temper": Temper}, parts={"kernel": KERNELS}
)
