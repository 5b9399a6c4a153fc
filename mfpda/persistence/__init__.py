"""Runs on disk: checkpoints, the history store, saved fits."""

from mfpda.persistence.checkpoint import Checkpoint
from mfpda.persistence.container import Contents
from mfpda.persistence.description import attributes_of, provenance, rebuild_plugs, settings_of, versions
from mfpda.persistence.history_store import HistoryStore
from mfpda.persistence.run_writer import RunWriter
from mfpda.persistence.saved_run import SavedRun
