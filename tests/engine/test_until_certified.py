"""A run without ``outer_steps`` ends when it is certified, and says why if it is not."""

import functools
import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import mfpda
from mfpda import CertificateStatus, InputError, Status, exact
from mfpda.engine import plan as planning
from mfpda.engine import run as running
from mfpda.engine.run import Run
from mfpda.judging import Certificate
from mfpda.persistence import RunWriter
from mfpda.progress import Row
from tests.helpers import draw, reference, same

FEW = {"particles": 200, "progress": False}


@pytest.fixture(scope="module")
def fit(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, **FEW)


def test_it_ends_at_the_first_certificate_that_is_good_enough(fit):
    judged = fit.certificate
    assert fit.status is Status.CERTIFIED
    assert judged.asked == pytest.approx(0.05 * judged.winnable_lower)
    assert judged.upper <= judged.asked
    certified = [row.outer_step for row in fit.rows if "certified" in row.stats]
    assert certified[-1] == fit.outer_steps
    assert set(certified) <= {5, 10, 15, 20, 30, 40}
    assert fit.rows[-1].stats["gap_upper"] == judged.upper
    assert f"gap <= {judged.upper:.2g}, certified)" in repr(fit)
    assert fit.settings.until_certified


def test_the_certificate_is_in_files_and_in_the_summary(fit, small, tmp_path):
    fit.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", small.model)
    np.testing.assert_array_equal(loaded.certificate.predictions, fit.certificate.predictions)
    assert replace(loaded.certificate, predictions=None).to_json() == fit.certificate.to_json()
    assert str(loaded.certificate) == str(fit.certificate)
    earlier = {name: fact for name, fact in json.loads(fit.certificate.to_json()).items() if name != "prior_stderr"}
    assert Certificate.from_json(json.dumps(earlier), fit.certificate.predictions).upper == fit.certificate.upper
    assert repr(loaded) == repr(fit)
    assert "gap upper" in mfpda.summary(loaded)
    assert "certified" in mfpda.summary(loaded)


def test_an_interrupted_run_resumes_with_the_same_bits_and_the_same_certificate(fit, small, tmp_path):
    folder = tmp_path / "run"

    def stop(predict, seen=[]):  # noqa: B006
        seen.append(None)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return 0.0

    arguments = FEW | {"metrics": {"stop": stop}}
    stopped = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=folder, **arguments)
    assert stopped.status is Status.INTERRUPTED
    assert stopped.certificate is None
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=folder, **arguments)
    np.testing.assert_array_equal(resumed.thetas, fit.thetas)
    assert resumed.certificate.to_json() == fit.certificate.to_json()
    again = mfpda.fit(jax.random.key(0), small.model, small.data, resume=folder, **arguments)
    assert again.outer_steps == resumed.outer_steps  # it was certified already
    assert mfpda.load(folder, small.model, data=small.data).certificate.to_json() == fit.certificate.to_json()


def test_a_smaller_tolerance_continues_the_run(fit, small):
    share = fit.certificate.share
    longer = mfpda.fit(jax.random.key(0), small.model, small.data, resume=fit, tolerance=0.9 * share, **FEW)
    assert longer.status is Status.CERTIFIED
    assert longer.outer_steps > fit.outer_steps
    assert longer.certificate.share <= 0.9 * share


@pytest.mark.slow
def test_where_nothing_can_be_won_a_small_divergence_is_enough(small):
    """y = 0 and a symmetric prior: the prior is the optimum."""
    fit = mfpda.fit(jax.random.key(0), small.model, (small.x, np.zeros(40)), **FEW)
    assert fit.status is Status.CERTIFIED
    assert fit.certificate.upper <= fit.certificate.asked
    assert fit.certificate.asked == pytest.approx(0.005 * 0.02)


def test_a_run_that_reaches_the_limit_says_so(small, monkeypatch):
    monkeypatch.setattr(planning, "LIMIT", 7)
    changed(monkeypatch, lambda t, judged: replace(judged, upper=1 / t))
    with pytest.warns(mfpda.NotCertifiedWarning, match="the bound is larger than was asked for"):
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, tolerance=1e-9, **FEW)
    assert (fit.status, fit.outer_steps) == (Status.OUT_OF_STEPS, 7)
    assert [row.outer_step for row in fit.rows if "certified" in row.stats] == [5, 7]


def changed(monkeypatch, change):
    """Let the t-th outer step have a certificate changed by ``change(t, certificate)``."""
    original = running._certificate
    monkeypatch.setattr(
        running, "_certificate", lambda key, progress, *others: change(progress.t, original(key, progress, *others))
    )


def test_the_best_state_comes_back_if_the_bound_rises(small, monkeypatch):
    def worse(t, judged):
        factor = {5: 1.0, 10: 1.05}.get(t, 1.1)  # also if it rises by less than its noise
        return replace(judged, upper=factor)

    changed(monkeypatch, worse)
    with pytest.warns(mfpda.NotCertifiedWarning, match="Of 20 outer steps, the state after step 5 is returned"):
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, tolerance=1e-9, **FEW)
    assert (fit.status, fit.outer_steps) == (Status.STALLED, 5)
    assert fit.rows[-1].outer_step == 5
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, outer_steps=5, **FEW)
    np.testing.assert_array_equal(fit.state.ensemble.theta, whole.state.ensemble.theta)


