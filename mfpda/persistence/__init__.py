"""Runs on disk: checkpoints, the history store, saved fits."""
