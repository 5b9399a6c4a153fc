"""The state of a run: how it begins, and how it grows with the buffer of a stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.progress import current_potential, grown
from tests.helpers import begun

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def progress(small):
    return begun(small.model, *small.data, kernel=mfpda.MALA(0.1), batch_size=4)


def test_a_run_begins_at_the_prior(progress):
    state = progress.state
    assert state.ensemble.theta.shape == (5, 2)
    np.testing.assert_array_equal(state.coefficients.c, np.zeros(40))
    assert (float(state.coefficients.gamma), float(state.factor)) == (1.0, 1.0)
    np.testing.assert_array_equal(state.batch, np.arange(4))
    np.testing.assert_array_equal(state.stats.acceptance, np.ones(5))
    assert not np.any(state.stats.diverging)
    log_prior = jax.jit(jax.vmap(progress.problem.log_prior))
    np.testing.assert_allclose(state.ensemble.energy, -log_prior(state.ensemble.theta), rtol=1e-5)


def test_a_state_grows_with_zeros(progress):
    state = progress.state._replace(coefficients=progress.state.coefficients._replace(c=jnp.arange(40.0)))
    larger = grown(state, progress.rule, 64)
    np.testing.assert_array_equal(larger.coefficients.c, np.pad(np.arange(40.0), (0, 24)))
    assert larger.rule.mass.shape == larger.rule.weighted.shape == (64,)
    np.testing.assert_array_equal(larger.rule.mass, np.zeros(64))
    assert larger.ensemble is state.ensemble
    assert larger.batch is state.batch


def test_coefficients_of_a_batch_do_not_grow(small):
    run = begun(small.model, *small.data, rule=mfpda.Latest(), batch_size=4)
    larger = grown(run.state, run.rule, 64)
    assert larger.coefficients.c.shape == (4,)


@pytest.mark.parametrize(("rule", "places"), [(mfpda.Latest(), slice(0, 4)), (mfpda.DualAveraging(), slice(0, 40))])
def test_the_anchors_of_a_potential_are_those_of_the_rule(small, rule, places):
    run = begun(small.model, *small.data, rule=rule, batch_size=4)
    np.testing.assert_array_equal(current_potential(run.problem, rule, run.state).anchors, run.problem.x[places])
