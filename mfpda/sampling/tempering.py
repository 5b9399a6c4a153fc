"""Tempering: exact draws of the prior annealed to a Gibbs potential (Del Moral, Doucet and Jasra 2006).

The potentials are V_beta = (1 - beta)(-log p0) + beta V, with beta from 0 to 1. At each new beta', particles are
weighted by exp(-(beta' - beta)(V + log p0)), resampled, and moved by a kernel that leaves exp(-V_beta') invariant.
Particles end in all modes in the right proportions, because they spread over the modes while these can still be
reached from the prior. The first particles are resampled from many draws of the prior, which need no gradient.

A pilot chooses each beta' as large as the weights allow (Jasra, Stephens, Doucet and Tsagaris 2011), but takes at least
20 steps: weights know nothing of a mode that no particle has found yet, and moves at small beta find it. It tunes the
kernel, and moves until the energies V + log p0 have forgotten where they began (Buchholz, Chopin and Jacob 2021). It
returns these choices as a ``Ladder``. A sample with a fixed ladder chooses nothing. Its estimate of the normaliser, and
the product of that estimate and a mean over its particles, are then unbiased.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from mfpda import sampling
from mfpda.core import check_share, ess_fraction, largest_step, positive_count, systematic
from mfpda.errors import InputError
from mfpda.kernels import HMC, KERNELS, Kernel, step_size_of, with_step_size
from mfpda.problem import GibbsPotential
from mfpda.registry import Plug
from mfpda.sampling import tuning

FEWEST_TEMPERED = 1000  # by default: too long a step in temperature can go unnoticed with fewer particles
SMALLEST_SHARE = 0.1  # the smallest effective sample size that is sound, divided by M
SMALLEST_ACCEPTANCE = 0.1  # the smallest mean acceptance that is sound: particles that do not move stay copies
MOST_TEMPERATURES = 300  # then the rest is one jump, and the effective sample size shows how large it was
POOL = 16  # draws of the prior per particle: they need no gradient
LONGEST_RUNG = 0.05  # of beta: after a longer step, a mode far out in the prior can be missed by all particles alike
FORGOTTEN = 0.1  # the correlation of energies with those before the moves at which a pilot stops moving


class TemperingStats(NamedTuple):
    """The scalars that describe one tempering."""

    temperatures: Array
    effective_sample_size: Array  # the smallest over the temperatures; 0 if no particle was in the support of exp(-V)
    log_normaliser: Array  # estimates log of the integral of exp(-V), for a prior with a normalised density
    acceptance: Array
    correlation: Array  # of energies before and after the moves, the largest over the temperatures
    gradients: Array

    def sound(self, particles: int) -> Array:
        """Whether a tempering of this many particles gave draws of exp(-V)."""
        enough = self.effective_sample_size >= SMALLEST_SHARE * particles
        return enough & (self.acceptance >= SMALLEST_ACCEPTANCE)


class Ladder(NamedTuple):
    """What a pilot chose at each of its ``rungs`` temperatures. A ladder without rungs leaves the choice open."""

    rungs: Array
    beta: Array
    moves: Array
    step_size: Array
    centre: Array
    spread: Array

    @classmethod
    def open(cls, dimensions: int) -> "Ladder":
        number, vector = jnp.zeros(MOST_TEMPERATURES), jnp.zeros((MOST_TEMPERATURES, dimensions))
        return cls(jnp.zeros((), int), number, number.astype(int), number, vector, vector)


class Tempered(NamedTuple):
    """Particles of exp(-V), how they were made, and the ladder that they went down.

    ``ancestors`` are the draws of the prior that the particles descend from.
    """

    thetas: Array
    ancestors: Array
    stats: TemperingStats
    ladder: Ladder


class Tempering(Plug):
    """How to temper: at most ``moves`` steps of ``kernel``, which must be adjusted, at every temperature.

    The effective sample size (sum w)^2 / sum w^2 falls to ``share`` M between one temperature and the next.
    """

    kernel: Kernel = HMC()
    moves: int = 30
    share: float = 0.5

    def __post_init__(self) -> None:
        kernel = KERNELS.resolve(self.kernel)
        if not kernel.adjusted:
            advice = "Use HMC() or MALA(), or an adapter such as FromBlackJAX(blackjax.hmc)."
            raise InputError("an adjusted kernel to temper with (it keeps exp(-V) invariant)", repr(kernel), advice)
        if callable(step_size_of(kernel)):
            advice = "Tempering has no outer step t for a schedule to follow."
            raise InputError('a number or "auto" as step_size of the kernel to temper with', "a schedule", advice)
        tuning.plan(kernel, 1)
        if isinstance(self.moves, (int, float)):  # otherwise a tracer, inside a compiled function
            positive_count(self.moves, "moves")
        check_share(self.share)
        object.__setattr__(self, "kernel", kernel)

    def sample(
        self, key: Array, potential: GibbsPotential, particles: int, ladder: Ladder | None = None, effort: int = 0
    ) -> Tempered:
        """Draw M flat thetas from the density exp(-V), by an open ladder or by the one of a pilot.

        With an open ladder, each ``effort`` doubles the moves at every temperature and the number of temperatures.
        """
        ladder = Ladder.open(potential.problem.neuron.size) if ladder is None else ladder
        return _temper(key, potential, self, particles, ladder, np.int32(2**effort))

    def last_kernel(self, ladder: Ladder) -> Kernel:
        """Return the kernel of the last rung of a ladder, which leaves exp(-V) invariant."""
        last = ladder.rungs - 1
        return with_step_size(self.kernel.around(ladder.centre[last], ladder.spread[last]), ladder.step_size[last])

    def replicates(self, key: Array, potential: GibbsPotential, particles: int, replicates: int) -> Tempered:
        """Draw independent samples by the ladder of one pilot. The first axis is over the samples."""
        pilot_key, *keys = jax.random.split(key, replicates + 1)
        pilot = self.sample(pilot_key, potential, particles)
        drawn = [self.sample(key, potential, particles, pilot.ladder) for key in keys]
        return jax.tree.map(lambda *parts: jnp.stack(parts), *drawn)


class _Rung(NamedTuple):
    """Particles weighted and resampled for one beta, before they are moved, and what is known so far."""

    number: Array
    beta: Array
    thetas: Array
    ancestors: Array
    centre: Array
    spread: Array
    step_size: Array
    stats: TemperingStats
    ladder: Ladder
    done: Array


@partial(jax.jit, static_argnames="particles")
def _temper(
    key: Array, potential: GibbsPotential, how: Tempering, particles: int, ladder: Ladder, hardness: Array
) -> Tempered:
    draw_key, choose_key, tune_key, loop_key = jax.random.split(key, 4)
    keys = sampling.particle_keys(draw_key, POOL * particles)
    prior = potential.tempered(jnp.zeros((), float))
    drawn = jax.vmap(potential.problem.draw_prior)(keys[:particles])
    kernel, retune = tuning.tuned(tune_key, how.kernel, prior, drawn)
    descent = _Descent(potential, prior, how, particles, ladder, hardness, kernel, retune)
    rung = jax.lax.while_loop(
        lambda rung: ~rung.done,
        lambda rung: descent.next_rung(jax.random.fold_in(loop_key, rung.number), rung),
        descent.first_rung(choose_key, keys),
    )
    stats = rung.stats._replace(acceptance=rung.stats.acceptance / rung.stats.temperatures)
    return Tempered(rung.thetas, rung.ancestors, stats, rung.ladder)


class _Descent(NamedTuple):
    """The way from the prior to exp(-V), with an open ladder (a pilot's) or a fixed one."""

    potential: GibbsPotential
    prior: GibbsPotential
    how: Tempering
    particles: int
    ladder: Ladder
    hardness: Array  # a pilot takes this many times the moves and the temperatures that it needs
    kernel: Kernel  # tuned at the prior
    retune: sampling.Retune

    @property
    def pilots(self) -> Array:
        return self.ladder.rungs == 0

    @property
    def share(self) -> Array:
        """The share of particles that is left between one temperature and the next."""
        return 1 - (1 - self.how.share) / self.hardness

    def energies(self, thetas: Array) -> Array:
        """Return V + log p0 for every particle, infinite outside the support of exp(-V)."""
        found = jax.vmap(lambda theta: self.potential(theta) - self.prior(theta))(thetas)
        return jnp.where(jnp.isfinite(found), found, jnp.inf)

    def first_rung(self, key: Array, keys: Array) -> _Rung:
        """Choose M of 16 M draws of the prior, with four times as many effective draws as on later rungs.

        Draws are made M at a time, and the chosen ones again from their ``keys``: 16 M of them may not fit in memory.
        """
        draws = jax.vmap(self.potential.problem.draw_prior)
        rise = jax.lax.map(lambda some: self.energies(draws(some)), keys.reshape(POOL, self.particles)).ravel()
        zero, start = jnp.zeros((), float), jnp.zeros((), int)
        beta, chosen, left, log_ratio = self.weighted(key, start, zero, rise, 4 * self.share / POOL)
        thetas = draws(keys[chosen])
        centre, spread = self.reference(start, thetas)
        step_size = jnp.where(self.pilots, step_size_of(self.kernel), self.ladder.step_size[0])
        stats = TemperingStats(start, left, log_ratio, zero, zero, zero)
        ladder = Ladder.open(thetas.shape[-1])
        none = jnp.zeros((), bool)
        return _Rung(start, beta, thetas, chosen, centre, spread, step_size, stats, ladder, none)

    def next_rung(self, key: Array, rung: _Rung) -> _Rung:
        """Move the particles at beta, then weight and resample them for the next beta."""
        move_key, choose_key = jax.random.split(key)
        moved = self.move(move_key, rung)
        number, step_size = rung.number + 1, step_size_of(moved.kernel)
        used = rung.beta, moved.moves, step_size, rung.centre, rung.spread
        path = (old.at[rung.number].set(new) for old, new in zip(rung.ladder[1:], used, strict=True))
        thetas = moved.ensemble.theta
        rise = self.energies(thetas)
        beta, chosen, left, log_ratio = self.weighted(choose_key, number, rung.beta, rise, self.share)
        thetas, ancestors = thetas[chosen], rung.ancestors[chosen]
        centre, spread = self.reference(number, thetas)
        stats = TemperingStats(
            temperatures=number,
            effective_sample_size=jnp.minimum(rung.stats.effective_sample_size, left),
            log_normaliser=rung.stats.log_normaliser + log_ratio,
            acceptance=rung.stats.acceptance + moved.acceptance / moved.moves,
            correlation=jnp.maximum(rung.stats.correlation, moved.correlation),
            gradients=rung.stats.gradients + moved.gradients,
        )
        step_size = jnp.where(self.pilots, step_size, self.ladder.step_size[number])
        done = rung.beta >= 1  # then all weights were equal, and nothing was resampled
        return _Rung(number, beta, thetas, ancestors, centre, spread, step_size, stats, Ladder(number, *path), done)

    def reference(self, number: Array, thetas: Array) -> tuple[Array, ...]:
        """Return the centre and the spread around which the kernel moves: those of the particles, or of the ladder."""
        planned = self.ladder.centre[number], self.ladder.spread[number]
        return tuple(jnp.where(self.pilots, *each) for each in zip(tuning.moments(thetas), planned, strict=True))

    def weighted(self, key: Array, number: Array, last: Array, rise: Array, share: Array | float) -> tuple[Array, ...]:
        """Choose M of the particles for the next beta. Return it, their indices, and what the weights tell."""
        lost, count = jnp.all(jnp.isinf(rise)), len(rise)
        may_stop = (number < MOST_TEMPERATURES - 1) & ~lost
        longest = jnp.minimum(largest_step(rise, 1 - last, share), LONGEST_RUNG / self.hardness)
        ahead = jnp.where(may_stop, longest, 1 - last)
        largest = jnp.where(ahead >= 1 - last, 1, last + ahead)
        beta = jnp.where(self.pilots | (last >= 1), largest, self.ladder.beta[number])
        log_weights = jnp.where(jnp.isinf(rise), jnp.where(lost, 0, -jnp.inf), -(beta - last) * rise)
        chosen = systematic(key, log_weights, self.particles)
        left = jnp.where(lost, 0, jnp.minimum(count * ess_fraction(log_weights), self.particles))
        return beta, chosen, left, logsumexp(log_weights) - jnp.log(count)

    def move(self, key: Array, rung: _Rung) -> "_Moved":
        """Move the particles at beta: a pilot until their energies are forgotten, others as often as the pilot did.

        A pilot then takes ``hardness`` times as many moves as that.
        """
        current, before = self.potential.tempered(rung.beta), self.energies(rung.thetas)
        around = self.how.kernel.around(rung.centre, rung.spread)
        kernel = with_step_size(self.kernel if around is self.how.kernel else around, rung.step_size)
        begin_key, move_key = jax.random.split(key)
        most = jnp.where(self.pilots, self.how.moves * self.hardness, self.ladder.moves[rung.number])

        def once_more(moved):
            step_key = jax.random.fold_in(move_key, moved.moves)
            ensemble, stats, tuned = sampling.run(step_key, moved.ensemble, current, moved.kernel, 1, self.retune)
            moves, correlation = moved.moves + 1, _correlation(before, self.energies(ensemble.theta))
            forgotten = self.pilots & (moves >= 2) & (correlation < FORGOTTEN) & (moved.most == most)
            return _Moved(
                moves,
                jnp.where(forgotten, jnp.minimum(moves * self.hardness, most), moved.most),
                ensemble,
                jax.tree.map(lambda new, old: jnp.where(self.pilots, new, old), tuned, moved.kernel),
                correlation,
                moved.acceptance + jnp.mean(stats.acceptance),
                moved.gradients + jnp.mean(stats.gradients),
            )

        ensemble, one = sampling.begin(begin_key, rung.thetas, current, kernel), jnp.ones((), float)  # one gradient
        begun = _Moved(jnp.zeros((), int), most, ensemble, kernel, one, jnp.zeros_like(one), one)
        return jax.lax.while_loop(lambda moved: moved.moves < moved.most, once_more, begun)


class _Moved(NamedTuple):
    """Particles after some moves at one beta, and what the moves cost and did."""

    moves: Array
    most: Array  # moves; fewer once energies are forgotten
    ensemble: sampling.Ensemble
    kernel: Kernel
    correlation: Array  # of energies before and after all moves
    acceptance: Array  # the sum over moves
    gradients: Array


def _correlation(before: Array, after: Array) -> Array:
    """Return the correlation of energies over particles. 0 if they do not vary."""
    known = jnp.isfinite(before) & jnp.isfinite(after)
    share = known / jnp.maximum(jnp.sum(known), 1)
    centred = [jnp.where(known, each, 0) - share @ jnp.where(known, each, 0) for each in (before, after)]
    a, b = (jnp.where(known, each, 0) for each in centred)
    size = jnp.sqrt((a @ a) * (b @ b))
    return jnp.where(size > 0, a @ b / jnp.where(size > 0, size, 1), 0)
