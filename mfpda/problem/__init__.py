"""The problem: a model, its examples, and what follows from them (outputs, Gibbs potentials)."""

from mfpda.problem.binding import as_array, bind
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import DataSet, Feed, Stream, capacity, enlarged, feed
from mfpda.problem.distributions import PowerNormal, penalty
from mfpda.problem.losses import Loss, seen_convex, seen_only_kinks
from mfpda.problem.memory import blocks_within
from mfpda.problem.model import Model
from mfpda.problem.neuron import Neuron
from mfpda.problem.outputs import Deviations, Outputs, over_outputs
from mfpda.problem.potential import GibbsPotential
from mfpda.problem.problem import Problem, predictions
from mfpda.problem.properness import check_proper, runs_away
from mfpda.problem.tails import centred, check_prior
