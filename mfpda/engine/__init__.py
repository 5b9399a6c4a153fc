"""The engine: it plans a run, drives its outer steps and reports the result."""
