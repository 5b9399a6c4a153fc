import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpda.kernels.base import Evaluated, metropolis

pytestmark = pytest.mark.quick


def accepted(before, after, correction=0.0):
    """Whether the proposal was taken, its acceptance and whether it diverged, for energies before and after."""
    old, new = (
        Evaluated(jnp.full(2, place), jnp.asarray(energy), jnp.zeros(2))
        for place, energy in ((0.0, before), (1.0, after))
    )
    state, info = metropolis(jax.random.key(0), jnp.asarray(correction), old, new)
    return bool(state.theta[0] == 1), float(info.acceptance), bool(info.diverging)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_rejected_and_counted(bad):
    assert accepted(1.0, bad) == (False, 0.0, True)
    assert accepted(1.0, 0.5, correction=bad) == (False, 0.0, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_particle_leaves_a_place_where_the_energy_is_not_finite(bad):
    assert accepted(bad, 3.0) == (True, 1.0, False)


def test_the_ratio():
    assert accepted(1.0, 0.0)[1] == 1.0
    np.testing.assert_allclose(accepted(1.0, 2.5, correction=0.5)[1], np.exp(-1.0), rtol=1e-6)
    np.testing.assert_allclose(accepted(1e8, 1e8, correction=-30.0)[1], np.exp(-30.0), rtol=1e-5)
