"""How well runs and kernels mix: R-hat and effective sample size, between runs and within a kernel's trace."""

from typing import NamedTuple

import numpy as np
import xarray as xr

from mfpda.errors import InputError
from mfpda.results import arviz_data
from mfpda.results.arviz_data import RunData


class Mixing(NamedTuple):
    """R-hat and bulk ESS of every coordinate, and the worst of each."""

    r_hat: xr.Dataset
    ess: xr.Dataset
    worst_r_hat: float
    smallest_ess: float


class KernelReport(NamedTuple):
    """How a kernel does at a fixed potential, from its trace."""

    mixing: Mixing
    acceptance: float
    diverging: float  # the share of steps that diverged
    ess_per_gradient: float  # of the slowest coordinate


def between_runs(inference_data: RunData) -> Mixing:
    """Compute R-hat and ESS of ``posterior`` with runs as chains. R-hat is near 1 if the runs ended in one law."""
    posterior = arviz_data.groups_of(inference_data)["posterior"]
    if posterior.sizes["chain"] < 2:
        raise InputError("two runs or more", "one", "Stack runs with different keys: to_inference_data(fit1, fit2).")
    return _mixing(posterior)


def kernel_report(trace: xr.Dataset) -> KernelReport:
    """Report acceptance, divergences, R-hat between particles and ESS per gradient of a trace from ``fit.trace``."""
    if not isinstance(trace, xr.Dataset) or "gradients_per_draw" not in trace.attrs:
        raise InputError("a trace of a kernel", type(trace).__name__, "Call fit.trace(key) and pass what it returns.")
    mixing, attributes = _mixing(trace), trace.attrs
    spent = trace.sizes["chain"] * trace.sizes["draw"] * attributes["gradients_per_draw"]
    per_gradient = mixing.smallest_ess / spent if spent else np.inf
    return KernelReport(mixing, attributes["acceptance_rate"], attributes["diverging"], per_gradient)


def _mixing(dataset: xr.Dataset) -> Mixing:
    arviz = arviz_data.import_arviz()
    r_hat, ess = arviz.rhat(dataset), arviz.ess(dataset)  # between chains; bulk, over all chains
    worst, smallest = max(float(each.max()) for each in r_hat.values()), min(float(each.min()) for each in ess.values())
    return Mixing(r_hat, ess, worst, smallest)
