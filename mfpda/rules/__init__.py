"""Outer rules: how linearisations of the loss become the coefficients of the next Gibbs potential."""

from mfpda.registry import Registry
from mfpda.rules.automatic import pick
from mfpda.rules.base import Coefficients, Defaults, Dual, Rule, RuleState, padded
from mfpda.rules.dual_averaging import DualAveraging
from mfpda.rules.dual_coordinate_ascent import DualCoordinateAscent
from mfpda.rules.dual_newton import DualNewton
from mfpda.rules.fictitious_play import FictitiousPlay
from mfpda.rules.latest import Latest

RULES: Registry[Rule] = Registry(
    Rule,
    {
        "dual_averaging": DualAveraging,
        "dual_newton": DualNewton,
        "dual_coordinate_ascent": DualCoordinateAscent,
        "fictitious_play": FictitiousPlay,
        "latest": Latest,
    },
    also=("auto",),
)
