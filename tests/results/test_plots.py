"""Figures say what they show: axes, labels, colours that mean the outer step."""

from types import SimpleNamespace

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import mfpda
from mfpda import InputError
from mfpda.results import plots


@pytest.fixture
def fit(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)


def test_trajectories_are_coloured_by_outer_step(fit):
    groups = fit.groups | {"prior": fit.groups["posterior"]}  # the figure begins at the first particles
    ax = plots.trajectories(SimpleNamespace(groups=groups), [("w", 0), ("b", None)])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("w[0]", "b")
    dots = ax.collections[0]
    assert len(dots.get_offsets()) == 30 * 9
    np.testing.assert_array_equal(np.unique(dots.get_array()), np.arange(9))
    np.testing.assert_allclose(dots.get_offsets()[:30, 1], fit.progress.initial["b"], rtol=1e-6)
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


STEPS = np.arange(1, 9)


@pytest.fixture
def certified(fit):
    """The fit as it were if every second step had been certified: an invented gap of 0.4 / t^1.5."""
    gap = np.where(STEPS % 2 == 0, 0.4 / STEPS**1.5, np.nan)
    return with_stats(fit, gap)


def with_stats(fit, gap, stderr=0.1):
    """A container of the fit's groups with an invented certificate in outer_stats: L* = 1, and L(q_g) in the middle."""
    gap = np.atleast_2d(gap)
    numbers = {
        "gap": gap,
        "gap_stderr": stderr * gap,
        "gap_upper": (1 + 3 * stderr) * gap,
        "objective": 1 + 0.5 * gap,
        "objective_stderr": 0.5 * stderr * gap,
        "dual_value": 1 - 0.5 * gap,
    }
    stats = xr.Dataset(
        {name: (("chain", "outer_step"), value) for name, value in numbers.items()},
        {"chain": np.arange(len(gap)), "outer_step": STEPS},
    )
    return SimpleNamespace(groups=fit.groups | {"outer_stats": stats})


def with_predictions(fit, predictions):
    dims = ("chain", "anchor", "output")[: np.ndim(predictions)]
    constant = fit.groups["constant_data"].drop_vars("predictions", errors="ignore")
    if len(predictions) > 1:
        constant = constant.reindex(chain=np.arange(len(predictions)), method="nearest")
    return SimpleNamespace(groups=fit.groups | {"constant_data": constant.assign(predictions=(dims, predictions))})


def without_predictions(fit):
    constant = fit.groups["constant_data"].drop_vars("predictions", errors="ignore")
    return SimpleNamespace(groups=fit.groups | {"constant_data": constant})


def labelled(ax):
    """Legend label to what it stands for."""
    return dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))


def band(collection):
    """The step, the lower and the upper edge of a band."""
    corners = collection.get_paths()[0].vertices
    steps = np.unique(corners[:, 0])
    edges = [corners[corners[:, 0] == t, 1] for t in steps]
    return steps, np.array([edge.min() for edge in edges]), np.array([edge.max() for edge in edges])


