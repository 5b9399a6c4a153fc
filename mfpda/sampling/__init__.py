"""M particles through one kernel: the ensemble, tuned step sizes, tempering."""

from mfpda.sampling.calibration import calibrated
from mfpda.sampling.ensemble import (
    Ensemble,
    Retune,
    SampleStats,
    begin,
    draw_initial,
    draw_prior,
    particle_keys,
    refresh,
    run,
    run_with,
    trace,
)
from mfpda.sampling.tempering import FEWEST_TEMPERED, POOL, Ladder, Tempered, Tempering, TemperingStats
