"""What ``fit`` returns: the particles, the fitted density, the history."""

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from jax.typing import ArrayLike

from mfpda import sampling
from mfpda.core import as_key, html_table, positive_count
from mfpda.errors import InputError, Status, UnsoundSampleWarning, listed
from mfpda.judging import Certificate, certify
from mfpda.kernels import KERNELS, Kernel
from mfpda.persistence import HistoryStore, attributes_of, files, saved_fit
from mfpda.problem import GibbsPotential, Model, Problem, as_array, predictions
from mfpda.progress import Progress, Row, RunState, Settings, datasets
from mfpda.results import arviz_data
from mfpda.rules import Rule
from mfpda.sampling import FEWEST_TEMPERED, Tempering, tuning
from mfpda.starts import STARTS, Start

SETTLING_PARTICLES, SETTLING_STEPS = 64, 100  # what fit.trace tunes an "auto" step size on


class Selected(NamedTuple):
    """One recorded state of a run."""

    outer_step: int
    particles: Mapping[str, np.ndarray]
    predict: Callable[[ArrayLike], Array]


@dataclass(frozen=True, repr=False, eq=False)
class Fit:
    """A finished run: its particles, and the density q_g that they approximate.

    ``particles`` and ``predict`` describe the run's own M particles. ``potential`` and ``sample`` describe the fitted
    density

        q_g proportional to p0(theta) exp(-(1/T) sum_i weight_i g_i . h(theta, x_i)),

    where g is the rule's dual, and weight_i is 1/n (in a stream, the anchor's share of the rule's average). For dual
    averaging on the full batch this is the run's last Gibbs potential at gamma = 1.
    """

    progress: Progress
    status: Status
    store: HistoryStore | None = None  # the rows, if they are on disk

    def __repr__(self) -> str:
        judged = self.certificate
        risk = f", risk {self._risk:.4g}" if np.isfinite(self._risk) else ""
        gap = "" if judged is None or not np.isfinite(judged.upper) else f", gap <= {judged.upper:.2g}"
        steps = f"{self.outer_steps} outer steps"
        return f"Fit({len(self.state.ensemble.theta)} particles, {steps}{risk}{gap}, {self.status.value})"

    def _repr_html_(self) -> str:
        return html_table("Fit", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return labels and texts, in the order in which to show them."""
        return {
            "status": self.status.value,
            "model": repr(self.model),
            "rule": self.settings.rule,
            "particles": str(len(self.state.ensemble.theta)),
            "outer steps": str(self.outer_steps),
            "risk": f"{self._risk:.4g}" if np.isfinite(self._risk) else "unknown",
            "gap": self._gap(),
            "stiffness": f"{self.stiffness:.3g}" if self.rows else "unknown",
            "next": self.status.advice,
        }

    @property
    def _risk(self) -> float:
        """The risk of q_g if it was certified, else the last that was recorded, that of the particles as sampled."""
        if self.certificate is not None and np.isfinite(self.certificate.risk):
            return self.certificate.risk
        return self.rows[-1].stats["risk"] if self.rows else np.nan

    def _gap(self) -> str:
        """Describe the last gap that the run certified."""
        certified = [row for row in self.rows if np.isfinite(row.stats.get("gap", np.nan))]
        if not certified:
            return "unknown: fit.certify(key) estimates it"
        step, stats, _ = certified[-1]
        return (
            f"{stats['gap']:.3g} +- {stats['gap_stderr']:.2g}, at most {stats['gap_upper']:.3g}, at outer step {step}"
        )

    @property
    def stiffness(self) -> float:
        """The largest stiffness that the run recorded, NaN before the first record."""
        return self.progress.stiffness

    @property
    def certificate(self) -> Certificate | None:
        """The certificate that the run issued for this state. None if it issued none: ``certify`` does."""
        return self.progress.certificate

    @property
    def model(self) -> Model:
        return self.progress.problem.model

    @property
    def problem(self) -> Problem:
        """The problem that q_g is certified for. A stream's weights are the anchors' shares of its rule's average."""
        return self.progress.certified_problem

    @property
    def rule(self) -> Rule:
        return self.progress.rule

    @property
    def kernel(self) -> Kernel:
        return self.progress.kernel

    @property
    def start(self) -> Start:
        return self.progress.start

    @property
    def settings(self) -> Settings:
        """What ``fit`` was asked for."""
        return self.progress.settings

    @property
    def outer_steps(self) -> int:
        return self.progress.t

    @property
    def state(self) -> RunState:
        return self.progress.state

    @property
    def rows(self) -> tuple[Row, ...]:
        """The recorded outer steps."""
        return self.progress.rows

    @property
    def folder(self) -> Path | None:
        """The folder of the run's checkpoint, if it has one."""
        return None if self.store is None else self.store.folder

    @property
    def attributes(self) -> dict[str, Any]:
        """Provenance, settings and status, as ArviZ data and files hold them."""
        return attributes_of(self.progress, self.status)

    @property
    def thetas(self) -> Array:
        """The particles as flat vectors in unconstrained space, shape (M, p)."""
        return self.progress.thetas

    @functools.cached_property
    def particles(self) -> dict[str, Array]:
        """A dict from site name to values on its support. The first axis is over the M particles."""
        return self.problem.constrain(self.thetas)

    def predict(self, x: ArrayLike) -> Array:
        """(1/M) sum_r h(theta_r, x) for every row of x."""
        rows = _rows(x, self.problem)
        blocks = self.progress.blocks_for(len(self.thetas), len(rows))
        return predictions(replace(self.problem, blocks=blocks), self.thetas, rows)

    @property
    def dual(self) -> Array:
        """g, per anchor and output: the rule's average of l', or the present l'(z_i) if no batch had anchor i."""
        return self.progress.dual

    @property
    def potential(self) -> GibbsPotential:
        """The potential of q_g, at gamma = 1."""
        return self.progress.potential

    @property
    def last_potential(self) -> GibbsPotential:
        """The potential that the run's particles last sampled, with the last step's gamma."""
        return self.progress.last_potential

    def sample(self, key: Array, num: int) -> dict[str, Array]:
        """Fresh particles of q_g, any number of them, tempered from the prior. The run's particles are not used.

        At least 1000 are tempered, whatever ``num`` is: with fewer, too long a step in temperature may go unnoticed.
        """
        key, num = as_key(key), positive_count(num, "num")
        temper_key, choose_key = jax.random.split(key)
        particles = max(num, FEWEST_TEMPERED)
        potential = self.potential.in_blocks(self.progress.blocks_for(particles))
        thetas, _, stats, _ = self.start.tempering.sample(temper_key, potential, particles)
        if not stats.sound(particles):
            warning = (
                f"Tempering left {float(stats.effective_sample_size):.0f} effective particles of {particles}, with an "
                f"acceptance of {float(stats.acceptance):.2g}: this is no sample of the fitted density. Ask for more "
                "particles, or raise the temperature."
            )
            warnings.warn(warning, UnsoundSampleWarning, stacklevel=2)
        if num < particles:
            thetas = jax.random.choice(choose_key, thetas, (num,), replace=False)
        return self.problem.constrain(thetas)

    def certify(
        self,
        key: Array,
        *,
        dual: ArrayLike | None = None,
        temper: Tempering | str | None = None,
        replicates: int = 8,
        particles: int = FEWEST_TEMPERED,
        level: float = 0.99,
        bound: float | None = None,
    ) -> Certificate:
        """How far q_g is from the global optimum: an upper bound on L(q_g) - L*, from fresh samples.

        Args:
            key: a JAX random key.
            dual: another g to certify, of the shape of ``fit.dual``. By default the fit's own.
            temper: how to sample q_g. By default the run's ``Temper``, or ``Temper()``.
            replicates: the number of independent samples, at least 4. The error is measured between them.
            particles: the size of each replicate, at least 200. Larger replicates have a smaller bias. If the bound
                needs less noise, the certificate draws more replicates by itself.
            level: the level of the one-sided upper bound.
            bound: a bound on |h(theta, x)|, if you know one. With it, the distance to the optimal prediction is bounded
                at every input.

        The number of replicates doubles until the noise is at most a fifth of the bound, the bound is at most 1 % of
        what could be won over the prior, or a budget is spent. ``certificate.decided`` says whether it was enough.
        A mini-batch run is certified on all its data, a stream on the weighted problem of the anchors it has drawn.
        """
        key = as_key(key)
        if self.outer_steps == 0 and dual is None:
            raise InputError("a fit of at least one outer step", "none", "Run it, or give certify a dual=.")
        g = self.dual if dual is None else _check_dual(dual, self.dual.shape)
        tempering = self.start.tempering if temper is None else as_tempering(temper)
        problem = self.problem.in_blocks(self.progress.blocks_for(positive_count(particles, "particles")))
        return certify(
            key, problem, g, self.thetas, tempering=tempering, replicates=replicates, particles=particles, level=level,
            bound=bound, stiffness=self.stiffness,
        )  # fmt: skip

    def trace(
        self, key: Array, draws: int = 1000, particles: int = 4, kernel: Kernel | str | None = None
    ) -> xr.Dataset:
        """The ``inner_trace`` group: every step of a kernel at the run's last potential, from the run's last particles.

        chain = particle and draw = inner step, so that ``az.rhat``, ``az.ess`` and ``az.plot_trace`` judge the kernel:
        the run's own, or another. The last potential has the last step's gamma, t / (t+2) for dual averaging, whereas
        ``sample`` draws from q_g, at gamma = 1. An "auto" step size that follows acceptance is first tuned for 100
        steps, then fixed. A schedule has its last value. The attributes hold gamma, the kernel, its step size, its
        acceptance, the share of steps that diverged and the gradients per step.
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
        values = self.problem.constrain(jnp.swapaxes(thetas, 0, 1).reshape(-1, thetas.shape[-1]))
        chains = {name: value.reshape(particles, draws, *value.shape[1:]) for name, value in values.items()}
        return datasets.inner_trace(chains, self.problem.neuron).assign_attrs(
            kernel=repr(used),
            gamma=float(potential.gamma),
            step_size=float(tuning.recorded_step_size(settled)),
            acceptance_rate=float(jnp.mean(stats.acceptance)),
            diverging=float(jnp.mean(stats.diverging)),
            gradients_per_draw=float(jnp.mean(stats.gradients)),
        )

    def select(self, key: Array) -> Selected:
        """The paper's random output: the state after outer step t with probability proportional to t + 1.

        Algorithm 1 draws its index from 2..T+1 in proportion to the index. Its state of index t + 1 is the one after
        outer step t. Only recorded steps can be drawn.
        """
        if not self.rows:
            raise InputError("at least one recorded outer step", "none", "Run longer, or record more often.")
        kept = self.rows[0].particles
        count = len(next(iter(kept.values()), []))
        if set(kept) != set(self.problem.neuron.site_names) or count != self.settings.particles:
            raise InputError(
                "a history with every site and every particle",
                f"sites {listed(kept)} of {count} particles",
                "Run with Record(every=k), without sites= and particles=.",
            )
        steps = jnp.asarray([row.outer_step for row in self.rows])
        row = self.rows[int(jax.random.choice(as_key(key), len(self.rows), p=(steps + 1) / jnp.sum(steps + 1)))]
        values = {name: jnp.asarray(value) for name, value in row.particles.items()}

        def predict(x: ArrayLike) -> Array:
            rows = _rows(x, self.problem)
            problem = replace(self.problem, blocks=self.progress.blocks_for(len(self.thetas), len(rows)))
            return _predict_from(problem, values, rows)

        return Selected(row.outer_step, row.particles, predict)

    @functools.cached_property
    def idata(self) -> Any:
        """The fit as ArviZ data (a DataTree where ArviZ is 1.x): chain = run, draw = particle.

        The particle history of a run with a checkpoint stays on disk and is read when needed.
        """
        return arviz_data.container(self.groups, self.attributes)

    @functools.cached_property
    def groups(self) -> arviz_data.Groups:
        """The groups of ``idata`` as plain data sets."""
        neuron, rows = self.problem.neuron, self.rows
        energy = _energies(self.last_potential, self.thetas)
        particle_dims = ("chain", "draw")
        groups = {
            "posterior": datasets.particles_dataset(self.particles, neuron),
            "sample_stats": xr.Dataset(
                {
                    "lp": (particle_dims, -np.asarray(energy)[None]),
                    "acceptance_rate": (particle_dims, np.asarray(self.state.stats.acceptance)[None]),
                    "diverging": (particle_dims, np.asarray(self.state.stats.diverging)[None]),
                },
                coords={"chain": [0], "draw": np.arange(len(self.thetas))},
            ),
            "particle_history": (
                self.store.opened(len(rows)) if self.store and rows else datasets.particle_history(rows, neuron)
            ),
            "outer_stats": datasets.outer_stats(rows),
            "prior": datasets.particles_dataset(self.progress.prior, neuron),
            "initial_particles": datasets.particles_dataset(self.progress.initial, neuron),
            "constant_data": self._constant_data(),
        }
        if self.problem.y is not None:
            y = np.asarray(self.problem.y)[: self.progress.seen]
            groups["observed_data"] = xr.Dataset(
                {"y": (("anchor", "output")[: y.ndim], y)}, {"anchor": np.arange(len(y))}
            )
        return {name: group.assign_attrs(self.attributes) for name, group in groups.items()}

    def _constant_data(self) -> xr.Dataset:
        seen = self.progress.seen
        x = np.asarray(self.problem.x)[:seen]
        dual = np.asarray(self.dual)[None, :seen]
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
        """Write everything as netCDF. ArviZ can read it, and ``mfpda.load`` can continue from it."""
        groups = self.groups | {saved_fit.RUN_STATE: saved_fit.state_group(self.progress, self.status)}
        files.write(path, arviz_data.as_tree(groups, self.attributes))


def to_inference_data(*fits: Fit) -> Any:
    """Runs of one model as chains of one ArviZ data set: R-hat then compares runs."""
    if not fits or not all(isinstance(fit, Fit) for fit in fits):
        found = ", ".join(type(fit).__name__ for fit in fits) or "none"
        raise InputError("at least one fit", found, "Pass the fits one after another: to_inference_data(fit1, fit2).")
    return arviz_data.container(arviz_data.stacked([fit.groups for fit in fits]), fits[0].attributes)


def as_tempering(temper: object) -> Tempering:
    """How to temper, as a user gave it: a ``Temper``, or its name."""
    if isinstance(temper, str):
        temper = STARTS.resolve(temper)
    if isinstance(temper, Tempering):
        return temper
    raise InputError("a Temper to sample the fitted density with", repr(temper), "Give Temper(moves=20), for example.")


def _check_dual(dual: ArrayLike, shape: tuple[int, ...]) -> Array:
    try:
        g = np.asarray(dual, float)
        found = "" if np.isfinite(g).all() else "numbers that are not finite"
        found = found if g.shape == shape else f"shape {g.shape}"
    except (TypeError, ValueError):
        found = type(dual).__name__
    if found:
        raise InputError(f"a finite dual of shape {shape}, one per anchor and output", found, "fit.dual is one.")
    return jnp.asarray(g, float)


def _rows(x: ArrayLike, problem: Problem) -> Array:
    rows, row = as_array(np.asarray(x)), problem.neuron.input.shape
    if rows.shape[1:] != row or rows.ndim == 0:
        advice = "Add the axis over rows: x[None]." if rows.shape == row else "Give rows like those of the fit."
        expected = ", ".join(["rows", *map(str, row)])
        raise InputError(f"inputs of shape ({expected}), as in training", f"{rows.shape}", advice)
    return rows


@jax.jit
def _predict_from(problem: Problem, values: dict[str, Array], x: Array) -> Array:
    at_rows = jax.vmap(problem.neuron.output_of, in_axes=(None, 0))
    return problem.blocks.mapped(lambda x: jnp.mean(jax.vmap(at_rows, in_axes=(0, None))(values, x), axis=0), x)


@jax.jit
def _energies(potential: GibbsPotential, thetas: Array) -> Array:
    return jax.vmap(potential)(thetas)


@functools.partial(jax.jit, static_argnames=("draws", "particles"))
def _trace(
    key: Array, potential: GibbsPotential, kernel: Kernel, thetas: Array, carried: Array, draws: int, particles: int
) -> tuple[Array, sampling.SampleStats, Kernel]:
    tune_key, begin_key, settle_key, trace_key = jax.random.split(key, 4)
    kernel, retune = tuning.tuned(tune_key, kernel, potential, thetas, carried)
    thetas = thetas[: max(particles, SETTLING_PARTICLES) if retune else particles]
    ensemble = sampling.begin(begin_key, thetas, potential, kernel)
    if retune:
        ensemble, _, kernel = sampling.run(settle_key, ensemble, potential, kernel, SETTLING_STEPS, retune)
    ensemble = jax.tree.map(lambda part: part[:particles], ensemble)
    return *sampling.trace(trace_key, ensemble, potential, kernel, draws), kernel
