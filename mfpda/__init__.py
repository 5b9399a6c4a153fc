"""Optimise over probability distributions: declare a neuron and a loss, get the optimal law of theta."""

from importlib.metadata import version as _version

from mfpda import exact, kernels, rules, starts, studies, theory
from mfpda.core import schedules
from mfpda.engine.fit import fit
from mfpda.errors import (
    CertificateStatus,
    EarlierWasBetterWarning,
    HighDimensionWarning,
    InputError,
    NotCertifiedWarning,
    NotConvexWarning,
    RunError,
    Status,
    Terminated,
    UnsoundSampleWarning,
)
from mfpda.judging import Certificate, estimators
from mfpda.kernels import (
    HMC,
    MALA,
    ULA,
    FromBlackJAX,
    FromNumPyro,
    GradientDescent,
    Kernel,
    StochasticGradient,
    Underdamped,
)
from mfpda.persistence import Checkpoint
from mfpda.problem import GibbsPotential, Loss, Model, PowerNormal, Stream, distributions, losses, penalty
from mfpda.progress import Record
from mfpda.results import Fit, diagnostics, features, plots, to_inference_data
from mfpda.results.load import load
from mfpda.results.summary import summary
from mfpda.results.verdict import verdict
from mfpda.rules import DualAveraging, DualCoordinateAscent, DualNewton, FictitiousPlay, Latest, Rule
from mfpda.starts import Resample, Reweight, Start, Temper, Warm

__version__ = _version("mfpda")

# fmt: off
__all__ = [
    "HMC", "MALA", "ULA", "Certificate", "CertificateStatus", "Checkpoint", "DualAveraging", "DualCoordinateAscent",
    "DualNewton", "EarlierWasBetterWarning", "FictitiousPlay", "Fit", "FromBlackJAX", "FromNumPyro", "GibbsPotential",
    "GradientDescent", "HighDimensionWarning", "InputError", "Kernel", "Latest", "Loss", "Model", "NotCertifiedWarning",
    "NotConvexWarning", "PowerNormal", "Record", "Resample", "Reweight", "Rule", "RunError", "Start", "Status",
    "StochasticGradient", "Stream", "Temper", "Terminated", "Underdamped", "UnsoundSampleWarning", "Warm",
    "diagnostics", "distributions", "estimators", "exact", "features", "fit", "kernels", "load", "losses", "penalty",
    "plots", "rules", "schedules", "starts", "studies", "summary", "theory", "to_inference_data", "verdict",
]
# fmt: on
