"""What a user gets back: the fit, its ArviZ form, verdicts, tables and figures."""

from mfpda.results.fit import Fit, to_inference_data
