"""What every registered start must do, and two that a user might write."""

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import mfpda
from mfpda import InputError, sampling
from mfpda.starts import STARTS, Moved, Start, move
from tests.helpers import slow_but
from tests.kernels.conformance import MODEL, potential_of
from tests.kernels.test_invariance import POTENTIAL as GUMBEL
from tests.starts import conformance
from tests.starts.conformance import CHECKS, KERNELS, check_what_a_kernel_keeps


class Jitter(Start):
    """A user's: a little noise for every particle."""

    scale: float = 0.01

    def __call__(self, key, thetas, old, new):
        return Moved(thetas + self.scale * jax.random.normal(key, thetas.shape, thetas.dtype))


class Downhill(Start):
    """A user's: every particle goes to the place of another and from there a little down the new potential."""

    rate: float = 0.1
    steps: int = field(default=2, metadata={"static": True})
    resamples = True

    def __call__(self, key, thetas, old, new):
        parents = jax.random.permutation(key, len(thetas))
        positions = thetas[parents]
        for _ in range(self.steps):
            positions = positions - self.rate * jax.vmap(jax.grad(new))(positions)
        lengths = jnp.linalg.norm(positions - thetas[parents], axis=1)
        return Moved(positions, parents, {"downhill": jnp.mean(lengths)}, self.steps)


OURS = {"jitter": Jitter, "downhill": Downhill}


@pytest.fixture(params=[*STARTS, *OURS], scope="module")
def start(request):
    return OURS[request.param]() if request.param in OURS else STARTS.resolve(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(start, check):
    check(start)


def test_no_two_starts_share_a_compiled_program():
    structures = [jax.tree.structure(make()) for make in (*STARTS.values(), *OURS.values())]
    assert len(set(structures)) == len(structures)


class TooFew(Start):
    def __call__(self, key, thetas, old, new):
        return Moved(thetas[1:])


class Bare(Start):
    def __call__(self, key, thetas, old, new):
        return thetas


@pytest.mark.parametrize(("wrong", "found"), [(TooFew(), r"shape \(5, 4\)"), (Bare(), "ArrayImpl")])
def test_what_is_not_a_position_for_every_particle_is_refused(wrong, found):
    potential = potential_of(MODEL)
    ensemble = sampling.begin(jax.random.key(0), jnp.zeros((6, 4)), potential, KERNELS["mala"])
    expected = rf"Moved\(thetas, ...\) with thetas of shape \(6, 4\) from {type(wrong).__name__}, found {found}"
    with pytest.raises(InputError, match=expected):
        move(jax.random.key(0), wrong, ensemble, potential, potential, KERNELS["mala"])


def test_a_start_without_a_call_says_so():
    with pytest.raises(NotImplementedError):
        Start()(jax.random.key(0), jnp.zeros((2, 1)), GUMBEL, GUMBEL)


class Shuffle(Start):
    """Particles change places and do not say so. A sample stays one of the same law, whatever the law."""

    def __call__(self, key, thetas, old, new):
        return Moved(jax.random.permutation(key, thetas))


@pytest.fixture
def stale(monkeypatch):
    """``move`` without its refresh: positions are put in, and nothing is computed again."""
    put = lambda key, ensemble, thetas, potential, kernel: ensemble._replace(theta=thetas)  # noqa: E731
    monkeypatch.setattr(sampling, "refresh", put)
    conformance.mover.cache_clear()
    yield
    conformance.mover.cache_clear()


def test_a_stale_gradient_is_seen_by_the_checks(stale, monkeypatch):
    monkeypatch.setattr(conformance, "KERNELS", {"mala": KERNELS["mala"]})
    with pytest.raises(AssertionError):
        check_what_a_kernel_keeps(Shuffle())


DRAWS, ROUNDS, FALSE_FAILURE_RATE = 50_000, 4, 1e-4


def p_values(start):
    """Kolmogorov-Smirnov p-values of both coordinates of a Gumbel law, after rounds of the start and a step of MALA.

    They begin as exact draws, and MALA's step is long: it accepts about half of its proposals.
    """
    kernel = mfpda.MALA(step_size=0.8)

    @jax.jit
    def rounds(key):
        draw_key, begin_key, key = jax.random.split(key, 3)
        ensemble = sampling.begin(begin_key, sampling.draw_prior(draw_key, DRAWS, GUMBEL.problem), GUMBEL, kernel)
        for k in range(ROUNDS):
            move_key, run_key = jax.random.split(jax.random.fold_in(key, k))
            ensemble, _ = move(move_key, start, ensemble, GUMBEL, GUMBEL, kernel)
            ensemble, stats, _ = sampling.run(run_key, ensemble, GUMBEL, kernel, 1)
        return ensemble.theta, jnp.mean(stats.acceptance)

    thetas, acceptance = rounds(jax.random.key(0))
    assert 0.3 < acceptance < 0.9
    return [scipy.stats.kstest(np.asarray(column, float), scipy.stats.gumbel_r.cdf).pvalue for column in thetas.T]


def test_a_start_that_moves_particles_leaves_their_law():
    """MALA's steps after it are right ones. False failures: 1e-4, for both coordinates together."""
    assert min(p_values(Shuffle())) > FALSE_FAILURE_RATE / 2


def test_with_stale_gradients_it_would_not(stale):
    assert max(p_values(Shuffle())) < FALSE_FAILURE_RATE


@pytest.mark.parametrize("name", slow_but(["mala"], ["mala", "blackjax:hmc"]))
def test_in_a_fit_nothing_is_stale_after_a_start_that_moves_particles(name, small):
    """What the ensemble keeps of V is V's at its places, under the last potential: rejected particles kept it."""
    fit = mfpda.fit(
        jax.random.key(0), small.model, small.data, rule="dual_averaging", kernel=name, start=Shuffle(), particles=60,
        outer_steps=2, inner_steps=1, progress=False,
    )  # fmt: skip
    ensemble = fit.state.ensemble
    kept = ensemble.energy if name == "mala" else -ensemble.inner.logdensity
    np.testing.assert_allclose(kept, jax.vmap(fit.last_potential)(fit.thetas), rtol=1e-4)
    assert 0.05 < fit.rows[-1].stats["acceptance_rate"] < 0.999
