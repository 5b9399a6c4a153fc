"""A run after some outer step: the engine advances it, files store it, a fit wraps it."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from mfpda.judging import Certificate
from mfpda.kernels import Kernel
from mfpda.problem import Blocks, GibbsPotential, Problem, blocks_within, over_outputs, predictions
from mfpda.progress.record import Row
from mfpda.progress.state import RunState, current_potential
from mfpda.rules import Dual, Rule
from mfpda.sampling import calibrated
from mfpda.starts import Start


@dataclass(frozen=True)
class Settings:
    """The settings of a run. Plugs and schedules are stored as text.

    ``memory`` is the budget for intermediate results in GiB, and ``block_rows`` the number of rows that it allows to be
    evaluated together (None for all). Both are fixed for the whole run, so that its bits do not depend on the memory
    that is free later.
    """

    rule: str
    kernel: str
    start: str
    particles: int
    outer_steps: int
    inner_steps: int | str
    batch_size: int | None
    memory: float
    block_rows: int | None
    until_certified: bool = False  # whether the run was to end when certified; outer_steps is then its limit
    overshoots: bool = False  # whether exact steps of the rule overshoot until t has passed the stiffness


@dataclass(frozen=True, repr=False, eq=False)
class Progress:
    """A run after outer step t. It is one value, so that Ctrl-C finds either the old one or the new one."""

    problem: Problem
    rule: Rule
    kernel: Kernel  # of the last step
    start: Start
    settings: Settings
    is_stream: bool
    provenance: Mapping[str, str | int | float]  # who made the run: versions, key, model
    t: int
    inner_steps: int  # in all outer steps so far
    state: RunState
    initial: dict[str, np.ndarray]  # the particles before step 1
    prior: dict[str, np.ndarray]  # draws of the prior: the same arrays as ``initial`` if the model has no init
    rows: tuple[Row, ...]
    certificate: Certificate | None = None  # of this state, if it was certified

    @functools.cached_property
    def thetas(self) -> Array:
        """The particles as flat vectors in unconstrained space, shape (M, p).

        If the rule calibrates, they are moved a little, so that they predict as its dual does, or as its certificate
        found that the fitted density does.
        """
        particles, target = self.state.ensemble.theta, self.rule.predictions(self.state.rule)
        if target is None and self.rule.calibrates and self.certificate is not None:
            target = jnp.asarray(self.certificate.predictions) if np.isfinite(self.certificate.upper) else None
        return particles if target is None else calibrated(self.problem, particles, target)

    @property
    def seen(self) -> int:
        """How many of the examples are real: all, or as many as a stream has drawn."""
        return self.t * (self.settings.batch_size or 0) if self.is_stream else len(self.problem.x)

    @property
    def stiffness(self) -> float:
        """The stiffness of the run: the largest that it recorded, NaN before the first record.

        Everything that prints a stiffness prints this one.
        """
        return max((row.stats["stiffness"] for row in self.rows), default=np.nan)

    def blocks_for(self, particles: int, rows: int = 0) -> Blocks:
        """The run's blocks, or smaller ones if more particles or rows would exceed its memory budget."""
        n = len(self.problem.x)
        if particles <= self.settings.particles and rows <= n:
            return self.problem.blocks
        return blocks_within(self.settings.memory, self.problem.neuron, particles).over(max(rows, n))

    @functools.cached_property
    def _average(self) -> Dual:
        return self.rule.dual(self.state.rule)

    @functools.cached_property
    def dual(self) -> Array:
        """g, per anchor and output: the rule's average of l', or the present l'(z_i) where no batch held i."""
        if bool(jnp.all(self._average.mass > 0)):
            return self._average.g
        return self._average.filled(self.problem.derivative(predictions(self.problem, self.thetas)))

    @functools.cached_property
    def certified_problem(self) -> Problem:
        """The problem that q_g is certified for: the run's own, or in a stream the weighted one of its anchors.

        There the weight is the anchor's share of the average: 2 s / (b t (t+1)) for the anchors of batch s under dual
        averaging, and 0 for places of the buffer that are still free.
        """
        if not self.is_stream:
            return self.problem
        mass = self._average.mass
        return replace(self.problem, weights=mass / jnp.where(jnp.sum(mass) > 0, jnp.sum(mass), 1))

    @functools.cached_property
    def potential(self) -> GibbsPotential:
        """The potential of q_g, at gamma = 1."""
        if self.t == 0:
            return self.problem.prior_potential()
        problem = self.certified_problem.at(slice(0, self.seen)) if self.is_stream else self.problem
        dual = self.dual[: len(problem.x)]
        return problem.potential(over_outputs(problem.weights, dual) * dual)

    @functools.cached_property
    def last_potential(self) -> GibbsPotential:
        """The potential that the particles last sampled, with the last step's gamma."""
        return current_potential(self.problem, self.rule, self.state)
