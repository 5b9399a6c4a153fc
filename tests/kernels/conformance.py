"""What every kernel must do, as checks of any kernel object, yours too:

    from tests.kernels.conformance import CHECKS
    for check in CHECKS:
        check(MyKernel())

A check raises an AssertionError where the kernel fails it. Numbers are put in place of "auto".
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda import sampling
from mfpda.kernels.base import Auto, step_size_of
from mfpda.kernels.base import with_step_size as replaced
from mfpda.problem.problem import Problem
from mfpda.sampling import tuning

PARTICLES = 5
SITES = {
    "w": dist.Normal(0, 1).expand([2]).to_event(1),
    "b": dist.Normal(0, 1),
    "scale": dist.LogNormal(0, 0.3),
}


def _output(theta, x):
    return jnp.tanh(x @ theta["w"] + theta["b"]) * jnp.minimum(theta["scale"], 3.0)


def _broken_output(theta, x):
    return jnp.sqrt(1 - theta["b"]) * _output(theta, x)


MODEL = mfpda.Model.from_function(_output, SITES, mfpda.losses.Squared(), 0.1)
BROKEN = mfpda.Model.from_function(_broken_output, SITES, mfpda.losses.Squared(), 0.1)


def potential_of(model, seed=0, gamma=0.7):
    anchors = np.random.default_rng(1).standard_normal((6, 2))
    coefficients = 0.05 * np.random.default_rng(seed).standard_normal(6)
    return Problem.of(model, jnp.asarray(anchors, float)).potential(jnp.asarray(coefficients, float), gamma)


def with_step_size(kernel, step_size=0.05):
    """The kernel with numbers in place of "auto", and this step size if it has one."""
    if step_size_of(kernel) is not None:
        kernel = replaced(kernel, step_size)
    if any(isinstance(value, Auto) for value in kernel.settings_by_name.values()):
        kernel = kernel.around(jnp.full(4, 0.1), jnp.full(4, 0.9)).tuned(jnp.ones(()))
    return tuning.plan(kernel, 1)[0]


@functools.cache
def stepper():
    """Every particle's step, compiled; one function, so that its cache counts compilations."""
    return jax.jit(lambda keys, states, potential, kernel: jax.vmap(kernel.step, (0, 0, None))(keys, states, potential))


draw_prior = jax.jit(sampling.draw_prior, static_argnums=1)
begin, refresh = jax.jit(sampling.begin), jax.jit(sampling.refresh)
energies = jax.jit(lambda potential, thetas: jax.vmap(potential)(thetas))


def begun(kernel, potential, seed=0):
    key = jax.random.key(seed)
    thetas = draw_prior(key, PARTICLES, potential.problem)
    return jax.random.split(key, PARTICLES), begin(key, thetas, potential, kernel)


def check_it_is_frozen_data_and_a_pytree(kernel):
    """It cannot be changed, and what JAX takes apart it puts together again; numbers are leaves, "auto" is not."""
    assert isinstance(kernel, mfpda.Kernel)
    name = next(iter(kernel.settings_by_name), "anything")
    try:
        setattr(kernel, name, 1.0)
        raise AssertionError(f"{name} of {kernel!r} could be set")
    except dataclasses.FrozenInstanceError:
        pass
    leaves, structure = jax.tree.flatten(kernel)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is type(kernel)
    assert repr(again) == repr(kernel)
    assert all(jnp.issubdtype(jnp.result_type(leaf), jnp.number) for leaf in jax.tree.leaves(with_step_size(kernel)))
    assert not any(isinstance(leaf, str) for leaf in leaves)
    assert hash(structure) == hash(jax.tree.structure(again))


def check_the_key_decides(kernel):
    """The same keys lead to the same bits, and others elsewhere, unless nothing is drawn."""
    kernel, potential = with_step_size(kernel), potential_of(MODEL)
    keys, states = begun(kernel, potential)
    first, again, other = (
        np.asarray(stepper()(each, states, potential, kernel)[0].theta)
        for each in (keys, keys, jax.random.split(jax.random.key(9), PARTICLES))
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other) == kernel.samples


def check_shapes(kernel):
    """One particle: init, refresh and step keep structure, shapes and types; info is scalars, energy V before it."""
    kernel, potential = with_step_size(kernel), potential_of(MODEL)
    theta = jnp.linspace(-0.5, 0.5, 4)
    state = jax.eval_shape(kernel.init, jax.random.key(0), theta, potential)
    fresh = jax.eval_shape(kernel.refresh, jax.random.key(2), state, theta, potential)
    after, info = jax.eval_shape(kernel.step, jax.random.key(1), fresh, potential)
    assert after.theta.shape == theta.shape
    described = [jax.tree.map(lambda part: (part.shape, part.dtype), tree) for tree in (state, fresh, after)]
    assert described[0] == described[1] == described[2]
    assert info.energy.shape == info.acceptance.shape == info.diverging.shape == ()
    assert info.diverging.dtype == bool


