"""Outer rules: how linearisations of the loss become the coefficients of the next Gibbs potential."""

from mfpda.registry import Registry
from mfpda.rules.dual_averaging import DualAveraging as DualAveraging
from mfpda.rules.latest import Latest as Latest
from mfpda.rules.protocol import Coefficients as Coefficients
from mfpda.rules.protocol import Dual as Dual
from mfpda.rules.protocol import Problem as Problem
from mfpda.rules.protocol import Rule as Rule

RULES = Registry("rule", {"dual_averaging": DualAveraging, "latest": Latest})
