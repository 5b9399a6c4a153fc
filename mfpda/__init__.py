"""Optimise over probability distributions: declare a neuron and a loss, get the optimal law of theta."""

from importlib.metadata import version as _version

from mfpda import diagnostics as diagnostics
from mfpda import distributions as distributions
from mfpda import estimators as estimators
from mfpda import exact as exact
from mfpda import features as features
from mfpda import kernels as kernels
from mfpda import losses as losses
from mfpda import plots as plots
from mfpda import rules as rules
from mfpda import schedules as schedules
from mfpda import starts as starts
from mfpda import studies as studies
from mfpda import theory as theory
from mfpda.certificate import Certificate as Certificate
from mfpda.checkpoint import Checkpoint as Checkpoint
from mfpda.data import Stream as Stream
from mfpda.diagnostics import summary as summary
from mfpda.diagnostics import verdict as verdict
from mfpda.distributions import PowerNormal as PowerNormal
from mfpda.distributions import penalty as penalty
from mfpda.errors import CertificateStatus as CertificateStatus
from mfpda.errors import HighDimensionWarning as HighDimensionWarning
from mfpda.errors import InputError as InputError
from mfpda.errors import NotConvexWarning as NotConvexWarning
from mfpda.errors import RunError as RunError
from mfpda.errors import Status as Status
from mfpda.errors import Terminated as Terminated
from mfpda.fitted import Fit as Fit
from mfpda.fitted import to_inference_data as to_inference_data
from mfpda.history import Record as Record
from mfpda.kernels import MALA as MALA
from mfpda.kernels import ULA as ULA
from mfpda.kernels import FromBlackJAX as FromBlackJAX
from mfpda.kernels import FromNumPyro as FromNumPyro
from mfpda.kernels import GradientDescent as GradientDescent
from mfpda.kernels import StochasticGradient as StochasticGradient
from mfpda.kernels import Underdamped as Underdamped
from mfpda.loading import load as load
from mfpda.model import Model as Model
from mfpda.optimise import fit as fit
from mfpda.potential import GibbsPotential as GibbsPotential
from mfpda.registry import plug as plug
from mfpda.rules import DualAveraging as DualAveraging
from mfpda.rules import DualCoordinateAscent as DualCoordinateAscent
from mfpda.rules import DualNewton as DualNewton
from mfpda.rules import FictitiousPlay as FictitiousPlay
from mfpda.rules import Latest as Latest
from mfpda.starts import Resample as Resample
from mfpda.starts import Reweight as Reweight
from mfpda.starts import Temper as Temper
from mfpda.starts import Warm as Warm

__version__ = _version("mfpda")
