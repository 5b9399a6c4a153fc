"""What every registered kernel must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import InputError, sampling, tuning
from mfpda.kernels import KERNELS, Kernel
from tests.test_sampling import normal_potential


@pytest.fixture(params=list(KERNELS))
def kernel(request):
    return KERNELS[request.param]()


def test_it_fits_the_protocol_and_prints_as_itself(kernel):
    assert isinstance(kernel, Kernel)
    assert eval(repr(kernel), vars(mfpda)) == kernel


def test_numbers_are_leaves_and_change_without_compiling(kernel):
    potential, key = normal_potential(1.0, 2), jax.random.key(0)
    run = jax.jit(lambda *arguments: sampling.run(*arguments))
    for step_size in (0.01, 0.02):
        (numbers,) = tuning.plan(type(kernel)(step_size=step_size), 1)
        ensemble = sampling.begin(key, jnp.ones((5, 2)), potential, numbers)
        run(key, ensemble, potential, numbers, 3)
    assert jax.tree.leaves(numbers) == [pytest.approx(0.02)]
    assert run._cache_size() == 1


def test_states_have_theta_and_info_has_its_three_scalars(kernel):
    potential, key = normal_potential(1.0, 2), jax.random.key(0)
    (numbers,) = tuning.plan(type(kernel)(step_size=0.01), 1)
    state = numbers.refresh(numbers.init(key, jnp.ones(2), potential), potential)
    after, info = numbers.step(key, state, potential)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert after.theta.shape == (2,)
    assert info.energy.shape == info.acceptance.shape == info.diverging.shape == ()
    np.testing.assert_allclose(info.energy, potential(jnp.ones(2)), rtol=1e-6)
    assert not info.diverging


def test_auto_step_size_runs_and_does_not_diverge(kernel, small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **small.quick)
    assert fit.status is mfpda.Status.FINISHED
    assert all(row.stats["step_size"] > 0 for row in fit.rows)


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf"), "big"])
def test_a_step_size_must_be_positive(kernel, wrong):
    with pytest.raises(InputError, match="step"):
        type(kernel)(step_size=wrong)
