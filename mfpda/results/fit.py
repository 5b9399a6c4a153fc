"""What fit returns: the particles, the fitted density, the history, and how to keep and load them."""

import functools
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from mfpda import sampling
from mfpda.core.keys import as_key
from mfpda.core.schedules import positive_count
from mfpda.errors import InputError, Status, listed
from mfpda.judging import certificate
from mfpda.judging.certificate import Certificate
from mfpda.kernels import KERNELS, Kernel
from mfpda.persistence import files as storage
from mfpda.persistence import fingerprint
from mfpda.persistence.history_store import HistoryStore
from mfpda.problem import blocks
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import Examples, as_array
from mfpda.problem.model import Model, Structure
from mfpda.problem.outputs import predictions
from mfpda.problem.potential import GibbsPotential, prior_potential
from mfpda.progress import history
from mfpda.results import arviz_data
from mfpda.rules import RULES, Coefficients, Dual, Rule
from mfpda.rules.base import over_outputs
from mfpda.sampling import tempering, tuning
from mfpda.sampling.tempering import FEWEST_TEMPERED
from mfpda.starts import STARTS, Start, Temper

SETTLING_PARTICLES, SETTLING_STEPS = 64, 100  # what fit.trace tunes an "auto" step size on


class RunState(NamedTuple):
    """All that the next outer step needs of the last one, besides the data."""

    ensemble: sampling.Ensemble
    rule: Any
    coefficients: Coefficients
    batch: Array | None
    stats: sampling.SampleStats
    factor: Array  # what acceptance has put on an "auto" step size


def initial_state(
    key: Array, model: Model, examples: Examples, batch: Array | None, kernel: Kernel, rule: Rule, particles: int
) -> RunState:
    """The state before outer step 1: M draws of q1, no coefficients."""
    draw_key, begin_key = jax.random.split(key)
    potential = prior_potential(model, _anchors(examples, batch, rule), examples.blocks)
    thetas = sampling.draw_initial(draw_key, particles, potential)
    return RunState(
        sampling.begin(begin_key, thetas, potential, kernel),
        rule.init(len(examples.x), potential.coefficients.shape[1:]),
        Coefficients(potential.coefficients, potential.gamma),
        batch,
        sampling.SampleStats.unmoved(particles),
        jnp.ones((), float),
    )


def current_potential(model: Model, examples: Examples, rule: Rule, state: RunState) -> GibbsPotential:
    """The potential that the last outer step sampled."""
    return GibbsPotential(model, _anchors(examples, state.batch, rule), *state.coefficients, examples.blocks)


def _anchors(examples: Examples, batch: Array | None, rule: Rule) -> Array:
    return examples.x if batch is None or not rule.on_batch else examples.x[batch]


class Selected(NamedTuple):
    """One recorded state of a run."""

    outer_step: int
    particles: Mapping[str, np.ndarray]
    predict: Callable[[Any], Array]