def check_energy_and_acceptance(kernel):
    kernel, potential = with_step_size(kernel), potential_of(MODEL)
    keys, states = begun(kernel, potential)
    _, info = stepper()(keys, states, potential, kernel)
    np.testing.assert_allclose(info.energy, energies(potential, states.theta), rtol=1e-5)
    assert np.all((np.asarray(info.acceptance) >= 0) & (np.asarray(info.acceptance) <= 1 + 1e-6))
    assert not np.any(info.diverging)


def check_refresh_follows_the_potential(kernel):
    """A refreshed state steps as one begun at its place under the new potential, whether or not it was moved there.

    The key is the one it was begun with, so that momenta are the same, kept or drawn again.
    """
    kernel, old, new = with_step_size(kernel), potential_of(MODEL), potential_of(MODEL, seed=3, gamma=1.0)
    keys, states = begun(kernel, old)
    for thetas in (states.theta, states.theta[::-1] + 0.3):
        refreshed = refresh(jax.random.key(0), states, thetas, new, kernel)
        np.testing.assert_array_equal(refreshed.theta, thetas)
        after, info = stepper()(keys, refreshed, new, kernel)
        np.testing.assert_allclose(info.energy, energies(new, thetas), rtol=1e-5)
        direct = stepper()(keys, begin(jax.random.key(0), thetas, new, kernel), new, kernel)[0]
        np.testing.assert_allclose(after.theta, direct.theta, rtol=1e-4, atol=1e-5)


def check_particles_are_independent(kernel):
    """Particles in another order come out in that order: none depends on its place or on the others."""
    kernel, potential = with_step_size(kernel), potential_of(MODEL)
    keys, states = begun(kernel, potential)
    order = jnp.asarray([3, 0, 4, 1, 2])
    after = stepper()(keys, states, potential, kernel)[0]
    moved = stepper()(keys[order], jax.tree.map(lambda part: part[order], states), potential, kernel)[0]
    np.testing.assert_allclose(moved.theta, after.theta[order], rtol=1e-5, atol=1e-6)


def check_nothing_compiles_again(kernel):
    """Other potentials, other step sizes, another temperature: one compilation."""
    step = jax.jit(lambda *arguments: stepper()(*arguments))
    for seed, step_size in ((0, 0.05), (3, 0.07)):
        numbers = with_step_size(kernel, step_size)
        potential = potential_of(MODEL, seed=seed, gamma=0.5 + 0.1 * seed)
        keys, states = begun(numbers, potential)
        step(keys, states, potential, numbers)
    assert step._cache_size() == 1


def check_float64(kernel):
    with jax.enable_x64(True):
        kernel, potential = with_step_size(kernel), potential_of(MODEL)
        keys, states = begun(kernel, potential)
        after, info = jax.eval_shape(stepper(), keys, states, potential, kernel)
        types = {part.dtype for part in jax.tree.leaves((states, after)) if jnp.issubdtype(part.dtype, jnp.floating)}
        assert types == {jnp.dtype("float64")}
        assert info.energy.dtype == info.acceptance.dtype == jnp.float64


def check_it_stays_finite(kernel):
    """Where V is not a number: theta stays finite and divergence is told; an adjusted kernel never goes there."""
    kernel, potential = with_step_size(kernel, 0.5), potential_of(BROKEN)
    keys, states = begun(kernel, potential)
    inside = states.theta.at[:, 2].set(0.9)  # b just below 1, where h and its gradient stop being numbers
    states = begin(jax.random.key(0), inside, potential, kernel)
    for k in range(12):
        states, info = stepper()(jax.vmap(jax.random.fold_in, (0, None))(keys, k), states, potential, kernel)
        assert np.all(np.isfinite(states.theta))
        assert np.all(np.isfinite(info.acceptance))
        if kernel.adjusted:
            assert np.all(np.isfinite(energies(potential, states.theta)))
    outside = begin(jax.random.key(0), inside.at[:, 2].set(50.0), potential, kernel)
    after, info = stepper()(keys, outside, potential, kernel)
    assert np.all(np.isfinite(after.theta))
    assert np.all(info.diverging)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
