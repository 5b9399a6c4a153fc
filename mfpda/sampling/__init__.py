"""M particles through one kernel: the ensemble, step sizes that tune themselves, tempering."""

from mfpda.sampling.ensemble import Ensemble as Ensemble
from mfpda.sampling.ensemble import Retuned as Retuned
from mfpda.sampling.ensemble import SampleStats as SampleStats
from mfpda.sampling.ensemble import begin as begin
from mfpda.sampling.ensemble import draw_initial as draw_initial
from mfpda.sampling.ensemble import draw_prior as draw_prior
from mfpda.sampling.ensemble import particle_keys as particle_keys
from mfpda.sampling.ensemble import refresh as refresh
from mfpda.sampling.ensemble import run as run
from mfpda.sampling.ensemble import run_with as run_with
from mfpda.sampling.ensemble import trace as trace