@dataclass(frozen=True, repr=False, eq=False)
class Fit:
    """A run of ``fit``: its particles, and the density q_g that they were led to.

    ``particles`` and ``predict`` are the run's own M particles. ``potential`` and ``sample`` speak of the fitted
    density

        q_g proportional to p0(theta) exp(-(1/T) sum_i weight_i g_i . h(theta, x_i)),

    g the rule's dual, weight 1/n (in a stream, the anchor's share of the average). For dual averaging on the full batch
    this is the run's last Gibbs potential at gamma = 1.
    """

    model: Model
    rule: Rule
    kernel: Kernel
    start: Start
    examples: Examples
    is_stream: bool
    batch_size: int | None
    outer_steps: int
    inner_steps: int
    state: RunState
    initial: dict[str, np.ndarray]
    rows: tuple[history.Row, ...]
    status: Status
    attributes: dict[str, Any]
    store: HistoryStore | None = None  # where the rows lie, if they are on disk

    def __repr__(self) -> str:
        last = self.rows[-1].stats if self.rows else {}
        risk = f", risk {last['risk']:.4g}" if "risk" in last else ""
        return f"Fit({len(self.thetas)} particles, {self.outer_steps} outer steps{risk}, {self.status.value})"

    @property
    def folder(self) -> Path | None:
        """The folder of the run's checkpoint, if it has one."""
        return None if self.store is None else self.store.folder

    @property
    def structure(self) -> Structure:
        return self.model.structure(self.examples.x[0])

    @property
    def thetas(self) -> Array:
        """The particles as flat vectors in unconstrained space, shape (M, p)."""
        return self.state.ensemble.theta

    @functools.cached_property
    def particles(self) -> dict[str, Array]:
        """Site name to values on its support, leading axis over the M particles."""
        return constrain(self.model, self.thetas, self.examples.x[0])

    def predict(self, x: Any) -> Array:
        """(1/M) sum_r h(theta_r, x) for every row of x."""
        x = _rows(x, self.examples.x)
        return predict(self.model, self.thetas, x, self.blocks_for(len(self.thetas), len(x)))

    @property
    def settings(self) -> dict[str, Any]:
        """What ``fit`` was asked for, and the rows of its blocks."""
        return json.loads(self.attributes["settings"])

    def blocks_for(self, particles: int, n: int = 0) -> Blocks:
        """The run's blocks; for more particles or inputs than it has, those that fit in its memory budget."""
        x = self.examples.x
        if particles <= len(self.thetas) and n <= len(x):
            return self.examples.blocks
        return blocks.within(self.settings.get("memory"), self.model, x[0], particles).over(max(n, len(x)))

    @functools.cached_property
    def _averaged(self) -> Dual:
        return self.rule.dual(self.state.rule, jnp.asarray(self.outer_steps, float))

    @functools.cached_property
    def dual(self) -> Array:
        """g, per anchor and output: the rule's average of l'; the present l'(z_i) where no batch held i."""
        if bool(jnp.all(self._averaged.mass > 0)):
            return self._averaged.g
        loss = self.model.loss
        return self._averaged.filled(loss.over_rows(loss.derivative, self.predict(self.examples.x), self.examples.y))

    @functools.cached_property
    def weights(self) -> Array:
        """How much each example counts in the problem that q_g is certified for: 1/n, or its share in a stream.

        In a stream that is 2 s / (b t (t+1)) for the anchors of batch s under dual averaging, and 0 for places of the
        buffer that are still free.
        """
        if not self.is_stream:
            return jnp.full(len(self.examples.x), 1 / len(self.examples.x))
        return self._averaged.mass / jnp.maximum(jnp.sum(self._averaged.mass), 1)

    @functools.cached_property
    def potential(self) -> GibbsPotential:
        """The potential of q_g, at gamma = 1."""
        if self.outer_steps == 0:
            return prior_potential(self.model, self.examples.x, self.examples.blocks)
        coefficients = over_outputs(self.weights, self.dual) * self.dual
        anchors, coefficients = self.examples.x[: self._seen], coefficients[: self._seen]
        return GibbsPotential(self.model, anchors, coefficients, jnp.ones(()), self.examples.blocks)

    @functools.cached_property
    def last_potential(self) -> GibbsPotential:
        """The potential that the run's particles last sampled, with the last step's gamma."""
        return current_potential(self.model, self.examples, self.rule, self.state)

    def sample(self, key: Array, num: int) -> dict[str, Array]:
        """Fresh particles of q_g: any number, tempered from the prior. Nothing of the run's particles is used.

        At least 1000 are tempered, whatever ``num`` is: few cannot tell when a step in temperature is too long.
        """
        key, num = as_key(key), positive_count(num, "num")
        temper = self._temper
        temper_key, choose_key = jax.random.split(key)
        particles = max(num, FEWEST_TEMPERED)
        potential = replace(self.potential, blocks=self.blocks_for(particles))
        thetas, _ = _temper(temper_key, potential, particles, temper.kernel, temper.moves, temper.share)
        if num < particles:
            thetas = jax.random.choice(choose_key, thetas, (num,), replace=False)
        return constrain(self.model, thetas, self.examples.x[0])

    @property
    def _temper(self) -> Temper:
        """How fresh particles are drawn: as the run's start does, if it tempers."""
        return self.start if isinstance(self.start, Temper) else Temper()

    def certify(
        self,
        key: Array,
        *,
        dual: Any = None,
        temper: Temper | None = None,
        replicates: int = 8,
        particles: int | None = None,
        level: float = 0.99,
        bound: float | None = None,
    ) -> Certificate:
        """How far q_g is from the global optimum: an upper bound on L(q_g) - L*, from samples of its own.

        Args:
            key: a JAX random key.
            dual: another g to certify, of the shape of ``fit.dual``; the fit's own by default.
            temper: how to sample q_g: the run's ``Temper``, or ``Temper()``.
            replicates: independent samples, at least 4; the error is measured between them.
            particles: of each replicate, at least 200; by default as many as the run's, or 1000 if that is more. Raise
                these for a sharper bound: more replicates do not lessen the bias that few particles share.
            level: of the one-sided upper bound.
            bound: a bound on |h(theta, x)|, if you know one: it bounds predictions everywhere.

        A mini-batch run is certified on all its data, a stream on the weighted problem of the anchors it has drawn.
        """
        key = as_key(key)
        if self.outer_steps == 0 and dual is None:
            raise InputError("a fit of at least one outer step", "none", "Run it, or give certify a dual=.")
        g = self.dual if dual is None else _checked_dual(dual, self.dual.shape)
        temper = self._temper if temper is None else STARTS.resolve(temper)
        if not isinstance(temper, Temper):
            raise InputError("a Temper to sample the fitted density with", repr(temper), "Give Temper(moves=20), say.")
        particles = max(len(self.thetas), FEWEST_TEMPERED) if particles is None else particles
        examples = self.examples._replace(blocks=self.blocks_for(positive_count(particles, "particles")))
        return certificate.certify(
            key, self.model, examples, self.weights, g, self.thetas, temper, replicates, particles, level, bound
        )

    def trace(
        self, key: Array, draws: int = 1000, particles: int = 4, kernel: Kernel | str | None = None
    ) -> xr.Dataset:
        """The ``inner_trace`` group: every step of a kernel at the run's last potential, from the run's last particles.

        chain = particle, draw = inner step, so that ``az.rhat``, ``az.ess`` and ``az.plot_trace`` judge the kernel: the
        run's own, or another. The last potential has the last step's gamma, t / (t+2) for dual averaging; ``sample`` is
        of q_g, at gamma = 1. An "auto" step size that follows acceptance is tuned for 100 steps first, then fixed; a
        schedule is at its last value. The attributes hold gamma, the kernel, its step size, its acceptance, the share
        of steps that diverged and the gradients it spends a step.
        """
        key, draws = as_key(key), positive_count(draws, "draws")
        if positive_count(particles, "particles") > len(self.thetas):
            advice = "Each chain begins at a particle of the run."
            raise InputError(f"at most the run's {len(self.thetas)} particles", str(particles), advice)
        own = kernel is None
        used = self.kernel if own else KERNELS.resolve(kernel)
        planned = tuning.plan(used, max(self.outer_steps, 1))[-1]
        potential = self.last_potential
        carried = self.state.factor if own else jnp.ones(())
        thetas, stats, settled = _trace(key, potential, planned, self.thetas, carried, draws, particles)
        values = constrain(self.model, jnp.swapaxes(thetas, 0, 1).reshape(-1, thetas.shape[-1]), self.examples.x[0])
        chains = {name: value.reshape(particles, draws, *value.shape[1:]) for name, value in values.items()}
        return history.inner_trace(chains, self.model, self.structure).assign_attrs(
            kernel=repr(used),
            gamma=float(potential.gamma),
            step_size=float(tuning.step_size_of(settled)),
            acceptance_rate=float(jnp.mean(stats.acceptance)),
            diverging=float(jnp.mean(stats.diverging)),
            gradients_per_draw=float(jnp.mean(stats.gradients)),
        )

    def select(self, key: Array) -> Selected:
        """The paper's random output: the state after outer step t with probability proportional to t + 1.

        Algorithm 1 draws its index from 2..T+1 in proportion to the index; its state of index t + 1 is the one after
        outer step t. Only recorded steps can be drawn.
        """
        if not self.rows:
            raise InputError("at least one recorded outer step", "none", "Run longer, or record more often.")
        sites = [site.name for site in self.structure.sites]
        kept = self.rows[0].particles
        if set(kept) != set(sites) or len(next(iter(kept.values()))) != self.settings["particles"]:
            raise InputError(
                "a history with every site and every particle",
                f"sites {listed(kept)} of {len(next(iter(kept.values()), []))} particles",
                "Run with Record(every=k), without sites= and particles=.",
            )
        steps = jnp.asarray([row.outer_step for row in self.rows])
        row = self.rows[int(jax.random.choice(as_key(key), len(self.rows), p=(steps + 1) / jnp.sum(steps + 1)))]
        values = {name: jnp.asarray(value) for name, value in row.particles.items()}
        return Selected(
            row.outer_step,
            row.particles,
            lambda x: _predict_from(
                self.model, values, _rows(x, self.examples.x), self.blocks_for(len(self.thetas), len(x))
            ),
        )

    @functools.cached_property
    def idata(self) -> Any:
        """The fit as ArviZ data (a DataTree where ArviZ is 1.x): chain = run, draw = particle.

        The particle history of a run with a checkpoint stays on disk: what is asked of it is read from there.
        """
        return arviz_data.container(self.groups, self.attributes)

    @functools.cached_property
    def groups(self) -> arviz_data.Groups:
        """The groups of ``idata`` as plain data sets."""
        model, structure, rows = self.model, self.structure, self.rows
        energy = _energies(self.last_potential, self.thetas)
        particle_dims = ("chain", "draw")
        groups = {
            "posterior": history.particles_dataset(self.particles, model, structure),
            "sample_stats": xr.Dataset(
                {
                    "lp": (particle_dims, -np.asarray(energy)[None]),
                    "acceptance_rate": (particle_dims, np.asarray(self.state.stats.acceptance)[None]),
                    "diverging": (particle_dims, np.asarray(self.state.stats.diverging)[None]),
                },
                coords={"chain": [0], "draw": np.arange(len(self.thetas))},
            ),
            "particle_history": (
                self.store.opened(len(rows))
                if self.store and rows
                else history.particle_history(rows, model, structure)
            ),
            "outer_stats": history.outer_stats(rows),
            "prior": history.particles_dataset(self.initial, model, structure),
            "constant_data": self._constant_data(),
        }
        if self.examples.y is not None:
            y = np.asarray(self.examples.y)[: self._seen]
            groups["observed_data"] = xr.Dataset(
                {"y": (("anchor", "output")[: y.ndim], y)}, {"anchor": np.arange(len(y))}
            )
        return {name: group.assign_attrs(self.attributes) for name, group in groups.items()}

    @property
    def _seen(self) -> int:
        """How many of the examples are real: all, or as many as a stream has drawn."""
        return self.outer_steps * (self.batch_size or 0) if self.is_stream else len(self.examples.x)

    def _constant_data(self) -> xr.Dataset:
        x = np.asarray(self.examples.x)[: self._seen]
        dual = np.asarray(self.dual)[None, : self._seen]
        dims = ("chain", "anchor", "output")[: dual.ndim]
        coefficients = np.zeros_like(dual)
        if self.outer_steps:
            coefficients[0] = self.potential.coefficients
        variables = {
            "x": (("anchor", *(f"x_dim_{axis}" for axis in range(x.ndim - 1))), x),
            "coefficients": (dims, coefficients),
            "duals": (dims, dual),
            "predictions": (dims, np.asarray(self.predict(x))[None]),
        }
        return xr.Dataset(variables, {"chain": [0], "anchor": np.arange(len(x))})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as netCDF, for ArviZ to read and for ``mfpda.load`` to go on from."""
        values = fingerprint.values(self.model, self.thetas, self.examples)
        extra = {"state": self.state, "fingerprint": values, "buffer": self.examples[:2] if self.is_stream else ()}
        groups = self.groups | {storage.RUN_STATE: storage.pack(extra).assign_attrs(self.described)}
        storage.write(path, arviz_data.as_tree(groups, self.attributes))

    @property
    def described(self) -> dict[str, Any]:
        """What a file holds of it, besides arrays, for a run to go on from there."""
        return {
            "is_stream": int(self.is_stream),
            "batch_size": self.batch_size or 0,
            "outer_steps": self.outer_steps,
            "inner_steps": self.inner_steps,
            "particles": len(self.thetas),
            "status": self.status.value,
            "plugs": json.dumps(
                {
                    "kernel": KERNELS.described(self.kernel),
                    "rule": RULES.described(self.rule),
                    "start": STARTS.described(self.start),
                }
            ),
            **fingerprint.names(self.model, jax.ShapeDtypeStruct(self.examples.x.shape[1:], self.examples.x.dtype)),
        }


def _checked_dual(dual: Any, shape: tuple[int, ...]) -> Array:
    try:
        g = np.asarray(dual, float)
        found = (
            f"shape {g.shape}" if g.shape != shape else "" if np.isfinite(g).all() else "numbers that are not finite"
        )
    except (TypeError, ValueError):
        found = type(dual).__name__
    if found:
        raise InputError(f"a finite dual of shape {shape}, one per anchor and output", found, "fit.dual is one.")
    return jnp.asarray(g, float)


def to_inference_data(*fits: Fit) -> Any:
    """Runs of one model as chains of one ArviZ data set: R-hat then compares runs, ESS counts particles."""
    if not fits or not all(isinstance(fit, Fit) for fit in fits):
        found = ", ".join(type(fit).__name__ for fit in fits) or "none"
        raise InputError("at least one fit", found, "Pass the fits one after another: to_inference_data(fit1, fit2).")
    return arviz_data.container(arviz_data.stacked([fit.groups for fit in fits]), fits[0].attributes)


@functools.cache
def versions() -> dict[str, str]:
    return {f"{name}_version": importlib.metadata.version(name) for name in ("mfpda", "jax", "numpyro", "arviz")}


@jax.jit
def predict(model: Model, thetas: Array, x: Array, blocks: Blocks = Blocks()) -> Array:
    return predictions(model, thetas, x, blocks)


def constrain(model: Model, thetas: Array, x: Array) -> dict[str, Array]:
    """The sites' values on their supports, for every particle, in the order of their declaration."""
    values = _constrain(model, thetas, x)  # jit sorts the keys of a dict
    return {site.name: values[site.name] for site in model.structure(x).sites}


