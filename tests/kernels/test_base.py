"""What a kernel has by default, and what its numbers may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import InputError, Kernel
from mfpda.kernels import AUTO, KernelInfo, Position
from mfpda.kernels.base import Auto, Evaluated, step_size_of, with_step_size
from mfpda.sampling import tuning
from tests.helpers import normal_potential

pytestmark = pytest.mark.quick

THETA = jnp.array([0.5, -1.0])


class Still(Kernel):
    """The least that is a kernel: it has no step size."""

    def init(self, key, theta, potential):
        return Position(theta)

    def step(self, key, state, potential):
        energy = potential(state.theta)
        return state, KernelInfo(energy, jnp.ones_like(energy), ~jnp.isfinite(energy), gradients=0)


class Stepping(Still):
    """With a step size, but without a way to choose it."""

    step_size: float = AUTO


class Adjusted(Stepping):
    """It keeps exp(-V) and has an acceptance to aim at."""

    adjusted = True
    target_acceptance = 0.5


class Untargeted(Stepping):
    """It keeps exp(-V), and has no acceptance to aim at."""

    adjusted = True


class Remembering(Kernel):
    """Its state holds V and grad V, and it has no ``refresh`` of its own."""

    def init(self, key, theta, potential):
        return Evaluated.at(theta, potential)


def test_defaults():
    kernel = Still()
    assert (kernel.adjusted, kernel.target_acceptance, kernel.samples) == (False, None, True)
    assert float(kernel.longest_step(jnp.ones(()))) == np.inf
    assert [type(each).samples for each in (mfpda.ULA(), mfpda.GradientDescent())] == [True, False]


@pytest.mark.parametrize("method", ["init", "step"])
def test_two_methods_must_be_defined(method):
    with pytest.raises(NotImplementedError):
        getattr(Kernel(), method)(jax.random.key(0), THETA, normal_potential(1.0, 2))


def test_refresh_begins_again_at_theta():
    """Whatever the state stores of V, it is the new V's at the new place."""
    old, new, kernel = normal_potential(1.0, 2), normal_potential(2.0, 2), Remembering()
    state = kernel.init(jax.random.key(0), jnp.ones(2), old)
    fresh = kernel.refresh(jax.random.key(1), state, THETA, new)
    begun = kernel.init(jax.random.key(1), THETA, new)
    for ours, theirs in zip(fresh, begun, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(fresh.gradient, THETA / 4, rtol=1e-6)
    assert fresh.energy != state.energy


def test_a_kernel_that_draws_in_init_draws_again_by_the_key_of_refresh():
    class Drawing(Still):
        def init(self, key, theta, potential):
            return Position(theta + jax.random.normal(key, theta.shape))

    potential, kernel = normal_potential(1.0, 2), Drawing()
    states = [kernel.refresh(jax.random.key(seed), Position(THETA), THETA, potential) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(states[0].theta, states[1].theta)
    assert np.all(states[0].theta != states[2].theta)


def test_thinning_is_the_potential_itself_by_default():
    potential = normal_potential(1.0, 2)
    thinned = Still().thinning(potential)
    assert thinned(jax.random.key(0)) is thinned(jax.random.key(1)) is potential


def test_an_adjusted_kernel_begins_at_the_root_of_the_curvature():
    assert float(Adjusted().tuned(jnp.asarray(4.0)).step_size) == 0.5


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Stepping(), r"a number as step_size of Stepping, found 'auto'\. Stepping defines no tuned\(curvature\)"),
        (Untargeted(), "a number as step_size of Untargeted, found 'auto'. Untargeted has no target_acceptance"),
    ],
    ids=["unadjusted", "untargeted"],
)
def test_auto_is_refused_where_nothing_can_choose(kernel, message):
    with pytest.raises(InputError, match=message):
        tuning.plan(kernel, 3)
    assert float(tuning.plan(with_step_size(kernel, 0.1), 3)[2].step_size) == pytest.approx(0.1)


def test_tuned_is_refused_for_an_unadjusted_kernel_that_does_not_define_it():
    with pytest.raises(InputError, match=r"Stepping defines no tuned\(curvature\) to choose one"):
        Stepping().tuned(jnp.ones(()))


def test_a_kernel_without_a_step_size_is_never_tuned():
    kernel, potential = Still(), normal_potential(1.0, 2)
    assert step_size_of(kernel) is None
    assert tuning.plan(kernel, 3) == [kernel] * 3
    assert np.isnan(tuning.recorded_step_size(kernel))
    assert tuning.tuned(jax.random.key(0), kernel, potential, jnp.ones((4, 2))) == (kernel, None)
    assert jax.tree.leaves(kernel) == []


def test_a_schedule_is_a_step_size_for_every_outer_step():
    sizes = [float(kernel.step_size) for kernel in tuning.plan(Stepping(mfpda.schedules.InverseSqrt(0.2)), 4)]
    np.testing.assert_allclose(sizes, [0.2, 0.2 / 2**0.5, 0.2 / 3**0.5, 0.1], rtol=1e-6)


def test_auto_is_a_word_and_no_leaf():
    """However it was spelt by the user, so that a kernel with it can be an argument of a compiled function."""
    for kernel in (Stepping(), Stepping("auto"), Adjusted(step_size="auto")):
        assert isinstance(kernel.step_size, Auto)
        assert jax.tree.leaves(kernel) == []
        assert repr(kernel) == f"{type(kernel).__name__}(step_size='auto')"
    assert jax.tree.leaves(Stepping(0.1)) == [0.1]
    assert jax.jit(lambda kernel: with_step_size(kernel, 2 * jnp.ones(())))(Stepping()).step_size == 2


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf"), np.float32(-1), None, True, "big"])
def test_a_step_size_of_a_users_kernel_must_be_positive(wrong):
    """Although its author did not ask for that."""
    with pytest.raises(InputError, match="step"):
        Stepping(step_size=wrong)


def test_towards_target_moves_the_step_size_by_the_error_of_the_acceptance():
    """log(step size) += gain min(1, M / 50) (acceptance - target), and no further than ``longest_step``."""
    kernel, thetas = Adjusted(0.2), jnp.ones((50, 2))
    for gain, particles in ((1.0, 50), (2.0, 100), (1.0, 10)):
        led = tuning.towards_target(kernel, jnp.full(particles, 0.8), thetas, gain)
        expected = 0.2 * np.exp(gain * min(1, particles / 50) * 0.3)
        assert float(led.step_size) == pytest.approx(expected, rel=1e-5)

    class Bounded(Adjusted):
        def longest_step(self, spread):
            return 0.1 * spread

    spread = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    assert float(tuning.towards_target(Bounded(0.2), jnp.ones(50), spread).step_size) == pytest.approx(0.1)
    huge = tuning.towards_target(Adjusted(1e12), jnp.ones(50), thetas)
    assert float(huge.step_size) == pytest.approx(1e12)
