"""Optimise over probability distributions: declare a neuron and a loss, get the optimal law of theta."""

from importlib.metadata import version as _version

from mfpda import exact, kernels, rules, starts, studies, theory
from mfpda.core import schedules
from mfpda.engine.fit import fit
from mfpda.errors import (
    CertificateStatus,
    HighDimensionWarning,
    InputError,
    NotConvexWarning,
    RunError,
    Status,
    Terminated,
)
from mfpda.judging import estimators
from mfpda.judging.certificate import Certificate
from mfpda.kernels import MALA, ULA, FromBlackJAX, FromNumPyro, GradientDescent, Kernel, StochasticGradient, Underdamped
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.problem import distributions, losses
from mfpda.problem.data import Stream
from mfpda.problem.distributions import PowerNormal, penalty
from mfpda.problem.losses import Loss
from mfpda.problem.model import Model
from mfpda.problem.potential import GibbsPotential
from mfpda.progress.history import Record
from mfpda.registry import plug
from mfpda.results import diagnostics, features, plots
from mfpda.results.diagnostics import summary, verdict
from mfpda.results.fit import Fit, to_inference_data
from mfpda.results.loading import load
from mfpda.rules import DualAveraging, DualCoordinateAscent, DualNewton, FictitiousPlay, Latest, Rule
from mfpda.starts import Resample, Reweight, Start, Temper, Warm

__version__ = _version("mfpda")

__all__ = [
    "MALA",
    "ULA",
    "Certificate",
    "CertificateStatus",
    "Checkpoint",
    "DualAveraging",
    "DualCoordinateAscent",
    "DualNewton",
    "FictitiousPlay",
    "Fit",
    "FromBlackJAX",
    "FromNumPyro",
    "GibbsPotential",
    "GradientDescent",
    "HighDimensionWarning",
    "InputError",
    "Kernel",
    "Latest",
    "Loss",
    "Model",
    "NotConvexWarning",
    "PowerNormal",
    "Record",
    "Resample",
    "Reweight",
    "Rule",
    "RunError",
    "Start",
    "Status",
    "StochasticGradient",
    "Stream",
    "Temper",
    "Terminated",
    "Underdamped",
    "Warm",
    "diagnostics",
    "distributions",
    "estimators",
    "exact",
    "features",
    "fit",
    "kernels",
    "load",
    "losses",
    "penalty",
    "plots",
    "plug",
    "rules",
    "schedules",
    "starts",
    "studies",
    "summary",
    "theory",
    "to_inference_data",
    "verdict",
]
