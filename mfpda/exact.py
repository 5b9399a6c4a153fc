"""The mean-field limit, exactly: for p <= 2 parameters, integrals over theta by quadrature on a grid, in float64.

Dual averaging with exact Gibbs steps is Algorithm 2 of the paper, with estimated predictions Algorithm 4. The optimum
itself is found by L-BFGS on the dual. These are the yardstick of the particle methods.

>>> import numpyro.distributions as dist
>>> from mfpda.problem.losses import Squared
>>> model = Model.from_function(lambda theta, x: jnp.tanh(theta["w"] * x), {"w": dist.Normal(0, 1)}, Squared(), 0.01)
>>> x = np.linspace(-1, 1, 20)
>>> grid = Quadrature.of(model, (x, 0.5 * x), bounds=(-12, 12))
>>> best = grid.optimum()
>>> print(f"objective {best.objective:.6f}, duality gap below 1e-10: {best.gap < 1e-10}")
objective 0.002998, duality gap below 1e-10: True
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import Array
from scipy.special import logsumexp

from mfpda.errors import InputError
from mfpda.problem.data import DataSet, check_examples
from mfpda.problem.losses import Loss
from mfpda.problem.model import Model
from mfpda.problem.outputs import Deviations
from mfpda.problem.potential import GibbsPotential
from mfpda.rules import Coefficients, DualAveraging, Problem, Rule

EDGE_MASS = 1e-6  # more than this on the outermost nodes means that the grid cuts the density off


class Law(NamedTuple):
    """A density on the grid: probabilities of the nodes, and log dq/dp0 at them."""

    probability: np.ndarray
    log_ratio: np.ndarray


class Step(NamedTuple):
    """The state after one outer step: q_t, its dual g_t, and the quantities that tie them together.

    objective = L(q_t) and dual_value = D(g_t). With z the predictions of q_t itself, fenchel_young is

        (1/n) sum_i [ loss(z_i) + loss*(g_i) - g_i . z_i ]                                                          (FY)

    and kl = KL(q_t || q_g), so that objective - dual_value = fenchel_young + T kl. gap is (FY) with the predictions
    of q_g, L(q_g) - D(g): what a certificate estimates.
    """

    outer_step: int
    coefficients: np.ndarray
    gamma: float
    law: Law
    dual: np.ndarray
    objective: float
    dual_value: float
    fenchel_young: float
    kl: float
    gap: float


class Optimum(NamedTuple):
    """The global optimum: L*, its parts, and the law that attains it."""

    objective: float
    dual_value: float
    gap: float
    risk: float
    kl: float
    predictions: np.ndarray
    dual: np.ndarray
    law: Law


class _GridOutputs(NamedTuple):
    """What a rule sees, with expectations under a law on the grid in place of particle means."""

    outputs: Array
    mass: Array
    particles: Array | float = np.inf  # that their moments rest on: infinitely many, unless they were drawn

    def mean(self, batch: Array | None = None) -> Array:
        z = jnp.tensordot(self.mass, self.outputs, axes=1)
        return z if batch is None else z[batch]

    def column(self, i: Array) -> Array:
        return self.outputs[:, i]

    def deviations(self) -> Deviations:
        z = self.mean()
        centred = self.outputs - z
        return Deviations(z, self.mass, lambda z, x: centred, jnp.zeros(len(z)), particles=self.particles)


@dataclass(frozen=True, repr=False)
class Quadrature:
    """A problem on a grid over unconstrained theta: log prior masses of the nodes, the outputs H there."""

    model: Model
    x: np.ndarray
    y: Any
    thetas: np.ndarray
    log_prior: np.ndarray
    outputs: np.ndarray
    edge: np.ndarray

    @classmethod
    def of(cls, model: Model, data: Any, bounds: Any = (-10.0, 10.0), points: int = 401) -> "Quadrature":
        """The trapezoidal rule on a box; ``bounds`` is (lower, upper), or one such pair per parameter.

        For smooth densities that vanish at the edges its error falls faster than any power of the spacing.
        """
        with jax.enable_x64(True):
            examples = check_examples(model, *data)
            p = model.structure(examples.x[0]).size
            if p > 2:
                raise InputError("a neuron with at most 2 parameters", str(p), "Quadrature needs a grid: use fit.")
            boxes = np.broadcast_to(np.asarray(bounds, float), (p, 2))
            axes = [np.linspace(lower, upper, points) for lower, upper in boxes]
            thetas = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
            edge = np.any((thetas == boxes[:, 0]) | (thetas == boxes[:, 1]), axis=1)
            log_prior, outputs = zip(*_on_grid(model, thetas, examples.x), strict=True)
            log_weight = np.concatenate(log_prior) + sum(np.log(axis[1] - axis[0]) for axis in axes)
        total = logsumexp(log_weight)
        if abs(total) > 1e-3:
            raise InputError(
                "a grid that holds the whole prior",
                f"prior mass {np.exp(total):.4f} on it",
                "Widen bounds or raise points.",
            )
        y = None if examples.y is None else np.asarray(examples.y)
        return cls(model, np.asarray(examples.x), y, thetas, log_weight - total, np.concatenate(outputs), edge)

    @property
    def temperature(self) -> float:
        return float(self.model.temperature)

    def law_of(self, potential: GibbsPotential) -> Law:
        """exp(-V) of a potential of this model, whose anchors may be others than the data of the grid."""
        energy = np.asarray(_energies(potential, jnp.asarray(self.thetas, float)), float)
        # V includes the prior's density, and log_prior its mass on a node: the nodes are equally spaced
        return self._held(_law(-energy, self.log_prior)[0])

    def gibbs(self, coefficients: np.ndarray, gamma: float = 1.0) -> tuple[Law, float]:
        """q proportional to exp(-gamma [ sum_i c_i . h(., x_i) / T - log p0 ]), and log E_p0 exp(-sum_i c_i . h / T)
        at gamma = 1.

        At gamma < 1 p0 is raised to gamma too, as a density in unconstrained space.
        """
        law, log_normaliser = self._gibbs(coefficients, gamma)
        return self._held(law), log_normaliser

    def _held(self, law: Law) -> Law:
        """The law, refused where the grid cuts it off."""
        if law.probability[self.edge].sum() > EDGE_MASS:
            raise InputError(
                "a grid that holds the whole Gibbs density",
                f"mass {law.probability[self.edge].sum():.2g} on its edge",
                "Widen bounds (and raise points to keep the spacing).",
            )
        return law

    def _gibbs(self, coefficients: np.ndarray, gamma: float = 1.0) -> tuple[Law, float]:
        energy = self.outputs.reshape(len(self.thetas), -1) @ np.ravel(coefficients) / self.temperature
        return _law(gamma * (self.log_prior - energy), self.log_prior)

    def predictions(self, law: Law) -> np.ndarray:
        """z_i = E_q h(theta, x_i)."""
        return np.tensordot(law.probability, self.outputs, axes=1)

    def risk(self, z: np.ndarray) -> float:
        return float(np.mean(self._rows("value", z)))

    def kl(self, law: Law) -> float:
        """KL(q || p0)."""
        return float(law.probability @ law.log_ratio)

    def objective(self, law: Law) -> float:
        """L(q) = mean loss + T KL(q || p0)."""
        return self.risk(self.predictions(law)) + self.temperature * self.kl(law)

    def dual_value(self, g: np.ndarray) -> float:
        """D(g) = -(1/n) sum_i loss*(g_i, y_i) - T log E_p0 exp(-(1/(nT)) sum_i g_i . h(theta, x_i))."""
        _, log_normaliser = self.gibbs(g / len(self.x))
        return -float(np.mean(self._rows("conjugate", g))) - self.temperature * log_normaliser

    def fenchel_young(self, g: np.ndarray, z: np.ndarray) -> float:
        """(FY): (1/n) sum_i [ loss(z_i) + loss*(g_i) - g_i . z_i ]."""
        products = np.sum((g * z).reshape(len(z), -1), axis=1)
        return float(np.mean(self._rows("value", z) + self._rows("conjugate", g) - products))

    def run(
        self,
        outer_steps: int,
        rule: Rule = DualAveraging(),
        key: Array | None = None,
        batch_size: int | None = None,
        particles: int | None = None,
    ) -> Iterator[Step]:
        """The outer rule with exact Gibbs steps, from q1 = p0: Algorithm 2 for dual averaging, one Step per outer step.

        ``particles`` estimates predictions from that many independent draws of q_t, as in Algorithm 4; that and
        ``batch_size`` need a key.
        """
        if key is None and (batch_size or particles):
            raise InputError("a key for random batches or particles", "None", "Pass key=jax.random.key(0), say.")
        key = jax.random.key(0) if key is None else key  # never drawn from when nothing is random
        law = self._prior
        batches = DataSet(
            jax.random.fold_in(key, 0), check_examples(self.model, self.x, self.y, warn=False), batch_size
        )
        with jax.enable_x64(True):
            problem = Problem(
                None if self.y is None else jnp.asarray(self.y), self.model.loss, jnp.asarray(self.temperature)
            )
            state = rule.init(len(self.x), self.outputs.shape[2:])
        for t in range(1, outer_steps + 1):
            with jax.enable_x64(True):
                step_key, draw_key = jax.random.split(jax.random.fold_in(key, t))
                view = self._seen(law, draw_key, particles)
                now, batch = jnp.asarray(t, float), batches.at(t)[1]
                state, (c, gamma) = _updated(rule, step_key, state, now, view, batch, *problem)
                scattered = rule.on_batch and batch is not None
                full_c = jnp.zeros((len(self.x), *c.shape[1:])).at[batch].add(c) if scattered else c
                dual = rule.dual(state, now)
                unseen = not bool(jnp.all(dual.mass > 0))
                g = np.asarray(dual.filled(problem.derivative(view.mean(), None)) if unseen else dual.g)
            law, _ = self.gibbs(np.asarray(full_c), float(gamma))
            of_dual, _ = self.gibbs(g / len(self.x))
            yield Step(
                outer_step=t,
                coefficients=np.asarray(full_c),
                gamma=float(gamma),
                law=law,
                dual=g,
                objective=self.objective(law),
                dual_value=self.dual_value(g),
                fenchel_young=self.fenchel_young(g, self.predictions(law)),
                kl=float(law.probability @ (law.log_ratio - of_dual.log_ratio)),
                gap=self.fenchel_young(g, self.predictions(of_dual)),
            )

    def optimum(self, tolerance: float = 1e-10) -> Optimum:
        """The maximum of D by L-BFGS, refused unless its duality gap is below the tolerance.

        First over u with g_i = l'(u_i, y_i), which is feasible for every u. Where a loss has flat pieces (the
        smoothed hinge), l'' = 0 hides the residual there, and D is maximised over g itself, in the box that holds the
        conjugate's domain.
        """
        for search in (self._best_over_predictions, self._best_over_duals):
            g = search()
            z = self.predictions(self._gibbs(g / len(self.x))[0])
            gap = self.fenchel_young(g, z)
            if gap <= tolerance:
                law, _ = self.gibbs(g / len(self.x))
                return Optimum(self.objective(law), self.dual_value(g), gap, self.risk(z), self.kl(law), z, g, law)
        raise RuntimeError(f"L-BFGS on the dual stopped at a duality gap of {gap:.2g}, above {tolerance:.2g}.")

    def _best_over_predictions(self) -> np.ndarray:
        """At g = l'(u) the conjugate is u . l'(u) - l(u), and dD/du_i = l''(u_i) (z_i - u_i) / n."""
        n, shape = len(self.x), self.outputs.shape[1:]

        def negative_dual(flat):
            u = flat.reshape(shape)
            g, second = self._rows("derivative", u), self._rows("second", u)
            law, log_normaliser = self._gibbs(g / n)
            conjugate = np.sum((u * g).reshape(n, -1), axis=1) - self._rows("value", u)
            residual = ((self.predictions(law) - u) / n).reshape(n, -1)
            ascent = np.einsum("nij,nj->ni", second.reshape(n, residual.shape[1], -1), residual)
            return float(np.mean(conjugate)) + self.temperature * log_normaliser, -ascent.ravel()

        u = self.predictions(self._prior)
        return self._rows("derivative", _minimised(negative_dual, u))

    def _best_over_duals(self) -> np.ndarray:
        """dD/dg_i = (z_i - l*'(g_i)) / n."""
        n, shape, loss = len(self.x), self.outputs.shape[1:], self.model.loss

        def negative_dual(flat):
            g = flat.reshape(shape)
            law, log_normaliser = self._gibbs(g / n)
            ascent = self.predictions(law) - self._rows("conjugate_slope", g)
            value = float(np.mean(self._rows("conjugate", g))) + self.temperature * log_normaliser
            return value, -ascent.ravel() / n

        ends = [
            np.broadcast_to(np.asarray(end, float).reshape(-1, *(1,) * (len(shape) - 1)), shape)
            for end in loss.domain(self.y)
        ]
        rounding = np.array([1e-13, -1e-13])  # at an end itself the conjugate has no derivative
        box = np.stack(ends, axis=-1).reshape(-1, 2) + rounding
        start = self._rows("derivative", self.predictions(self._prior))
        return _minimised(negative_dual, start, box)

    @property
    def _prior(self) -> Law:
        return Law(np.exp(self.log_prior), np.zeros_like(self.log_prior))

    @functools.cached_property
    def _on_device(self) -> Array:
        """The outputs where JAX computes, taken there once."""
        with jax.enable_x64(True):
            return jnp.asarray(self.outputs)

    def _seen(self, law: Law, key: Array, particles: int | None) -> _GridOutputs:
        """What a rule sees of a law: all of it, or that many independent draws."""
        if particles is None:
            return _GridOutputs(self._on_device, jnp.asarray(law.probability))
        chosen = np.asarray(jax.random.choice(key, len(law.probability), (particles,), p=jnp.asarray(law.probability)))
        outputs, mass = jnp.asarray(self.outputs[chosen]), jnp.full(particles, 1 / particles)
        return _GridOutputs(outputs, mass, jnp.asarray(particles, float))

    def _rows(self, function: str, z: np.ndarray) -> np.ndarray:
        """A function of the loss, by its name, at every example."""
        with jax.enable_x64(True):
            return np.asarray(_over_rows(self.model.loss, function, jnp.asarray(z), self.y))


@functools.partial(jax.jit, static_argnames=("loss",))
def _updated(
    rule: Rule,
    key: Array,
    state: Any,
    t: Array,
    view: _GridOutputs,
    batch: Array | None,
    y: Any,
    loss: Loss,
    temperature: Array,
) -> tuple[Any, Coefficients]:
    return rule.update(key, state, t, view, batch, Problem(y, loss, temperature))


def _law(log_mass: np.ndarray, log_prior: np.ndarray) -> tuple[Law, float]:
    """The law whose nodes have masses in these proportions, and the logarithm of their sum."""
    log_normaliser = logsumexp(log_mass)
    log_q = log_mass - log_normaliser
    inside = np.isfinite(log_prior)
    log_ratio = np.where(inside, log_q - np.where(inside, log_prior, 0.0), 0.0)
    return Law(np.exp(log_q), log_ratio), float(log_normaliser)


@functools.partial(jax.jit, static_argnames=("loss", "function"))
def _over_rows(loss: Loss, function: str, z: Array, y: Any) -> Array:
    derived = {"second": jax.jacfwd(loss.derivative), "conjugate_slope": jax.grad(loss.conjugate)}
    return loss.over_rows(derived.get(function) or getattr(loss, function), z, y)


@jax.jit
def _energies(potential: GibbsPotential, thetas: Array) -> Array:
    return jax.lax.map(potential, thetas, batch_size=1000)


def _minimised(function: Any, start: np.ndarray, box: np.ndarray | None = None) -> np.ndarray:
    options = {"maxiter": 5000, "maxfun": 20000, "maxcor": 50, "ftol": 0.0, "gtol": 0.0}
    result = scipy.optimize.minimize(
        function, np.ravel(start), jac=True, method="L-BFGS-B", bounds=box, options=options
    )
    return result.x.reshape(start.shape)


def _on_grid(
    model: Model, thetas: np.ndarray, x: Array, chunk: int = 20_000
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """log p0 and H at the nodes, a chunk at a time."""
    at_rows = jax.vmap(model.output, in_axes=(None, 0))
    nodes = jax.jit(jax.vmap(lambda theta, x: (model.log_prior(theta, x[0]), at_rows(theta, x)), in_axes=(0, None)))
    for start in range(0, len(thetas), chunk):
        log_prior, outputs = nodes(jnp.asarray(thetas[start : start + chunk]), x)
        yield np.asarray(log_prior), np.asarray(outputs)
