"""Outer rules: how linearisations of the loss become the coefficients of the next Gibbs potential."""

from mfpda.registry import Registry
from mfpda.rules.base import Coefficients as Coefficients
from mfpda.rules.base import Dual as Dual
from mfpda.rules.base import Problem as Problem
from mfpda.rules.base import Rule as Rule
from mfpda.rules.dual_averaging import DualAveraging as DualAveraging
from mfpda.rules.dual_coordinate_ascent import DualCoordinateAscent as DualCoordinateAscent
from mfpda.rules.dual_newton import DualNewton as DualNewton
from mfpda.rules.fictitious_play import FictitiousPlay as FictitiousPlay
from mfpda.rules.latest import Latest as Latest

RULES = Registry(
    "rule",
    {
        "dual_averaging": DualAveraging,
        "dual_newton": DualNewton,
        "dual_coordinate_ascent": DualCoordinateAscent,
        "fictitious_play": FictitiousPlay,
        "latest": Latest,
    },
    also=("auto",),
)
