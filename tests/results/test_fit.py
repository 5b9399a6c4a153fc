"""What a Fit can do."""

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError, Model
from mfpda.results import Fit
from mfpda.results import fit as results_fit
from tests.helpers import begun, cells


@pytest.fixture
def fit(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, batch_size=10, **small.quick)


def test_predict_is_the_mean_of_the_neurons(fit, small):
    particles = {name: np.asarray(value) for name, value in fit.particles.items()}
    by_hand = np.mean(2 * np.tanh(small.x @ particles["w"].T + particles["b"]), axis=1)
    np.testing.assert_allclose(fit.predict(small.x), by_hand, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fit: fit.predict(np.ones(3)), "as in training"),
        (lambda fit: fit.sample(jax.random.key(0), 2.5), "num"),
        (lambda fit: fit.trace(jax.random.key(1), particles=31), "at most the run's 30 particles"),
    ],
    ids=["predict", "sample", "trace"],
)
def test_refusals(fit, call, message):
    with pytest.raises(InputError, match=message):
        call(fit)


def test_mini_batch_dual_is_the_average_of_each_examples_own_linearisations(small):
    """Three steps of batches of 10 of 40: thirty duals are averages, ten unseen ones are l'(z) now."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, batch_size=10, **(small.quick | {"outer_steps": 3}))
    mass = np.asarray(fit.rule.dual(fit.state.rule).mass)
    unseen = mass == 0
    assert unseen.sum() == 10
    now = np.asarray(fit.predict(small.x)) - small.data[1]
    np.testing.assert_allclose(np.asarray(fit.dual)[unseen], now[unseen], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fit.potential.coefficients, fit.dual / 40, rtol=1e-6)
    assert fit.potential.gamma == 1


def test_select_draws_outer_steps_in_proportion_to_t_plus_one(fit, small):
    """Algorithm 1's index runs over 2..T+1; chi-square over 2,000 draws at a false-failure rate of 1e-4."""
    drawn = np.array([fit.select(key).outer_step for key in jax.random.split(jax.random.key(0), 2000)])
    counts = np.bincount(drawn, minlength=9)[1:]
    expected = 2000 * 2 * np.arange(2, 10) / (8 * 11)
    assert expected.sum() == pytest.approx(2000)
    assert np.sum((counts - expected) ** 2 / expected) < 29.9  # the 1 - 1e-4 quantile of chi-square with 7 degrees
    flat = np.full(8, 250)
    assert np.sum((flat - expected) ** 2 / expected) > 29.9  # uniform draws would be seen
    chosen = fit.select(jax.random.key(1))
    row = fit.rows[chosen.outer_step - 1]
    by_hand = np.mean(2 * np.tanh(small.x @ row.particles["w"].T + row.particles["b"]), axis=1)
    np.testing.assert_allclose(chosen.predict(small.x), by_hand, rtol=1e-4, atol=1e-6)


def test_select_needs_a_whole_history(small):
    thin = mfpda.fit(jax.random.key(0), small.model, small.data, record=mfpda.Record(particles=3), **small.quick)
    with pytest.raises(InputError, match="every particle"):
        thin.select(jax.random.key(0))
    last = mfpda.fit(jax.random.key(0), small.model, small.data, record=mfpda.Record(every=100), **small.quick)
    assert last.select(jax.random.key(0)).outer_step == 8  # the last step is always recorded
    kernel = mfpda.ULA(step_size=1e30)
    none = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, throw=False, **small.quick)
    with pytest.raises(InputError, match="recorded outer step"):
        none.select(jax.random.key(0))


@pytest.mark.slow
def test_sample_gives_any_number_on_the_sites_supports():
    sites = {"s": dist.HalfNormal(2.0), "a": dist.Uniform(-1.0, 2.0).expand([3]).to_event(1)}
    h = lambda theta, x: jnp.tanh(theta["s"] * x) * theta["a"][0]  # noqa: E731
    model = Model.from_function(h, sites, mfpda.losses.Squared(), 0.05)
    x = np.linspace(-1, 1, 20)
    fit = mfpda.fit(jax.random.key(0), model, (x, x / 2), particles=20, outer_steps=5, inner_steps=5, progress=False)
    fresh = fit.sample(jax.random.key(1), 777)
    assert fresh["s"].shape == (777,)
    assert bool(jnp.all(fresh["s"] > 0))
    assert fresh["a"].shape == (777, 3)
    assert bool(jnp.all((fresh["a"] > -1) & (fresh["a"] < 2)))


def test_a_sample_that_is_none_says_so(fit, monkeypatch):
    monkeypatch.setattr("mfpda.sampling.tempering.SMALLEST_ACCEPTANCE", 1.1)
    with pytest.warns(mfpda.UnsoundSampleWarning, match="no sample of the fitted density"):
        fit.sample(jax.random.key(0), 10)


