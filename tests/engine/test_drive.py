"""The outer loop from outside: Ctrl-C, divergence, code that raises, the progress bar, how a run ends."""

import _thread
import signal
import threading

import jax
import numpy as np
import pytest

import mfpda
from mfpda import RunError, Status


def test_divergence_keeps_the_last_finite_state(small):
    kernel = mfpda.ULA(step_size=lambda t: 0.01 if t < 4 else 1e30)
    with pytest.raises(RunError, match=r"diverged after outer step 3.*smaller step_size") as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **small.quick)
    fit = caught.value.fit
    assert (fit.status, fit.outer_steps, len(fit.rows)) == (Status.DIVERGED, 3, 3)
    assert np.isfinite(fit.thetas).all()
    np.testing.assert_array_equal(fit.rows[-1].particles["b"], fit.particles["b"])
    quiet = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, throw=False, **small.quick)
    assert quiet.status is Status.DIVERGED
    np.testing.assert_array_equal(quiet.thetas, fit.thetas)


def test_a_metric_that_raises_loses_nothing(small):
    calls = []

    def metric(predict):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError("no more")
        return 0.0

    with pytest.raises(
        RunError, match=r"after outer step 3.*metric .mine. raised ZeroDivisionError: no more"
    ) as caught:
        mfpda.fit(jax.random.key(0), small.model, small.data, metrics={"mine": metric}, **small.quick)
    assert caught.value.fit.status is Status.FAILED
    assert len(caught.value.fit.rows) == 3


def test_control_c_returns_the_fit_so_far_which_resumes(small):
    """A real interrupt of the main thread in the middle of a run that would take minutes."""
    begun, done = threading.Event(), threading.Event()

    def metric(predict):
        begun.set()
        return 0.0

    def interrupt():  # again after a while: Python drops an exception that is raised inside a destructor
        begun.wait()
        while not done.is_set():
            _thread.interrupt_main()
            done.wait(3)

    thread = threading.Thread(target=interrupt)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job of the background it is ignored
    thread.start()
    arguments = small.quick | {"outer_steps": 100_000}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, metrics={"mine": metric}, **arguments)
    done.set()
    thread.join()
    signal.signal(signal.SIGINT, earlier)
    assert fit.status is Status.INTERRUPTED
    assert 0 <= fit.outer_steps < 100_000
    assert [row.outer_step for row in fit.rows] == list(range(1, fit.outer_steps + 1))
    more = fit.outer_steps + 2
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, **(arguments | {"outer_steps": more}), resume=fit)
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, **(arguments | {"outer_steps": more}))
    np.testing.assert_array_equal(resumed.thetas, whole.thetas)


def test_progress_shows_risk_step_acceptance_and_time_left(small, capsys):
    mfpda.fit(jax.random.key(0), small.model, small.data, kernel="mala", **(small.quick | {"progress": True}))
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("risk=", "step=", "accept=", "8/8", "<00:"))
    mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert capsys.readouterr().err == ""