def test_a_run_of_a_given_length_says_if_an_earlier_state_was_better(small, monkeypatch):
    """Clearly better, beyond the noise of the last bound. It has that length all the same."""
    arguments = FEW | {"certify_every": 2, "outer_steps": 4}
    for last, warns in ((1.05, False), (2.0, True)):
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            numbers = {2: {"gap": 0.9, "upper": 1.0}, 4: {"gap": 0.95 * last, "upper": last}}
            changed(patch, lambda t, judged, numbers=numbers: replace(judged, **numbers[t]))
            fit = mfpda.fit(jax.random.key(0), small.model, small.data, **arguments)
        assert (fit.status, fit.outer_steps) == (Status.FINISHED, 4)
        said = [str(each.message) for each in caught if each.category is mfpda.EarlierWasBetterWarning]
        assert len(said) == warns
        assert all("The state after outer step 2 had a bound of 1" in each for each in said)


def test_with_a_tolerance_a_given_length_is_a_limit(small, monkeypatch):
    changed(monkeypatch, lambda t, judged: replace(judged, upper=1 / t, winnable_lower=1.0))
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, outer_steps=9, tolerance=0.15, **FEW, certify_every=1)
    assert (fit.status, fit.outer_steps) == (Status.CERTIFIED, 7)
    with pytest.warns(mfpda.NotCertifiedWarning):
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, outer_steps=3, tolerance=0.15, **FEW)
    assert (fit.status, fit.outer_steps) == (Status.OUT_OF_STEPS, 3)
    with pytest.raises(InputError, match="tolerance or stop_at_gap, found both"):
        mfpda.fit(jax.random.key(0), small.model, small.data, stop_at_gap=0.1, tolerance=0.15, **FEW)


def test_a_fit_resumed_into_a_new_folder_keeps_its_best_state(fit, small, monkeypatch, tmp_path):
    changed(monkeypatch, lambda t, judged: replace(judged, upper=1.0))
    arguments = FEW | {"outer_steps": fit.outer_steps + 1, "stop_at_gap": 1e-9, "checkpoint": tmp_path / "run"}
    with pytest.warns(mfpda.NotCertifiedWarning):
        resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=fit, **arguments)
    loaded = mfpda.load(tmp_path / "run", small.model, data=small.data)
    for each in (resumed, loaded):
        assert each.outer_steps == fit.outer_steps
        assert each.certificate.upper == fit.certificate.upper


def test_the_best_state_is_kept_in_the_folder(small, monkeypatch, tmp_path):
    """A loaded run is the one that ``fit`` returned. A resumed one ends as if it had never been interrupted."""
    no_number = {"status": CertificateStatus.DISAGREEMENT, "upper": np.inf, "gap": np.nan}
    changed(monkeypatch, lambda t, judged: replace(judged, **({} if t == 5 else no_number)))
    arguments = FEW | {"tolerance": 1e-9}
    with pytest.warns(mfpda.NotCertifiedWarning):
        whole = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "whole", **arguments)
    assert (whole.status, whole.outer_steps) == (Status.STALLED, 5)
    loaded = mfpda.load(tmp_path / "whole", small.model, data=small.data)
    assert loaded.certificate.to_json() == whole.certificate.to_json()
    same(loaded, whole)

    def stop(predict, seen=[]):  # noqa: B006
        seen.append(None)
        if len(seen) == 7:
            raise KeyboardInterrupt
        return 0.0

    arguments |= {"metrics": {"stop": stop}}
    mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **arguments)
    with pytest.warns(mfpda.NotCertifiedWarning):
        resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=tmp_path / "run", **arguments)
    assert (resumed.status, resumed.outer_steps) == (Status.STALLED, 5)
    np.testing.assert_array_equal(resumed.thetas, whole.thetas)


def test_an_interrupted_run_may_be_given_a_length(small, tmp_path):
    """Its certificates stay those that it was given, and a step that it passed without a record stays without."""

    def stop(predict, seen=[]):  # noqa: B006
        seen.append(None)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return 0.0

    arguments = FEW | {"metrics": {"stop": stop}, "record": mfpda.Record(every=3)}
    begun = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **arguments)
    assert begun.status is Status.INTERRUPTED
    present = mfpda.fit(jax.random.key(0), small.model, small.data, resume=tmp_path / "run", outer_steps=2, **arguments)
    assert (present.outer_steps, len(present.rows)) == (2, 0)
    longer = mfpda.fit(jax.random.key(0), small.model, small.data, resume=tmp_path / "run", outer_steps=6, **arguments)
    assert [row.outer_step for row in longer.rows if np.isfinite(row.stats.get("certified", np.nan))] == [5, 6]


