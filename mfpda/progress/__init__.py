"""What a run consists of: its settings, its state, what it records, and its progress."""

from mfpda.progress.datasets import rows_from
from mfpda.progress.progress import Progress, Settings
from mfpda.progress.record import (
    CERTIFICATE_STATS,
    FIRST_CERTIFIED,
    OUTER_STATS,
    Record,
    Row,
    certifies,
    recorded_steps,
)
from mfpda.progress.state import RunState, current_potential, grown, initial_state