def test_gap_draws_certified_steps_with_error_bound_and_guides(certified):
    ax = plots.gap(certified)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("outer step", "duality gap, L(q_g) - D(g)")
    drawn = labelled(ax)
    assert list(drawn) == ["gap", "one standard error", "upper bound", "1/t", "1/t^2"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(drawn)
    steps, gap = drawn["gap"].get_data()
    np.testing.assert_array_equal(steps, [2, 4, 6, 8])
    np.testing.assert_allclose(gap, 0.4 / steps**1.5)
    assert drawn["gap"].get_marker() == "."
    at, lower, upper = band(drawn["one standard error"])
    np.testing.assert_array_equal(at, steps)
    np.testing.assert_allclose([lower, upper], [0.9 * gap, 1.1 * gap])
    np.testing.assert_allclose(drawn["upper bound"].get_ydata(), 1.3 * gap)
    assert drawn["upper bound"].get_linestyle() == "--"
    for label, power in (("1/t", 1), ("1/t^2", 2)):
        t, guide = drawn[label].get_data()
        np.testing.assert_allclose(guide, gap[0] * (2 / t) ** power)
        assert (t[0], t[-1]) == (2, 8)


def test_gap_of_zero_stands_at_the_foot_of_a_log_axis(fit):
    gap = np.full(8, np.nan)
    gap[[1, 3, 5, 7]] = 0.1, 0.0, 1e-3, 1e-4
    container = with_stats(fit, gap, stderr=1.5)  # all of them within one standard error of 0
    stats = container.groups["outer_stats"]
    container.groups["outer_stats"] = stats.assign(gap_upper=stats["gap_upper"] + 0.01)
    ax = plots.gap(container)
    drawn = labelled(ax)
    np.testing.assert_allclose(drawn["gap"].get_ydata(), [0.1, np.nan, 1e-3, 1e-4])
    np.testing.assert_allclose(drawn["not above 0"].get_data(), [[4], [1e-5]])
    _, lower, upper = band(drawn["one standard error"])
    np.testing.assert_allclose(lower, 1e-5)
    np.testing.assert_allclose(upper, [0.25, 1e-5, 2.5e-3, 2.5e-4])
    assert 1e-6 < ax.get_ylim()[0] < 1e-5


def test_guides_do_not_stretch_the_axis(fit):
    ax = plots.gap(with_stats(fit, np.full(8, 0.5)))
    assert labelled(ax)["1/t^2"].get_ydata().min() >= 0.05
    assert ax.get_ylim()[0] > 0.04


def test_guides_begin_at_the_first_positive_gap(fit):
    drawn = labelled(plots.gap(with_stats(fit, np.r_[0.0, 0.0, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1])))
    t, guide = drawn["1/t"].get_data()
    np.testing.assert_allclose(guide, 0.3 * 3 / t)


@pytest.mark.parametrize("gap", [np.zeros(8), np.r_[[np.nan] * 7, 0.1]], ids=["all zero", "one step"])
def test_gap_without_guides(fit, gap):
    ax = plots.gap(with_stats(fit, gap))
    assert not {"1/t", "1/t^2"} & set(labelled(ax))
    ax.figure.canvas.draw()


def test_gap_draws_a_line_per_certified_run(fit):
    gaps = [0.4 / STEPS, np.full(8, np.nan), np.where(STEPS < 5, 0.2 / STEPS**2, np.nan)]
    ax = plots.gap(with_stats(fit, gaps))
    drawn = labelled(ax)
    assert list(drawn) == ["run 0", "run 2", "one standard error", "upper bound", "1/t", "1/t^2"]
    np.testing.assert_array_equal(drawn["run 2"].get_xdata(), [1, 2, 3, 4])
    np.testing.assert_allclose(drawn["run 0"].get_ydata(), gaps[0])
    assert drawn["run 0"].get_color() != drawn["run 2"].get_color()


def test_objective_is_the_excess_over_the_best_dual_value_of_the_run(certified):
    ax = plots.objective(certified)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("outer step", "L(q_g) - max D(g)")
    drawn = labelled(ax)
    assert list(drawn) == ["objective", "one standard error", "1/t", "1/t^2"]
    steps, excess = drawn["objective"].get_data()
    gap = 0.4 / steps**1.5
    np.testing.assert_allclose(excess, 0.5 * gap + 0.5 * gap[-1])
    assert excess[-1] == pytest.approx(gap[-1])
    _, lower, upper = band(drawn["one standard error"])
    np.testing.assert_allclose([lower, upper], [excess - 0.05 * gap, excess + 0.05 * gap])
    t, guide = drawn["1/t^2"].get_data()
    np.testing.assert_allclose(guide, excess[0] * (2 / t) ** 2)


def test_a_dual_value_of_a_refused_certificate_is_no_bound(certified):
    before = labelled(plots.objective(certified))["objective"].get_ydata()
    stats = certified.groups["outer_stats"]
    certified.groups["outer_stats"] = stats.assign(dual_value=stats["dual_value"].fillna(5.0))
    np.testing.assert_array_equal(labelled(plots.objective(certified))["objective"].get_ydata(), before)


@pytest.mark.parametrize("draw", [plots.gap, plots.objective])
@pytest.mark.parametrize("certified", [lambda fit: fit.idata, lambda fit: with_stats(fit, np.full(8, np.nan))])
def test_a_run_that_was_not_certified(fit, draw, certified):
    """None was asked for, or none has a number."""
    run = certified(fit)
    with pytest.raises(InputError, match=r"certified outer steps, found none.*certify_every=10"):
        draw(run)
    assert not plt.get_fignums()


def test_function_is_a_line_through_the_sorted_anchors(fit, small):
    x, y = small.data
    shuffled = np.random.default_rng(0).permutation(len(x))
    fit = mfpda.fit(jax.random.key(0), small.model, (x[shuffled], y[shuffled]), **small.quick)
    ax = plots.function(with_predictions(fit, np.cos(3 * x[shuffled].T)))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["data", "fit"]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), x[:, 0], rtol=1e-6)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.cos(3 * x[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(ax.collections[0].get_offsets(), np.column_stack([x[:, 0], y]), rtol=1e-6)


def test_function_of_a_fit_is_its_predictions(fit, small):
    ax = plots.function(fit.idata)
    np.testing.assert_allclose(labelled(ax)["fit"].get_ydata(), fit.predict(small.x), rtol=1e-6)


def test_function_draws_predict_and_truth_on_a_grid(fit):
    ax = plots.function(fit.idata, predict=fit.predict, truth=lambda x: np.sin(x[:, 0]))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["data", "truth", "fit"]
    drawn = labelled(ax)
    x, y = drawn["fit"].get_data()
    np.testing.assert_allclose([x[0], x[-1], len(x)], [-2, 2, 200])
    np.testing.assert_allclose(y, fit.predict(x[:, None]), rtol=1e-6)
    np.testing.assert_allclose(drawn["truth"].get_ydata(), np.sin(x))


def test_function_of_several_runs(fit):
    z = np.stack([np.arange(40.0), -np.arange(40.0)])
    ax = plots.function(with_predictions(fit, z))
    drawn = labelled(ax)
    assert list(drawn) == ["data", "run 0", "run 1"]
    np.testing.assert_array_equal(drawn["run 1"].get_ydata(), z[1])
    assert len(drawn["data"].get_offsets()) == 40  # once, though both runs have them


def test_function_of_runs_on_streams_of_unequal_length():
    x = np.random.default_rng(0).normal(size=(2, 15, 1))
    x[0, 10:] = np.nan  # as stacking fills them
    constant = {"x": (("chain", "anchor", "x_dim_0"), x), "predictions": (("chain", "anchor"), 3 * x[..., 0])}
    observed = xr.Dataset({"y": (("chain", "anchor"), -x[..., 0])})
    ax = plots.function(SimpleNamespace(groups={"constant_data": xr.Dataset(constant), "observed_data": observed}))
    assert [len(line.get_xdata()) for line in ax.lines] == [10, 15]
    for line in ax.lines:
        np.testing.assert_allclose(line.get_ydata(), 3 * line.get_xdata())
    dots = ax.collections[0].get_offsets()
    assert len(dots) == 25
    np.testing.assert_array_equal(dots[:, 1], -dots[:, 0])


def test_function_thins_many_data():
    x = np.linspace(0, 1, 1201)
    constant = xr.Dataset({"x": ("anchor", x), "predictions": (("chain", "anchor"), x[None])}, {"chain": [0]})
    groups = {"constant_data": constant, "observed_data": xr.Dataset({"y": ("anchor", x**2)})}
    ax = plots.function(SimpleNamespace(groups=groups))
    dots = ax.collections[0].get_offsets()
    assert len(dots) == 500
    assert (dots[0, 0], dots[-1, 0]) == (0, 1)
    assert len(ax.lines[0].get_xdata()) == 1201


def test_function_of_one_output_among_several(fit):
    z = np.stack([np.arange(40.0), -np.arange(40.0)], axis=-1)[None]
    run = with_predictions(fit, z)
    np.testing.assert_array_equal(plots.function(run, output=1).lines[0].get_ydata(), z[0, :, 1])
    ax = plots.function(run, output=1, predict=lambda x: np.column_stack([x, 2 * x]))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 2 * ax.lines[0].get_xdata())


@pytest.mark.parametrize("wrong", [None, 2])
def test_function_of_no_output_among_several(fit, wrong):
    run = with_predictions(fit, np.zeros((1, 40, 2)))
    with pytest.raises(InputError, match=rf"one of 2 outputs, found output={wrong}.*output=0"):
        plots.function(run, output=wrong)


def test_function_without_predictions(fit):
    with pytest.raises(InputError, match=r"\"predictions\" in constant_data.*predict=fit\.predict"):
        plots.function(without_predictions(fit))


@pytest.fixture
def plane():
    """A run on 100 points of the plane, with predictions x1 - x2."""
    x = np.random.default_rng(0).uniform([-1, -0.5], [1, 1.5], (100, 2))
    z = x[:, 0] - x[:, 1]
    constant = {"x": (("anchor", "x_dim_0"), x), "predictions": (("chain", "anchor"), np.stack([z, z + 5]))}
    groups = {
        "constant_data": xr.Dataset(constant, {"chain": [0, 1]}),
        "observed_data": xr.Dataset({"y": ("anchor", np.sign(z))}),
    }
    return SimpleNamespace(groups=groups, x=x, z=z)


def difference(x):
    return np.asarray(x)[:, 0] - np.asarray(x)[:, 1]


@pytest.mark.parametrize("predict", [None, difference], ids=["anchors", "grid"])
def test_surface_shows_predictions_boundary_and_data(plane, predict):
    ax = plots.surface(plane, predict=predict)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x1", "x2")
    assert ax.figure.axes[-1].get_ylabel() == "E[h(theta, x)]"
    filled, boundary, dots = ax.collections
    assert filled.get_cmap().name == "RdBu"
    assert filled.norm.vcenter == 0
    np.testing.assert_array_equal(boundary.levels, [0])
    corners = np.concatenate([path.vertices for path in boundary.get_paths()])
    np.testing.assert_allclose(corners[:, 0], corners[:, 1], atol=1e-9)  # where x1 - x2 = 0
    assert matplotlib.colors.to_hex(boundary.get_edgecolor()[0]) == "#000000"
    np.testing.assert_array_equal(dots.get_offsets(), plane.x)
    np.testing.assert_array_equal(dots.get_array(), np.sign(plane.z))
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    assert left < plane.x[:, 0].min() < plane.x[:, 0].max() < right
    assert low < plane.x[:, 1].min() < plane.x[:, 1].max() < high
    reached = np.concatenate([path.vertices for path in filled.get_paths()])
    reach = (left, right) if predict else (plane.x[:, 0].min(), plane.x[:, 0].max())
    np.testing.assert_allclose([reached[:, 0].min(), reached[:, 0].max()], reach)


def test_surface_of_another_run_without_a_boundary(plane):
    filled, *rest = plots.surface(plane, chain=1).collections
    assert filled.zmin > 2
    assert len(rest) == 1  # the data: nowhere is it 0


def with_constants(plane, change):
    """A run whose constant data are those of the plane, changed."""
    return SimpleNamespace(groups={"constant_data": change(plane.groups["constant_data"])})


UNDRAWABLE = {
    "a line": (
        lambda plane, fit: plots.surface(fit.idata, predict=fit.predict),
        r"two dimensions, found shape \(40, 1\).*plots\.function",
    ),
    "a plane as a line": (
        lambda plane, fit: plots.function(plane),
        r"one dimension, found shape \(100, 2\).*plots\.surface",
    ),
    "two outputs": (
        lambda plane, fit: plots.surface(plane, predict=lambda x: x),
        r"one of 2 outputs.*predict=lambda",
    ),
    "no predictions": (
        lambda plane, fit: plots.surface(with_constants(plane, lambda constant: constant.drop_vars("predictions"))),
        r"predict=fit\.predict",
    ),
    "anchors on a line": (
        lambda plane, fit: plots.surface(with_constants(plane, lambda c: c.assign(x=c["x"] * [1, 0]))),
        r"span a plane, found 100 that do not.*predict=fit\.predict",
    ),
    "no anchors": (
        lambda plane, fit: plots.surface(with_constants(plane, lambda constant: constant.isel(anchor=slice(0)))),
        "no anchors",
    ),
}


@pytest.mark.parametrize(("draw", "message"), UNDRAWABLE.values(), ids=UNDRAWABLE)
def test_surface_of_what_it_cannot_draw(plane, fit, draw, message):
    with pytest.raises(InputError, match=message):
        draw(plane, fit)
    assert not plt.get_fignums()


def test_surface_without_data_to_show():
    x = np.random.default_rng(0).normal(size=(30, 2))
    constant = xr.Dataset({"x": (("anchor", "x_dim_0"), x)}, {"chain": [0]})
    ax = plots.surface(SimpleNamespace(groups={"constant_data": constant}), predict=difference)
    assert len(ax.collections) == 2


def test_alignment_draws_a_line_per_singular_vector_averaged_over_runs():
    values = np.random.default_rng(0).uniform(size=(2, 4, 3))
    coords = {"chain": [0, 1], "outer_step": [0, 1, 5, 9], "vector": [1, 2, 3]}
    ax = plots.alignment(xr.DataArray(values, coords, ("chain", "outer_step", "vector")))
    drawn = labelled(ax)
    assert list(drawn) == ["1st singular vector", "2nd singular vector", "3rd singular vector"]
    for k, line in enumerate(drawn.values()):
        np.testing.assert_array_equal(line.get_xdata(), [0, 1, 5, 9])
        np.testing.assert_allclose(line.get_ydata(), values[:, :, k].mean(axis=0))
    brightness = [sum(matplotlib.colors.to_rgb(line.get_color())) for line in drawn.values()]
    assert brightness == sorted(brightness, reverse=True)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("outer step", "|cosine| with the direction")
    assert ax.get_ylim() == (0, 1)


def test_alignment_counts_in_words():
    coords = {"chain": [0], "outer_step": [0], "vector": np.arange(1, 24)}
    ax = plots.alignment(xr.DataArray(np.zeros((1, 1, 23)), coords, ("chain", "outer_step", "vector")))
    ordinals = [label.split()[0] for label in labelled(ax)]
    assert [ordinals[k - 1] for k in (4, 11, 12, 13, 21, 22, 23)] == [
        "4th", "11th", "12th", "13th", "21st", "22nd", "23rd",
    ]  # fmt: skip


def test_alignment_of_something_else(fit):
    with pytest.raises(InputError, match=r"dims chain, outer_step and vector.*features\.alignment"):
        plots.alignment(fit.idata)


@pytest.mark.parametrize("draw", [plots.gap, plots.objective])
def test_figures_take_axes(certified, draw):
    figure, ax = plt.subplots()
    assert draw(certified, ax=ax) is ax
    assert plt.get_fignums() == [figure.number]


def test_a_band_is_the_mean_and_one_standard_error_over_seeds():
    numbers = [[1.0, 3.0], [2.0, 6.0], [np.nan, np.nan], [1.0, np.inf]]
    values = xr.DataArray(numbers, {"t": [1, 10, 20, 30]}, dims=("t", "seed"))
    ax = plots.band(values, label="risk")
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xydata(), [[1, 2], [10, 4]])  # not a step that no seed has, nor an infinite one
    corners = ax.collections[0].get_paths()[0].vertices
    assert {(1.0, 1.0), (1.0, 3.0), (10.0, 2.0), (10.0, 6.0)} <= {tuple(corner) for corner in corners.round(6)}
    with pytest.raises(InputError, match="over 'seed' and one other dimension"):
        plots.band(values.expand_dims(power=[1, 2]))