def test_a_certificate_that_is_interrupted_while_it_is_written_is_issued_again(fit, small, monkeypatch, tmp_path):
    original, seen = RunWriter.stats, []

    def interrupted(writer, row):
        seen.append(row)
        if len(seen) == 1:
            raise KeyboardInterrupt
        original(writer, row)

    monkeypatch.setattr(RunWriter, "stats", interrupted)
    stopped = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **FEW)
    assert (stopped.status, stopped.certificate) == (Status.INTERRUPTED, None)
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=tmp_path / "run", **FEW)
    assert resumed.certificate.to_json() == fit.certificate.to_json()
    assert [row.stats.get("gap") for row in resumed.rows][-1] == fit.rows[-1].stats["gap"]


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (Status.NO_BOUND, {"status": CertificateStatus.DISAGREEMENT, "upper": np.inf, "gap": np.nan}),
        (Status.WORSE_THAN_PRIOR, {"upper": 9.0, "gap": 8.0, "stderr": 0.1, "objective": 8.3, "objective_stderr": 0.1}),
    ],
    ids=["no bound", "worse"],
)
def test_why_a_run_was_not_certified(small, monkeypatch, status, change):
    changed(monkeypatch, lambda t, judged: replace(judged, **change))
    with pytest.warns(mfpda.NotCertifiedWarning, match=status.value):
        fit = mfpda.fit(jax.random.key(0), small.model, small.data, **FEW)
    assert fit.status is status
    assert fit.outer_steps <= 20  # it does not wait for the limit


@pytest.mark.parametrize(
    ("bounds", "overshoots", "expected"),
    [
        ([4.0, 3.0, 2.0, 1.0], False, False),
        ([1.0, 2.0, 3.0, 4.0], False, True),
        ([1.0, 2.0, 3.0], False, False),  # too early
        ([1.0, np.nan, np.nan, np.nan], False, True),
        ([np.nan, np.nan, np.nan, np.nan], False, True),
        ([np.nan, np.nan, np.nan, 1.0], False, False),
        ([1.0, 2.0, 3.0, 4.0], True, False),  # dual averaging, before its stiffness
    ],
)
def test_a_run_whose_bounds_no_longer_fall_ends(bounds, overshoots, expected):
    rows = [
        Row(t, {"certified": float(np.isfinite(bound)), "gap_upper": bound, "stiffness": 30.0}, {})
        for t, bound in zip((5, 10, 15, 20), bounds, strict=False)
    ]
    progress = SimpleNamespace(rows=tuple(rows), t=20, stiffness=30.0, certificate=object())
    settings = SimpleNamespace(until_certified=True)
    plan = SimpleNamespace(settings=settings, rule=SimpleNamespace(overshoots=overshoots))
    assert Run(plan, progress).stalled is expected
    later = SimpleNamespace(**vars(progress) | {"t": 21, "certificate": None})
    assert not Run(plan, later).stalled  # a run ends at a certificate, not between two of them
    settings.until_certified = False  # a run of a given length has that length
    assert not Run(plan, progress).stalled


def test_what_cannot_be_certified_has_a_fixed_length(small):
    fit = mfpda.fit(
        jax.random.key(0), small.model, mfpda.Stream(draw), batch_size=4, inner_steps=1, **FEW | {"particles": 10}
    )
    assert (fit.status, fit.outer_steps) == (Status.FINISHED, 60)


@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, "much"])
def test_odd_tolerances_are_refused(small, wrong):
    with pytest.raises(InputError, match="tolerance"):
        mfpda.fit(jax.random.key(0), small.model, small.data, tolerance=wrong, **FEW)


def test_without_certificates_a_run_needs_a_length(small):
    with pytest.raises(InputError, match="outer_steps for a run without certificates"):
        mfpda.fit(jax.random.key(0), small.model, small.data, certify_every=0, **FEW)
    with pytest.raises(InputError, match="certificates, to stop at a bound"):
        mfpda.fit(jax.random.key(0), small.model, small.data, certify_every=0, stop_at_gap=1.0, outer_steps=3, **FEW)


@functools.cache
def quadrature(name):
    plain = reference(name)
    return exact.Quadrature.of(plain.model, plain.data, plain.bounds, 301)


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [2, 50])
@pytest.mark.parametrize("name", ["tanh_squared", "sine_squared", "tanh_logistic"])
def test_defaults_are_certified_and_the_truth_is_below_the_bound(name, dimensions):
    """Five seeds. A bound at level 0.99 may be wrong once in these runs; twice has a probability of 1e-3."""
    ours, grid, wrong = reference(name, dimensions), quadrature(name), 0
    for seed in range(5):
        fit = mfpda.fit(jax.random.key(seed), ours.model, ours.data, progress=False)
        assert fit.status is Status.CERTIFIED
        g = np.asarray(fit.dual, float)
        law, _ = grid.gibbs(g / len(g))
        wrong += grid.fenchel_young(g, grid.predictions(law)) > fit.certificate.upper
        assert fit.certificate.share <= 0.05
    assert wrong <= 1


def test_two_runs_with_one_key_are_the_same(fit, small):
    same(mfpda.fit(jax.random.key(0), small.model, small.data, **FEW), fit)
