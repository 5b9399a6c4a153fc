"""What a run does between its steps: new particles, or more where stop_at_gap asks for more than it has."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import sampling
from mfpda.engine import renewal
from mfpda.engine import run as running
from mfpda.rules import dual_newton
from tests.helpers import same

ARGUMENTS = {
    "rule": "dual_newton", "particles": 40, "outer_steps": 24, "inner_steps": 3, "certify_every": 12,
    "stop_at_gap": 1e-9, "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def widened(small, tmp_path_factory):
    """A run that is asked for far more than 40 particles can give, and its folder."""
    folder = tmp_path_factory.mktemp("widened") / "run"
    return mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=folder, **ARGUMENTS), folder


@pytest.mark.slow
def test_particles_double_when_the_gap_is_out_of_their_reach(widened, small):
    fit, _ = widened
    particles = [row.stats["particles"] for row in fit.rows]
    settled = [row.stats["settled"] for row in fit.rows]
    assert particles == [40] * 12 + [80] * 12
    assert settled[12] == pytest.approx(settled[11] / 2 + 1)  # one more, and what few were averaged over counts half
    assert len(fit.thetas) == fit.groups["posterior"].sizes["draw"] == 80
    gradients = [row.stats["gradients"] for row in fit.rows]
    assert gradients[11] == gradients[13] < gradients[12]  # the new ones were tempered
    assert len(np.unique(np.asarray(fit.thetas), axis=0)) > 75  # a rejected proposal may leave a copy
    assert fit.groups["particle_history"].sizes["draw"] == 40
    assert fit.select(jax.random.key(1)).predict(small.x).shape == (40,)


@pytest.mark.slow
def test_it_is_kept_and_goes_on_like_any_other(widened, small, tmp_path):
    """From a checkpoint before and one after the doubling, and from a saved file."""
    fit, folder = widened
    stopped = ARGUMENTS | {"outer_steps": 12, "stop_at_gap": None}
    before = mfpda.fit(jax.random.key(0), small.model, small.data, **stopped)
    with pytest.raises(mfpda.InputError, match="particles"):
        mfpda.fit(jax.random.key(0), small.model, small.data, resume=fit, **ARGUMENTS | {"particles": 80})
    on = ARGUMENTS | {"outer_steps": 26}
    fit.save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", small.model)
    from_file = mfpda.fit(jax.random.key(0), small.model, small.data, resume=loaded, **on)
    from_folder = mfpda.fit(jax.random.key(0), small.model, small.data, resume=folder, **on)
    same(from_file, from_folder)
    # what decides is recorded: a run that is resumed just before the doubling doubles too
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, resume=before, **ARGUMENTS)
    same(resumed, fit)


@pytest.mark.parametrize(
    ("settled", "left", "expected"),
    [
        (10, 8, True),  # 2e-3 becomes 2e-3 10/18 = 1.11e-3, and the certificate's own 5e-4 on top of it
        (10, 31, False),  # 2e-3 10/41 = 4.9e-4
        (10, 29, True),  # 2e-3 10/39 = 5.1e-4
        (4, 1, False),  # too early to tell
    ],
)
def test_more_are_needed_where_averaging_would_not_do(settled, left, expected):
    stats = {"gap": 2e-3, "gap_upper": 2.5e-3}
    assert renewal.out_of_reach(stats, settled, left, stop_at_gap=1e-3) is expected
    assert not renewal.out_of_reach(stats | {"gap": np.nan}, settled, left, stop_at_gap=1e-3)
    assert not renewal.out_of_reach({}, settled, left, stop_at_gap=1e-3)


@pytest.mark.slow
def test_a_run_interrupted_while_it_doubles_does_so_once(widened, small, tmp_path, monkeypatch):
    """Ctrl-C in the step after the new particles were drawn: none of them is kept, and the resumed run is the same."""
    fit, _ = widened
    folder, original = tmp_path / "run", running.outer_step

    def interrupted(key, t, state, *others, **more):
        if len(state.ensemble.theta) == 80:
            raise KeyboardInterrupt
        return original(key, t, state, *others, **more)

    monkeypatch.setattr(running, "outer_step", interrupted)
    stopped = mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=folder, **ARGUMENTS)
    assert (stopped.status, stopped.outer_steps, len(stopped.thetas)) == (mfpda.Status.INTERRUPTED, 12, 40)
    monkeypatch.undo()
    same(mfpda.fit(jax.random.key(0), small.model, small.data, resume=folder, **ARGUMENTS), fit)


@pytest.mark.slow
def test_rules_that_do_not_average_noise_keep_their_particles(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **ARGUMENTS | {"rule": "latest"})
    assert len(fit.thetas) == 40


RENEWING = {"rule": "dual_newton", "particles": 40, "outer_steps": 60, "inner_steps": 3, "progress": False}


@pytest.fixture(scope="module")
def renewed(small):
    """A run whose particles were drawn anew, and the steps that began with that."""
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **RENEWING)
    gradients = np.array([row.stats["gradients"] for row in fit.rows])
    return fit, 1 + np.flatnonzero(gradients > gradients.min())


def test_particles_are_drawn_anew_after_every_16_steps_of_an_average(renewed, small):
    fit, steps = renewed
    settled, age = (np.array([row.stats[name] for row in fit.rows]) for name in ("settled", "age"))
    assert len(steps) == 3
    assert settled[steps[0] - 2] == 16  # of the step before
    assert np.diff(steps).tolist() == [16, 16]
    assert (np.flatnonzero(age == 1) + 1).tolist() == [1, *steps]
    assert len(np.unique(fit.thetas, axis=0)) > 35  # a rejected proposal may leave a copy
    tempered = mfpda.fit(jax.random.key(0), small.model, small.data, start="temper", **RENEWING)
    assert len({row.stats["gradients"] - 6 * row.stats["temperatures"] for row in tempered.rows}) == 1


def test_a_resumed_run_draws_them_anew_at_the_same_step(renewed, small, tmp_path):
    fit, steps = renewed
    stopped = RENEWING | {"outer_steps": int(steps[0]) - 1}
    mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **stopped)
    before = mfpda.fit(jax.random.key(0), small.model, small.data, **stopped)
    for resumed in (before, tmp_path / "run"):
        same(mfpda.fit(jax.random.key(0), small.model, small.data, resume=resumed, **RENEWING), fit)


def test_old_particles_stay_where_tempering_fails(renewed, small):
    """Moves so long that none is accepted leave copies of a few: twice the old ones, then, and not these."""
    fit, _ = renewed
    plugs = fit.rule, fit.kernel, mfpda.Temper(kernel=mfpda.MALA(step_size=1e6))
    ensemble, _ = renewal.temper_again(jax.random.key(5), fit.problem, fit.state, *plugs, times=2)
    np.testing.assert_array_equal(ensemble.theta, np.tile(fit.thetas, (2, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("renews", [True, False])
def test_a_lost_mode_is_found_again(renews, monkeypatch):
    """Two modes that no step of MALA joins, and all particles put into one: only new ones see the other again."""
    if not renews:
        monkeypatch.setattr(dual_newton, "RENEW_EVERY", 10**6)
    modes = dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(jnp.array([-4.0, 4.0]), 0.5))
    h = lambda theta, x: jnp.tanh(theta["w"] * x)  # noqa: E731
    model = mfpda.Model.from_function(h, {"w": modes}, mfpda.losses.Squared(), 0.5)
    x = np.linspace(-1, 1, 20)
    data = x, 0.3 * np.tanh(4 * x)
    arguments = {"rule": "dual_newton", "particles": 500, "inner_steps": 3, "progress": False}
    fit = mfpda.fit(jax.random.key(0), model, data, outer_steps=10, **arguments)
    thetas = jnp.abs(fit.state.ensemble.theta)
    ensemble = sampling.begin(jax.random.key(1), thetas, fit.last_potential, fit.kernel)
    progress = dataclasses.replace(fit.progress, state=fit.state._replace(ensemble=ensemble))
    fit = dataclasses.replace(fit, progress=progress)
    fit = mfpda.fit(jax.random.key(0), model, data, outer_steps=60, resume=fit, **arguments)
    gap = fit.certify(jax.random.key(2), particles=4000).gap
    if renews:
        assert gap < 0.01
    else:
        assert gap > 0.1
