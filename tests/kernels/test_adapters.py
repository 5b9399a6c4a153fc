import sys

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import infer

import mfpda
from mfpda import FromBlackJAX, FromNumPyro, InputError, Temper, sampling
from mfpda.cli import main
from mfpda.kernels import KERNELS
from tests.helpers import normal_potential


def test_an_object_and_its_name_are_one_kernel():
    assert FromBlackJAX(blackjax.hmc, num_integration_steps=7) == FromBlackJAX("hmc", num_integration_steps=7)
    assert FromNumPyro(infer.NUTS) == FromNumPyro("NUTS") == KERNELS.resolve("numpyro:NUTS")
    assert KERNELS.name_of(FromBlackJAX(blackjax.nuts)) == "blackjax:nuts"
    assert FromBlackJAX(blackjax.barker) == FromBlackJAX("barker") == KERNELS.resolve("blackjax:barker_proposal")
    assert FromBlackJAX("hmc", inverse_mass_matrix=[1.0, 2.0]).settings["inverse_mass_matrix"].shape == (2,)


def test_a_kernel_without_a_step_size_runs(small):
    walk = blackjax.mcmc.random_walk.normal(0.1 * jnp.ones(2))
    kernel = FromBlackJAX(blackjax.additive_step_random_walk, random_step=walk)
    settings = small.quick | {"outer_steps": 2, "rule": "dual_averaging"}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **settings)
    assert np.isnan(fit.rows[-1].stats["step_size"])


@pytest.mark.parametrize(("kernel", "advice"), [(infer.NUTS, "FromNumPyro"), (blackjax.hmc, "FromBlackJAX")])
def test_a_librarys_own_kernel_is_to_be_wrapped(kernel, advice, small):
    with pytest.raises(InputError, match=rf"Wrap it: mfpda\.{advice}"):
        mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **small.quick)


def test_numbers_are_leaves_and_counts_are_not():
    kernel = FromBlackJAX("hmc", step_size=0.1, inverse_mass_matrix=np.ones(2), num_integration_steps=3)
    assert len(jax.tree.leaves(kernel)) == 2
    assert jax.tree.map(lambda leaf: 2 * leaf, kernel).settings["num_integration_steps"] == 3


@pytest.mark.parametrize(
    "kernel",
    [
        FromBlackJAX("hmc", num_integration_steps=1),
        FromBlackJAX("dynamic_hmc"),
        FromNumPyro("HMC", num_steps=1),
    ],
    ids=lambda kernel: kernel.name,
)
def test_the_step_size_is_the_one_that_is_given(kernel):
    """One leapfrog step moves a particle at rest at the minimum by about its step size (times a unit momentum).

    NumPyro's HMC would otherwise divide its default trajectory length by the number of steps.
    """
    potential, key = normal_potential(1.0, 2), jax.random.key(0)
    lengths = []
    for step_size in (0.01, 0.02):
        numbers = type(kernel)(kernel.algorithm, step_size=step_size, settings=kernel.settings)
        ensemble = sampling.begin(key, jnp.zeros((500, 2)), potential, numbers)
        after, _, _ = jax.jit(sampling.run)(key, ensemble, potential, numbers, 1)
        lengths.append(float(jnp.sqrt(jnp.mean(jnp.square(after.theta)))))
    assert lengths[1] / lengths[0] == pytest.approx(2, rel=0.02)
    assert 0.005 < lengths[0] < 0.1


