import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpda.core.weights import ess_fraction, largest_step, systematic

pytestmark = pytest.mark.quick


def test_ess_fraction_by_hand():
    """Weights 1, 2, 3: (1 + 2 + 3)^2 / (3 (1 + 4 + 9)); whatever their common factor."""
    log_weights = jnp.log(jnp.array([1.0, 2.0, 3.0]))
    assert float(ess_fraction(log_weights)) == pytest.approx(36 / 42)
    assert float(ess_fraction(log_weights + 500)) == pytest.approx(36 / 42, rel=1e-4)
    assert float(ess_fraction(jnp.zeros(7))) == pytest.approx(1)
    assert float(ess_fraction(jnp.array([0.0, -jnp.inf, -jnp.inf, -jnp.inf]))) == pytest.approx(1 / 4)


def test_ess_fraction_of_nodes_with_mass():
    """E w = 0.2 + 0.8 * 3, E w^2 = 0.2 + 0.8 * 9; a node without mass does not count, however large its weight."""
    mass = jnp.array([0.2, 0.8, 0.0])
    log_weights = jnp.log(jnp.array([1.0, 3.0, 1e30]))
    assert float(ess_fraction(log_weights, mass)) == pytest.approx(2.6**2 / 7.4, rel=1e-5)
    assert float(ess_fraction(jnp.log(jnp.array([1.0, 3, 3, 3, 3])))) == pytest.approx(2.6**2 / 7.4, rel=1e-5)


def test_largest_step_leaves_exactly_the_share():
    """For rises N(0, 1) the share of exp(-s rise) is exp(-s^2): half of it at s = sqrt(log 2)."""
    nodes = np.linspace(-12, 12, 4001)
    with jax.enable_x64(True):
        mass = jnp.asarray(np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum())
        found = {share: largest_step(jnp.asarray(nodes), jnp.ones(()), share, mass) for share in (0.5, 0.9, 0.2)}
        assert float(found[0.5]) == pytest.approx(np.log(2) ** 0.5, rel=1e-8)
        assert float(found[0.9]) == pytest.approx(np.log(1 / 0.9) ** 0.5, rel=1e-8)
        assert float(found[0.2]) == 1  # no further than asked for
        assert float(ess_fraction(-found[0.5] * nodes, mass)) == pytest.approx(0.5, rel=1e-8)


def test_largest_step_with_particles_outside_the_support():
    """One of four is lost at any step: three quarters are left, and all of the way is open to the rest."""
    rise = jnp.array([0.0, jnp.inf, 0.0, 0.0])
    assert float(largest_step(rise, jnp.asarray(0.7), 0.5)) == pytest.approx(0.7)
    assert float(largest_step(rise, jnp.asarray(0.7), 0.8)) < 1e-6
    tilted = largest_step(jnp.array([0.0, jnp.inf, 1.0, 3.0]), jnp.asarray(10.0), 0.5)
    weights = np.exp(-float(tilted) * np.array([0.0, 1.0, 3.0]))
    assert weights.sum() ** 2 / (weights**2).sum() / 4 == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_systematic_takes_a_particle_as_often_as_its_weight_says(seed):
    """M w rounded down or up; in expectation M w."""
    log_weights = jax.random.normal(jax.random.key(seed), (200,)) * 2
    wanted = 200 * np.asarray(jax.nn.softmax(log_weights))
    keys = jax.random.split(jax.random.key(100 + seed), 400)
    chosen = np.asarray(jax.vmap(systematic, in_axes=(0, None))(keys, log_weights))
    counts = np.array([np.bincount(each, minlength=200) for each in chosen])
    assert (np.abs(counts - wanted) < 1 + 1e-3).all()
    error = counts.mean(0) - wanted
    # a fraction f is rounded up with chance f: a standard error of at most 0.5 / sqrt(400), here five of them
    assert np.abs(error).max() < 5 * 0.5 / 400**0.5
    assert np.sqrt(np.mean(error**2)) < 0.025


def test_systematic_never_takes_what_has_no_weight():
    log_weights = jnp.where(jnp.arange(50) % 3 == 0, -jnp.inf, 0.0)
    chosen = np.asarray(systematic(jax.random.key(0), log_weights))
    assert (chosen % 3 != 0).all()
    assert chosen.shape == (50,)
