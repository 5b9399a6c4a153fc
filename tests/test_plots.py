"""Figures say what they show: axes, labels, colours that mean the outer step."""

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import mfpda
from mfpda import InputError, plots


@pytest.fixture
def fit(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_trajectories_are_coloured_by_outer_step(fit):
    ax = plots.trajectories(fit.idata, [("w", 0), ("b", None)])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("w[0]", "b")
    dots = ax.collections[0]
    assert len(dots.get_offsets()) == 30 * 9
    np.testing.assert_array_equal(np.unique(dots.get_array()), np.arange(9))
    np.testing.assert_allclose(dots.get_offsets()[-30:, 1], fit.particles["b"], rtol=1e-6)
    first, last = dots.to_rgba([0.0, 8.0])
    assert last[:3].sum() > first[:3].sum()  # darker earlier, brighter later
    assert ax.figure.axes[-1].get_ylabel() == "outer step"


def test_trajectories_of_an_unknown_site(fit):
    with pytest.raises(InputError, match=r"recorded site.*'v'"):
        plots.trajectories(fit.idata, [("v", 0), ("b", None)])


@pytest.mark.parametrize(
    "wrong", [[("w", None), ("b", None)], [("w", 3), ("b", None)], ["w", "b"], [("b", 0), ("w", 0)]]
)
def test_coordinates_that_do_not_exist(fit, wrong):
    with pytest.raises(InputError, match=r"\(\"b\", None\)"):
        plots.trajectories(fit.idata, wrong)


def test_stat_draws_a_line_per_run(fit, small):
    other = mfpda.fit(jax.random.key(1), small.model, small.data, **small.quick)
    ax = plots.stat(mfpda.to_inference_data(fit, other))
    assert len(ax.lines) == 2
    assert (ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "outer step", "risk")
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [row.stats["risk"] for row in other.rows])
    with pytest.raises(InputError, match="recorded numbers"):
        plots.stat(fit.idata, "speed")


def test_function_draws_data_fit_and_truth(fit, small):
    ax = plots.function(fit.predict, *small.data, truth=lambda x: np.sin(x[:, 0]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["data", "truth", "fit"]
    x, y = ax.lines[1].get_data()
    np.testing.assert_allclose(y, fit.predict(x[:, None]), rtol=1e-6)
