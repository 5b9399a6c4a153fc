"""What every start must do, as checks of any start object, yours too:

    from tests.starts.conformance import CHECKS
    for check in CHECKS:
        check(MyStart())

A check raises an AssertionError where the start fails it. The old potential is once the prior, as in a run's first
step, and once not.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import mfpda
from mfpda.progress.record import OUTER_STATS
from mfpda.rules import RULES
from mfpda.sampling.tempering import Tempering
from mfpda.starts import Moved, move
from tests.kernels.conformance import MODEL, begin, draw_prior, energies, potential_of

PARTICLES = 6
KERNELS = {
    "mala": mfpda.MALA(step_size=0.05),
    "blackjax:hmc": mfpda.FromBlackJAX("hmc", step_size=0.05),
    "underdamped": mfpda.Underdamped(step_size=0.05, friction=1.0),
}


def potentials():
    """Old and new: a run's first step, and a later one."""
    new = potential_of(MODEL, seed=3, gamma=1.0)
    return [(new.problem.prior_potential(), new), (potential_of(MODEL), new)]


@functools.cache
def called():
    """A start, compiled as the engine does it: an argument, and one function, so that its cache counts compilations."""
    return jax.jit(lambda start, key, thetas, old, new: start(key, thetas, old, new))


class Answered(mfpda.Start):
    """A start that gives the answer of another, so that ``move`` is compiled once for all starts."""

    answer: Moved
    fresh: bool = dataclasses.field(metadata={"static": True})

    @property
    def draws_fresh(self):
        return self.fresh

    def __call__(self, key, thetas, old, new):
        return self.answer


@functools.cache
def mover():
    """``move``, compiled. With its cache cleared, it is traced again."""
    return jax.jit(lambda *arguments: move(*arguments))


@jax.jit
def gradients(potential, thetas):
    return jax.vmap(jax.grad(potential))(thetas)


def particles(new):
    return draw_prior(jax.random.key(5), PARTICLES, new.problem)


def check_it_is_frozen_data_and_a_pytree(start):
    """It cannot be changed, prints as itself, and what JAX takes apart it puts together again."""
    assert isinstance(start, mfpda.Start)
    name = next(iter(start.settings_by_name), "anything")
    try:
        setattr(start, name, 1.0)
        raise AssertionError(f"{name} of {start!r} could be set")
    except dataclasses.FrozenInstanceError:
        pass
    leaves, structure = jax.tree.flatten(start)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is type(start)
    assert eval(repr(again), vars(mfpda) | {type(start).__name__: type(start)}) == start
    assert hash(structure) == hash(jax.tree.structure(again))
    assert all(jnp.issubdtype(jnp.result_type(leaf), jnp.number) for leaf in leaves)


def check_it_serves_a_plain_model(start):
    start.check(MODEL)
    assert isinstance(start.tempering, Tempering)


def check_positions(start):
    """As many as there were, of the same type, and finite."""
    for old, new in potentials():
        thetas = particles(new)
        moved = called()(start, jax.random.key(1), thetas, old, new)
        assert isinstance(moved, Moved)
        assert (moved.thetas.shape, moved.thetas.dtype) == (thetas.shape, thetas.dtype)
        assert np.all(np.isfinite(moved.thetas))


def check_parents(start):
    """None, or the place of a particle for every particle."""
    for old, new in potentials():
        parents = called()(start, jax.random.key(1), particles(new), old, new).parents
        if parents is not None:
            assert parents.shape == (PARTICLES,)
            assert jnp.issubdtype(parents.dtype, jnp.integer)
            assert np.all((np.asarray(parents) >= 0) & (np.asarray(parents) < PARTICLES))


def check_stats(start):
    """Scalar numbers under names that no rule and no run uses, or one would hide the other in ``outer_stats``."""
    taken = set(OUTER_STATS).union(*(rule.stats(rule.init(3, ())) for rule in (each() for each in RULES.values())))
    for old, new in potentials():
        moved = called()(start, jax.random.key(1), particles(new), old, new)
        for name, value in {**moved.stats, "gradients": moved.gradients}.items():
            assert isinstance(name, str)
            assert jnp.shape(value) == ()
            assert jnp.result_type(value).kind in "biuf"
        assert float(moved.gradients) >= 0
        assert not taken & set(moved.stats)


def check_the_key_decides(start):
    """The same key leads to the same bits. With another one, a start that draws afresh shares no particle."""
    old, new = potentials()[1]
    first, again, other = (
        np.asarray(called()(start, jax.random.key(seed), particles(new), old, new).thetas) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    if start.draws_fresh:
        assert not set(map(tuple, first)) & set(map(tuple, other))
        assert not set(map(tuple, first)) & set(map(tuple, np.asarray(particles(new))))


def check_nothing_compiles_again(start):
    """Other potentials, other numbers of the start: one compilation."""
    call = jax.jit(lambda *arguments: called()(*arguments))
    nearby = jax.tree.map(lambda leaf: leaf + 1 if isinstance(leaf, int) else 0.9 * leaf, start)
    for each, seed in ((start, 0), (nearby, 4)):
        old, new = potential_of(MODEL, seed=seed, gamma=0.5), potential_of(MODEL, seed=seed + 1, gamma=0.8)
        call(each, jax.random.key(seed), particles(new), old, new)
    assert call._cache_size() == 1


def check_float64(start):
    with jax.enable_x64(True):
        for old, new in potentials():
            thetas = particles(new)
            moved = jax.eval_shape(called(), start, jax.random.key(1), thetas, old, new)
            assert moved.thetas.dtype == thetas.dtype == jnp.float64


def check_what_a_kernel_keeps(start):
    """After ``move`` a state is at the start's position, and what it has of V is V's there, under the new potential."""
    for name, kernel in KERNELS.items():
        for old, new in potentials():
            before = begin(jax.random.key(0), particles(new), old, kernel)
            moved = called()(start, jax.random.key(1), before.theta, old, new)
            after, _ = mover()(jax.random.key(1), Answered(moved, start.draws_fresh), before, old, new, kernel)
            described = [jax.tree.map(lambda part: (part.shape, part.dtype), tree) for tree in (before, after)]
            assert described[0] == described[1]
            np.testing.assert_array_equal(after.theta, moved.thetas)
            if name == "mala":
                kept = after.energy, after.gradient
            elif name == "blackjax:hmc":
                kept = -after.inner.logdensity, -after.inner.logdensity_grad
            else:
                check_momenta(start, before, after, moved)
                continue
            np.testing.assert_allclose(kept[0], energies(new, moved.thetas), rtol=1e-5)
            np.testing.assert_allclose(kept[1], gradients(new, moved.thetas), rtol=1e-4, atol=1e-5)


def check_momenta(start, before, after, moved):
    """A particle has its parent's velocity, or a new one if it is new."""
    parents = np.arange(PARTICLES) if moved.parents is None else np.asarray(moved.parents)
    inherited = np.asarray(before.velocity)[parents]
    if start.draws_fresh:
        assert np.all(np.asarray(after.velocity) != inherited)
        assert np.all(np.isfinite(after.velocity))
    else:
        np.testing.assert_array_equal(after.velocity, inherited)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_") and name != "check_momenta"]
