"""R-hat and effective sample sizes: between runs, and of a kernel's trace."""

import jax
import pytest

import mfpda
from mfpda import InputError
from mfpda.results import diagnostics


def test_between_runs_compares_runs(small):
    fits = [mfpda.fit(jax.random.key(seed), small.model, small.data, **small.quick) for seed in range(2)]
    mixing = diagnostics.between_runs(mfpda.to_inference_data(*fits))
    assert set(mixing.r_hat.data_vars) == set(mixing.ess.data_vars) == {"w", "b"}
    assert mixing.worst_r_hat == max(float(mixing.r_hat[name].max()) for name in "wb") < 1.3
    assert mixing.smallest_ess <= 60
    with pytest.raises(InputError, match="two runs or more"):
        diagnostics.between_runs(fits[0].idata)


@pytest.mark.slow
def test_kernel_report_of_a_trace(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel="mala", **small.quick)
    trace = fit.trace(jax.random.key(1), draws=200, particles=4)
    report = diagnostics.kernel_report(trace)
    assert report.acceptance == trace.attrs["acceptance_rate"]
    assert report.diverging == 0
    assert report.ess_per_gradient == pytest.approx(report.mixing.smallest_ess / 800)
    with pytest.raises(InputError, match="a trace of a kernel"):
        diagnostics.kernel_report(fit.idata["posterior"])
