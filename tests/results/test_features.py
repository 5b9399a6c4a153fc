"""What neurons learn to look at, against eigenvectors computed another way."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

import mfpda
from mfpda import InputError
from mfpda.results import features

LENGTH, PARTICLES, STEPS = 6, 40, [2, 4, 8]
DIRECTION = np.array([1.0, -2.0, 0.5, 0.0, 3.0, 1.0])


def weights(rng, strength):
    """M x d: noise, and a strength times the direction with a random sign and size."""
    noise = rng.normal(size=(PARTICLES, LENGTH)) * np.linspace(1, 2, LENGTH)
    return noise + strength * rng.normal(size=(PARTICLES, 1)) * DIRECTION / np.linalg.norm(DIRECTION)


def run(initial, history):
    """ArviZ data of the weights of several runs: dims (chain, draw, feature), (chain, outer_step, draw, feature)."""
    groups = {
        "initial_particles": xr.Dataset(
            {"w": (("chain", "draw", "feature"), initial), "b": (("chain", "draw"), initial[..., 0])}
        ),
        "particle_history": xr.Dataset(
            {
                "w": (("chain", "outer_step", "draw", "feature"), history),
                "b": (("chain", "outer_step", "draw"), history[..., 0]),
                "matrix": (("chain", "outer_step", "draw", "row", "feature"), history[..., None, :]),
            },
            {"chain": np.arange(len(history)), "outer_step": STEPS},
        ),
    }
    return SimpleNamespace(groups=groups)


@pytest.fixture
def turning():
    """Two runs whose weights turn to the direction, more at every step."""
    rng = np.random.default_rng(0)
    prior = np.stack([weights(rng, 0.0) for _ in range(2)])
    history = np.stack([[weights(rng, strength) for strength in (2, 5, 20)] for _ in range(2)])
    return run(prior, history), np.concatenate([prior[:, None], history], axis=1)


def test_it_is_the_cosine_with_the_top_eigenvectors_of_the_second_moment(turning):
    data, every_step = turning
    found = features.alignment(data, "w", DIRECTION, top=3)
    assert found.dims == ("chain", "outer_step", "vector")
    np.testing.assert_array_equal(found["outer_step"], [0, *STEPS])
    np.testing.assert_array_equal(found["vector"], [1, 2, 3])
    for k in range(2):
        for s in range(4):
            matrix = every_step[k, s]
            vectors = np.linalg.eigh(matrix.T @ matrix)[1][:, ::-1]  # eigh's eigenvalues ascend
            expected = np.abs(vectors.T @ DIRECTION) / np.linalg.norm(DIRECTION)
            np.testing.assert_allclose(found[k, s], expected[:3], rtol=1e-9)
    assert (found.sel(outer_step=8, vector=1) > 0.98).all()
    assert (found.sel(outer_step=0) < 0.9).all()


def test_all_vectors_together_hold_the_whole_direction(turning):
    every = features.alignment(turning[0], "w", DIRECTION, top=LENGTH)
    np.testing.assert_allclose((every**2).sum("vector"), 1)


def test_sign_and_length_of_the_direction_do_not_matter(turning):
    found = features.alignment(turning[0], "w", DIRECTION)
    assert found.sizes["vector"] == 5
    np.testing.assert_allclose(features.alignment(turning[0], "w", -7 * DIRECTION), found)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


def test_the_mean_of_the_weights_counts():
    """A law that moved to the direction as a whole aligns with it: the matrix is not centred."""
    noise = 0.1 * np.random.default_rng(0).normal(size=(1, 3, PARTICLES, LENGTH))
    found = features.alignment(run(noise[:, 0], DIRECTION + noise), "w", DIRECTION, top=1)
    assert (found.sel(outer_step=STEPS) > 0.999).all()


def test_a_real_fit_with_a_thinned_history(small):
    record = mfpda.Record(every=3, particles=7)
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, record=record, **small.quick)
    found = features.alignment(fit.idata, "w", [2.0], top=1)
    np.testing.assert_array_equal(found["outer_step"], [0, 3, 6, 8])
    np.testing.assert_allclose(found, 1)  # in one dimension there is only one direction


def test_steps_that_a_run_lacks_are_nan(turning):
    data, _ = turning
    data.groups["particle_history"]["w"][1, 2] = np.nan  # as stacked runs of unequal length are filled
    found = features.alignment(data, "w", DIRECTION)
    np.testing.assert_array_equal(np.isnan(found).all("vector"), [[False] * 4, [False, False, False, True]])
    assert np.isnan(found).sum() == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"site": "b"}, r"a vector site, found 'b' of shape \(\)"),
        ({"site": "matrix"}, r"a vector site, found 'matrix' of shape \(1, 6\)"),
        ({"site": "v"}, r"recorded site \('w', 'b', 'matrix'\), found 'v'"),
        ({"direction": np.ones(5)}, r"direction of 6 finite numbers.*found shape \(5,\)"),
        ({"direction": np.ones((6, 1))}, r"found shape \(6, 1\)"),
        ({"direction": np.zeros(6)}, r"not all 0, found \[0\.0"),
        ({"direction": [np.nan] * 6}, r"finite numbers.*nan"),
        ({"top": 7}, r"top of at most 6, found 7, for 40 recorded particles of length 6"),
        ({"top": 0}, r"at least 1 as top, found 0"),
    ],
)
def test_refusals(turning, arguments, message):
    with pytest.raises(InputError, match=message):
        features.alignment(turning[0], **{"site": "w", "direction": DIRECTION} | arguments)


def test_top_is_at_most_the_number_of_particles(turning):
    data, _ = turning
    few = {name: group.isel(draw=slice(3)) for name, group in data.groups.items()}
    assert features.alignment(SimpleNamespace(groups=few), "w", DIRECTION).sizes["vector"] == 3
    with pytest.raises(InputError, match="top of at most 3, found 4, for 3 recorded particles"):
        features.alignment(SimpleNamespace(groups=few), "w", DIRECTION, top=4)
