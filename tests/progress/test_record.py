"""What a run records: which steps, which sites, how many particles."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfpda import InputError, Record
from mfpda.problem import Problem
from mfpda.progress import CERTIFICATE_STATS, OUTER_STATS, Row, recorded_steps

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("every", "certify_every", "ends", "after", "expected"),
    [
        (1, 0, [5], 0, [1, 2, 3, 4, 5]),
        (1, 0, [5], 3, [4, 5]),
        (1, 0, [5], 5, []),
        (3, 0, [7], 0, [3, 6, 7]),
        (3, 0, [6], 0, [3, 6]),
        (10, 0, [4], 0, [4]),
        (10, 4, [10], 0, [4, 8, 10]),
        (3, 4, [9], 0, [3, 4, 6, 8, 9]),
        (3, 0, [4, 7], 0, [3, 4, 6, 7]),  # a step that was once the last stays recorded
        (3, 0, [7, 4], 0, [3, 4, 6, 7]),
        (3, 0, [4, 7], 4, [6, 7]),
        (100, 0, [1, 2, 3], 0, [1, 2, 3]),
    ],
)
def test_recorded_steps(every, certify_every, ends, after, expected):
    assert recorded_steps(every, certify_every, ends, after) == expected


def test_a_longer_run_records_what_the_shorter_one_did():
    """So that a store that was made for fewer steps has its rows in the same places."""
    for every in (1, 2, 3, 7):
        for certify_every in (0, 4):
            short = recorded_steps(every, certify_every, [5])
            assert recorded_steps(every, certify_every, [5, 11])[: len(short)] == short


@pytest.mark.parametrize(
    ("match", "given"),
    [
        ("a whole number of at least 1 as Record.every, found 0", {"every": 0}),
        ("a whole number of at least 1 as Record.every, found 2.5", {"every": 2.5}),
        ("a whole number of at least 1 as Record.particles, found 0", {"particles": 0}),
        ("a whole number of at least 1 as Record.particles, found 'all'", {"particles": "all"}),
    ],
)
def test_wrong_counts_are_refused(match, given):
    with pytest.raises(InputError, match=match):
        Record(**given)


@pytest.fixture(scope="module")
def neuron(small):
    return Problem.of(small.model, jnp.asarray(small.x, float)).neuron


@pytest.mark.parametrize(
    ("sites", "expected"), [(None, ("w", "b")), (("b",), ("b",)), (["b", "w"], ("b", "w")), ((), ())]
)
def test_sites_are_all_or_those_named(neuron, sites, expected):
    assert Record(sites=sites).kept_sites(neuron) == expected


def test_unknown_sites_are_refused(neuron):
    with pytest.raises(InputError, match=r"sites of the neuron \('w', 'b'\) in Record, found 'v', 'u'"):
        Record(sites=("w", "v", "u")).kept_sites(neuron)


@pytest.mark.parametrize(("particles", "kept"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_the_first_particles_are_kept(particles, kept):
    values = {"w": jnp.arange(8.0).reshape(4, 2), "b": jnp.arange(4.0)}
    thinned = Record(particles=particles).thin(("b",), values)
    assert list(thinned) == ["b"]
    assert isinstance(thinned["b"], np.ndarray)
    np.testing.assert_array_equal(thinned["b"], np.arange(kept))


def test_names_of_numbers_are_told_apart():
    assert len({*OUTER_STATS, *CERTIFICATE_STATS}) == len(OUTER_STATS) + len(CERTIFICATE_STATS)
    assert Row(1, {}, {})._fields == ("outer_step", "stats", "particles")
