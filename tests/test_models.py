"""Every file in models/ runs; the circles are certified, and do what the paper's figure shows on its path."""

from pathlib import Path

import jax
import numpy as np
import pytest

import mfpda
from mfpda.cli import _module

pytestmark = pytest.mark.optimised

FILES = sorted((Path(__file__).parents[1] / "models").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_runs_at_a_small_size_and_draws(file):
    module = _module(str(file))
    arguments = module.settings | {"particles": 20, "outer_steps": 3, "inner_steps": 2, "progress": False}
    fit = mfpda.fit(jax.random.key(0), module.model, module.data(jax.random.key(1)), **arguments)
    assert fit.status is mfpda.Status.FINISHED
    assert module.figure(fit).axes


def test_the_fit_of_the_circles_is_certified_and_separates_them():
    circles = _module(str(next(file for file in FILES if file.stem == "circles")))
    data_key, fit_key = jax.random.split(jax.random.key(0))  # as the command line has them
    x, y = circles.data(data_key)
    fit = mfpda.fit(fit_key, circles.model, (x, y), progress=False, **circles.settings)
    assert fit.status is mfpda.Status.CERTIFIED
    assert fit.certificate.share <= 0.05
    assert np.mean(np.sign(fit.predict(x)) == y) == 1.0
    assert fit.rows[-1].stats["accuracy"] == 1.0
    titles = [axes.get_title() for axes in circles.figure(fit).axes]
    assert any("certified" in title for title in titles)


def test_circles_are_separated_by_neurons_that_left_the_origin_for_a_ring():
    circles = _module(str(FILES[0].parent / "paper" / "circles.py"))
    data_key, fit_key = jax.random.split(jax.random.key(0))
    x, y = circles.data(data_key)
    fit = mfpda.fit(fit_key, circles.model, (x, y), progress=False, **circles.settings)
    assert np.mean(np.sign(fit.predict(x)) == y) == 1.0
    w, b = np.asarray(fit.particles["w"]), np.asarray(fit.particles["b"])
    radius = np.linalg.norm(w, axis=1)
    on_ring = radius > 2
    assert np.linalg.norm(fit.progress.initial["w"], axis=1).max() < 0.5
    assert 0.4 < on_ring.mean() < 0.9
    assert np.mean((radius > 1.2) & (radius < 2)) < 0.05  # a gap between the ring and the centre
    angles = np.arctan2(w[on_ring, 1], w[on_ring, 0])
    assert (np.histogram(angles, 8, (-np.pi, np.pi))[0] > 0.04 * on_ring.sum()).all()
    assert np.mean(b[~on_ring]) < 0 < np.mean(b[on_ring])