def test_the_momentum_of_ghmc_survives_a_new_potential():
    kernel, key = FromBlackJAX("ghmc", step_size=0.1), jax.random.key(0)
    old, new = normal_potential(1.0, 2), normal_potential(3.0, 2)
    state = kernel.init(key, jnp.ones(2), old)
    for theta in (jnp.ones(2), jnp.array([0.3, -2.0])):
        fresh = kernel.refresh(jax.random.key(1), state, theta, new)
        np.testing.assert_array_equal(fresh.theta, theta)
        np.testing.assert_array_equal(fresh.inner.momentum, state.inner.momentum)
        np.testing.assert_allclose(fresh.inner.logdensity, -new(theta), rtol=1e-6)
        np.testing.assert_allclose(fresh.inner.logdensity_grad, -theta / 9, rtol=1e-6)
        assert fresh.inner.logdensity != state.inner.logdensity


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FromBlackJAX("nosuch"), "an MCMC algorithm of blackjax, found 'nosuch'.*'mala', 'hmc'"),
        (lambda: FromBlackJAX("hmc", steps=3), "settings of blackjax:hmc .*'num_integration_steps'.*, found 'steps'"),
        (lambda: FromBlackJAX("elliptical_slice"), "every setting of blackjax:elliptical_slice, found no 'cov_matrix'"),
        (lambda: FromNumPyro("hmc"), "an MCMC algorithm of numpyro, found 'hmc'. Did you mean 'HMC'"),
        (lambda: FromBlackJAX("HMC"), "Did you mean 'hmc'"),
        (lambda: FromBlackJAX("mclmc", L=1.0), "a number as step_size of blackjax:mclmc"),
        (lambda: FromBlackJAX("hmc", num_integration_steps=0), "at least 1 as num_integration_steps"),
        (lambda: FromNumPyro("HMC", trajectory_length=1.0), "settings of numpyro:HMC .*, found 'trajectory_length'"),
        (lambda: FromNumPyro("SA"), "potential_fn and step_size, found SA"),
        (
            lambda: FromNumPyro("NUTS", adapt_step_size=True),
            "settings of numpyro:NUTS .*, found 'adapt_step_size'.*mfpda tunes",
        ),
        (lambda: FromNumPyro("NUTS", max_tree_depth={3}), "hashable"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_without_blackjax_its_names_say_what_to_install(monkeypatch, capsys, small):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(InputError, match=r"the package blackjax.*pip install 'mfpda\[blackjax\]'"):
        mfpda.fit(jax.random.key(0), small.model, small.data, kernel="blackjax:hmc", **small.quick)
    assert main(["kernels"]) == 0
    printed = capsys.readouterr().out
    assert "mala" in printed
    assert "pip install" in printed


@pytest.mark.parametrize(
    ("kernel", "start"),
    [
        (FromBlackJAX("hmc", num_integration_steps=2, inverse_mass_matrix=np.array([1.0, 2.0])), mfpda.Warm()),
        pytest.param(FromBlackJAX("ghmc"), mfpda.Warm(), marks=pytest.mark.slow),
        pytest.param(
            FromNumPyro("BarkerMH"), Temper(kernel=FromNumPyro("HMC", num_steps=2), moves=2), marks=pytest.mark.slow
        ),
    ],
    ids=["hmc", "ghmc", "barker"],
)
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(kernel, start, small, tmp_path):
    """Whole, and stopped, saved, loaded and resumed: the same bits, tuned step size and momentum included."""
    arguments = small.quick | {"rule": "dual_averaging", "kernel": kernel, "start": start}
    whole = mfpda.fit(jax.random.key(0), small.model, small.data, **arguments)
    half = mfpda.fit(jax.random.key(0), small.model, small.data, **(arguments | {"outer_steps": 4}))
    half.save(tmp_path / "half.nc")
    loaded = mfpda.load(tmp_path / "half.nc", small.model)
    assert KERNELS.name_of(loaded.kernel) == KERNELS.name_of(kernel)
    assert repr(loaded.start) == repr(start)
    resumed = mfpda.fit(jax.random.key(0), small.model, small.data, **arguments, resume=loaded)
    np.testing.assert_array_equal(resumed.thetas, whole.thetas)
    assert resumed.rows[-1].stats["step_size"] == whole.rows[-1].stats["step_size"]


def test_a_setting_that_is_code_is_asked_for_again(small, tmp_path):
    kernel = FromBlackJAX("hmc", num_integration_steps=2, integrator=blackjax.mcmc.integrators.mclachlan)
    settings = small.quick | {"outer_steps": 1, "rule": "dual_averaging"}
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, kernel=kernel, **settings)
    fit.save(tmp_path / "run.nc")
    with pytest.raises(InputError, match=r"'integrator' that is your own code.*kernel=\.\.\."):
        mfpda.load(tmp_path / "run.nc", small.model)
    assert mfpda.load(tmp_path / "run.nc", small.model, kernel=kernel).outer_steps == 1
