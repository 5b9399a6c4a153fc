"""A run after some outer step: its settings, its dual, the problem it is certified for, its potentials, its blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.problem import Blocks, blocks_within
from mfpda.progress import Settings
from mfpda.rules.base import Linearisations
from tests.helpers import begun

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def progress(small):
    return begun(small.model, *small.data)


@pytest.fixture(scope="module")
def stream(progress):
    """A stream of batches of 4, whose buffer has room for 10 of them."""
    settings = dataclasses.replace(progress.settings, batch_size=4)
    return dataclasses.replace(progress, is_stream=True, settings=settings)


def averaged(progress, weighted, mass, t):
    """The run after t steps, with these sums in its rule."""
    state = progress.state._replace(rule=Linearisations(jnp.asarray(weighted, float), jnp.asarray(mass, float)))
    return dataclasses.replace(progress, state=state, t=t)


def test_settings_are_frozen_and_compare_by_value(progress):
    settings = progress.settings
    assert settings == Settings(**dataclasses.asdict(settings))
    assert settings != dataclasses.replace(settings, particles=6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.particles = 6
    assert [field.name for field in dataclasses.fields(Settings)] == [
        "rule", "kernel", "start", "particles", "outer_steps", "inner_steps", "batch_size", "memory", "block_rows",
        "until_certified", "overshoots",
    ]  # fmt: skip


def test_a_progress_is_frozen(progress):
    with pytest.raises(dataclasses.FrozenInstanceError):
        progress.t = 3


def test_particles_are_those_of_the_state(progress):
    assert progress.thetas is progress.state.ensemble.theta
    assert progress.thetas.shape == (5, 2)


def test_examples_that_are_real(progress, stream):
    assert progress.seen == 40
    assert [dataclasses.replace(stream, t=t).seen for t in (0, 1, 3)] == [0, 4, 12]


def test_the_dual_is_the_rules_average(progress):
    weighted, mass = np.arange(40.0), np.full(40, 4.0)
    np.testing.assert_array_equal(averaged(progress, weighted, mass, 2).dual, weighted / 4)


def test_anchors_that_no_batch_held_have_the_present_derivative(progress, small):
    """l'(z, y) = z - y of the squared loss."""
    mass = np.where(np.arange(40) < 10, 2.0, 0.0)
    found = np.asarray(averaged(progress, np.where(mass > 0, 6.0, 0.0), mass, 1).dual)
    np.testing.assert_array_equal(found[:10], 3.0)
    w, b = np.asarray(progress.thetas).T
    z = np.mean(2 * np.tanh(small.x * w + b), axis=1)
    np.testing.assert_allclose(found[10:], (z - small.data[1])[10:], rtol=1e-4, atol=1e-5)


def test_a_data_set_is_certified_as_it_is(progress):
    assert averaged(progress, np.ones(40), np.ones(40), 2).certified_problem is progress.problem


def test_a_stream_is_certified_on_the_weights_of_its_average(stream):
    mass = np.repeat([1.0, 2.0, 0.0], [4, 4, 32])
    problem = averaged(stream, 3 * mass, mass, 2).certified_problem
    np.testing.assert_allclose(problem.weights, mass / 12, rtol=1e-6)
    assert problem.x is stream.problem.x


def test_the_potential_of_a_run_that_has_not_begun_is_the_prior(progress, stream):
    for run in (progress, stream):
        assert float(run.potential.gamma) == 1
        np.testing.assert_array_equal(run.potential.coefficients, np.zeros(40))


def test_the_potential_has_the_weighted_dual(progress):
    potential = averaged(progress, np.arange(40.0), np.full(40, 2.0), 3).potential
    np.testing.assert_allclose(potential.coefficients, np.arange(40.0) / 2 / 40, rtol=1e-6)
    assert float(potential.gamma) == 1
    assert len(potential.anchors) == 40


def test_the_potential_of_a_stream_has_its_real_anchors(stream):
    mass = np.repeat([1.0, 2.0, 0.0], [4, 4, 32])
    potential = averaged(stream, 3 * mass, mass, 2).potential
    assert len(potential.anchors) == 8
    np.testing.assert_allclose(potential.coefficients, 3 * mass[:8] / 12, rtol=1e-6)


def test_the_last_potential_is_what_the_particles_sampled(progress):
    coefficients = progress.state.coefficients._replace(c=jnp.arange(40.0), gamma=jnp.asarray(0.5))
    run = dataclasses.replace(progress, t=2, state=progress.state._replace(coefficients=coefficients))
    np.testing.assert_array_equal(run.last_potential.coefficients, np.arange(40.0))
    assert float(run.last_potential.gamma) == 0.5


def test_blocks_are_the_runs_own_unless_more_is_asked_for(progress):
    run = dataclasses.replace(progress, problem=progress.problem.in_blocks(Blocks(16)))
    assert run.blocks_for(5) == run.blocks_for(3, rows=40) == Blocks(16)
    few = dataclasses.replace(run, settings=dataclasses.replace(run.settings, memory=1e-4))
    neuron = run.problem.neuron
    assert few.blocks_for(50) == blocks_within(1e-4, neuron, 50).over(40)
    assert few.blocks_for(5, rows=10**4) == blocks_within(1e-4, neuron, 5).over(10**4)
    assert few.blocks_for(50).rows < few.blocks_for(5, rows=10**4).rows < 10**4
    assert run.blocks_for(50) == Blocks()  # with half a GiB all rows fit


def test_a_rule_on_batches_has_its_anchors(small):
    run = begun(small.model, *small.data, rule=mfpda.Latest(), batch_size=6)
    assert len(run.last_potential.anchors) == len(run.state.coefficients.c) == 6
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.all(jnp.isfinite(leaf))), run.state))