@jax.jit
def _constrain(model: Model, thetas: Array, x: Array) -> dict[str, Array]:
    return jax.vmap(model.constrain, in_axes=(0, None))(thetas, x)


@jax.jit
def _predict_from(model: Model, values: dict[str, Array], x: Array, blocks: Blocks) -> Array:
    at_rows = jax.vmap(model.output_of, in_axes=(None, 0))
    return blocks.mapped(lambda x: jnp.mean(jax.vmap(at_rows, in_axes=(0, None))(values, x), axis=0), x)


@jax.jit
def _energies(potential: GibbsPotential, thetas: Array) -> Array:
    return jax.vmap(potential)(thetas)


_temper = jax.jit(tempering.temper, static_argnames=("particles",))


@functools.partial(jax.jit, static_argnames=("draws", "particles"))
def _trace(
    key: Array, potential: GibbsPotential, kernel: Any, thetas: Array, carried: Array, draws: int, particles: int
) -> tuple[Array, sampling.SampleStats, Any]:
    tune_key, begin_key, settle_key, trace_key = jax.random.split(key, 4)
    kernel, retuned = tuning.tuned(tune_key, kernel, potential, thetas, carried)
    thetas = thetas[: max(particles, SETTLING_PARTICLES) if retuned else particles]
    ensemble = sampling.begin(begin_key, thetas, potential, kernel)
    if retuned:
        ensemble, _, kernel = sampling.run(settle_key, ensemble, potential, kernel, SETTLING_STEPS, retuned)
    ensemble = jax.tree.map(lambda part: part[:particles], ensemble)
    return *sampling.trace(trace_key, ensemble, potential, kernel, draws), kernel


def _rows(x: Any, like: Array) -> Array:
    x = as_array(np.asarray(x))
    if x.shape[1:] != like.shape[1:] or x.ndim == 0:
        advice = "Add the axis over rows: x[None]." if x.shape == like.shape[1:] else "Give rows like those of the fit."
        expected = ", ".join(["rows", *map(str, like.shape[1:])])
        raise InputError(f"inputs of shape ({expected}), as in training", f"{x.shape}", advice)
    return x