def test_saving_over_a_file_leaves_the_old_one_when_it_fails(fit, tmp_path, monkeypatch):
    path = tmp_path / "run.nc"
    fit.save(path)
    old = path.read_bytes()

    def fails(self, file, **_):
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("xarray.DataTree.to_netcdf", fails)
    with pytest.raises(OSError, match="disk full"):
        fit.save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_an_inner_trace_is_what_arviz_judges(small):
    """chain = particle, draw = inner step, sites with their dims; the step size tuned, then fixed."""
    settled = small.quick | {"particles": 100, "outer_steps": 100}  # past its stiffness, so that V changes little
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel="mala", **settled)
    trace = fit.trace(jax.random.key(1), draws=300, particles=5)
    assert dict(trace.sizes) == {"chain": 5, "draw": 300, "w_dim_0": 1}
    assert trace["b"].dims == ("chain", "draw")
    assert 0.4 < trace.attrs["acceptance_rate"] < 0.75
    assert trace.attrs["gradients_per_draw"] == 1
    assert trace.attrs["step_size"] == pytest.approx(fit.rows[-1].stats["step_size"], rel=0.5)
    assert float(arviz.rhat(trace)["b"]) < 1.2
    assert float(arviz.ess(trace)["b"]) > 50
    again = fit.trace(jax.random.key(1), draws=300, particles=5)
    np.testing.assert_array_equal(trace["w"], again["w"])
    with pytest.raises(InputError, match="at most the run's 100 particles"):
        fit.trace(jax.random.key(1), particles=101)


@pytest.mark.slow
def test_a_trace_stays_with_the_last_potential(small):
    """Long chains of another kernel have the moments of the last Gibbs density, by quadrature."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    coefficients, gamma = fit.state.coefficients
    quadrature = mfpda.exact.Quadrature.of(small.model, small.data, (-20, 20), 401)
    law, _ = quadrature.gibbs(np.asarray(coefficients, float), float(gamma))
    trace = fit.trace(jax.random.key(1), draws=4000, particles=20, kernel="numpyro:HMC")
    expected = law.probability @ np.abs(quadrature.thetas[:, 0])
    means = np.abs(np.asarray(trace["w"])[:, 100:, 0]).mean(axis=1)
    assert abs(means.mean() - expected) < 5 * means.std(ddof=1) / np.sqrt(len(means))
    assert trace.attrs["gradients_per_draw"] == 3
    assert trace.attrs["gamma"] == pytest.approx(8 / 10)


def test_predicting_many_rows_keeps_to_the_memory_budget(small, monkeypatch):
    """Blocks are chosen for the rows that are predicted, however few the examples of the run are."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, memory=0.001, **small.quick)
    rows, used, predict = np.zeros((100_000, 1)), [], results_fit.predictions
    monkeypatch.setattr(
        results_fit, "predictions", lambda problem, *rest: used.append(problem) or predict(problem, *rest)
    )
    assert fit.predict(rows).shape == (100_000,)
    assert not used[0].blocks.whole(len(rows))


# in a notebook


@pytest.mark.filterwarnings("ignore::mfpda.EarlierWasBetterWarning")  # dual averaging overshoots at first
@pytest.mark.parametrize("certify_every", [0, 4])
def test_a_notebook_shows_risk_gap_stiffness_and_what_to_do(small, certify_every):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, certify_every=certify_every, **small.quick)
    title, facts = cells(fit._repr_html_())
    stats = fit.rows[-1].stats
    assert (title, facts["status"], facts["particles"], facts["outer steps"]) == ("Fit", "finished", "30", "8")
    risk = fit.certificate.risk if certify_every else stats["risk"]  # of q_g, or of the particles
    assert facts["risk"] == f"{risk:.4g}"
    assert facts["stiffness"] == f"{max(row.stats['stiffness'] for row in fit.rows):.3g}"
    assert facts["next"] == fit.status.advice
    expected = "unknown: fit.certify(key) estimates it"
    if certify_every:
        expected = f"{stats['gap']:.3g} +- {stats['gap_stderr']:.2g}, at most {stats['gap_upper']:.3g}, at outer step 8"
    assert facts["gap"] == expected


def test_one_run_has_one_stiffness_wherever_it_is_printed(small, tmp_path):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick | {"outer_steps": 4})
    recorded = fit.groups["outer_stats"]["stiffness"].values.ravel()
    assert recorded.argmax() < len(recorded) - 1  # the largest is not the last
    assert fit.stiffness == recorded.max()
    fit.save(tmp_path / "run.nc")
    assert mfpda.load(tmp_path / "run.nc", small.model).stiffness == fit.stiffness
    judged = mfpda.verdict(jax.random.key(1), fit)
    shown = f"{fit.stiffness:.3g}"
    assert judged.certificate.stiffness == fit.stiffness
    assert f"Stiffness {shown}." in str(judged.certificate)
    assert f"below the stiffness of {shown}." in repr(judged)
    assert f"The stiffness is {shown}." in mfpda.summary(fit)
    assert f"before its stiffness of {shown}:" in mfpda.summary(fit)
    assert {cells(each._repr_html_())[1]["stiffness"] for each in (fit, judged, judged.certificate)} == {shown}


def test_a_run_without_records_has_no_stiffness(small):
    begun_fit = Fit(begun(small.model, *small.data), mfpda.Status.INTERRUPTED)
    assert np.isnan(begun_fit.stiffness)
    facts = cells(begun_fit._repr_html_())[1]
    assert (facts["risk"], facts["stiffness"], facts["outer steps"]) == ("unknown", "unknown", "0")
