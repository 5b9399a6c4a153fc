"""The exact mean-field limit for p <= 2 parameters: integrals over theta by quadrature on a grid, in float64.

Dual averaging with exact Gibbs steps is Algorithm 2 of the paper, and with estimated predictions Algorithm 4. L-BFGS
on the dual finds the optimum. Tests measure the particle methods against these.

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
from mfpda.problem import DataSet, Deviations, GibbsPotential, Loss, Model, Problem, bind
from mfpda.rules import Coefficients, DualAveraging, Rule, RuleState

EDGE_MASS = 1e-6  # with more than this on the outermost nodes, the grid cuts the density off


class Law(NamedTuple):
    """A density on the grid: the probability of each node, and log dq/dp0 there."""

    probability: np.ndarray
    log_ratio: np.ndarray


class Step(NamedTuple):
    """The state after one outer step: q_t, its dual g_t, and how they compare.

    objective = L(q_t), dual_value = D(g_t), kl = KL(q_t || q_g). With z the predictions of q_t, fenchel_young is

        (1/n) sum_i [ loss(z_i) + loss*(g_i) - g_i . z_i ]                                                          (FY)

    and objective - dual_value = fenchel_young + T kl. gap = L(q_g) - D(g) is (FY) with the predictions of q_g. A
    certificate estimates it.
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
    """The view of the outputs for a rule, with expectations under a law on the grid instead of particle means."""

    outputs: Array
    mass: Array
    particles: Array | float = np.inf  # the number of draws behind the moments: infinite for the law itself

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
    """A problem on a grid over unconstrained theta: the log prior mass and the outputs H of each node."""

    problem: Problem  # in double precision
    thetas: np.ndarray
    log_prior: np.ndarray
    outputs: np.ndarray
    edge: np.ndarray

    @classmethod
    def of(cls, model: Model, data: Any, bounds: Any = (-10.0, 10.0), points: int = 401) -> "Quadrature":
        """Apply the trapezoidal rule on a box. ``bounds`` is (lower, upper), or one such pair per parameter.

        For smooth densities that vanish at the edges, its error falls faster than any power of the spacing.
        """
        with jax.enable_x64(True):
            problem = bind(model, *data)
            p = problem.neuron.size
            if p > 2:
                raise InputError("a neuron with at most 2 parameters", str(p), "Quadrature needs a grid: use fit.")
            boxes = np.broadcast_to(np.asarray(bounds, float), (p, 2))
            axes = [np.linspace(lower, upper, points) for lower, upper in boxes]
            thetas = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
            edge = np.any((thetas == boxes[:, 0]) | (thetas == boxes[:, 1]), axis=1)
            log_prior, outputs = map(np.asarray, _on_grid(problem, jnp.asarray(thetas)))
            log_weight = log_prior + sum(np.log(axis[1] - axis[0]) for axis in axes)
        total = logsumexp(log_weight)
        if abs(total) > 1e-3:
            found = f"prior mass {np.exp(total):.4f} on it"
            raise InputError("a grid that holds the whole prior", found, "Widen bounds or raise points.")
        return cls(problem, thetas, log_weight - total, outputs, edge)

    @property
    def x(self) -> np.ndarray:
        return np.asarray(self.problem.x)

    @property
    def y(self) -> np.ndarray | None:
        return None if self.problem.y is None else np.asarray(self.problem.y)

    @property
    def loss(self) -> Loss:
        return self.problem.loss

    @property
    def temperature(self) -> float:
        return float(self.problem.temperature)

    def law_of(self, potential: GibbsPotential) -> Law:
        """Return exp(-V), normalised, for a potential of this model. Its anchors may differ from the grid's data."""
        energy = np.asarray(_energies(potential, jnp.asarray(self.thetas, float)), float)
        # V includes the density of the prior: on equally spaced nodes that is proportional to its mass
        return self._held(_law(-energy, self.log_prior)[0])

    def gibbs(self, coefficients: np.ndarray, gamma: float = 1.0) -> tuple[Law, float]:
        """Return q proportional to exp(-gamma [ sum_i c_i . h(., x_i) / T - log p0 ]) and its log normaliser, which is
        log E_p0 exp(-sum_i c_i . h / T) at gamma = 1.

        At gamma < 1, p0 is raised to gamma too, as a density in unconstrained space.
        """
        law, log_normaliser = self._gibbs(coefficients, gamma)
        return self._held(law), log_normaliser

    def _held(self, law: Law) -> Law:
        """Return the law. Refuse it if the grid cuts it off."""
        outside = law.probability[self.edge].sum()
        if outside > EDGE_MASS:
            advice = "Widen bounds (and raise points to keep the spacing)."
            raise InputError("a grid that holds the whole Gibbs density", f"mass {outside:.2g} on its edge", advice)
        return law

    def _gibbs(self, coefficients: np.ndarray, gamma: float = 1.0) -> tuple[Law, float]:
        energy = self.outputs.reshape(len(self.thetas), -1) @ np.ravel(coefficients) / self.temperature
        return _law(gamma * (self.log_prior - energy), self.log_prior)

    def predictions(self, law: Law) -> np.ndarray:
        """Return z_i = E_q h(theta, x_i)."""
        return np.tensordot(law.probability, self.outputs, axes=1)

    def risk(self, z: np.ndarray) -> float:
        """Return (1/n) sum_i loss(z_i, y_i)."""
        return float(np.mean(self._rows("value", z)))

    def kl(self, law: Law) -> float:
        """Return KL(q || p0)."""
        return float(law.probability @ law.log_ratio)

    def objective(self, law: Law) -> float:
        """Return L(q) = mean loss + T KL(q || p0)."""
        return self.risk(self.predictions(law)) + self.temperature * self.kl(law)

    def dual_value(self, g: np.ndarray) -> float:
        """Return D(g) = -(1/n) sum_i loss*(g_i, y_i) - T log E_p0 exp(-(1/(nT)) sum_i g_i . h(theta, x_i))."""
        _, log_normaliser = self.gibbs(g / len(self.x))
        return -float(np.mean(self._rows("conjugate", g))) - self.temperature * log_normaliser

    def fenchel_young(self, g: np.ndarray, z: np.ndarray) -> float:
        """Return (FY), (1/n) sum_i [ loss(z_i) + loss*(g_i) - g_i . z_i ]."""
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
        """Run an outer rule with exact Gibbs steps from q1 = p0. Dual averaging gives Algorithm 2.

        With ``particles``, predictions are means of that many independent draws of q_t, as in Algorithm 4. Random
        batches and particles need a key.
        """
        if key is None and (batch_size or particles):
            raise InputError("a key for random batches or particles", "None", "Pass key=jax.random.key(0).")
        key = jax.random.key(0) if key is None else key  # not used if nothing is random
        law = self._prior
        batches = DataSet(jax.random.fold_in(key, 0), self.problem, batch_size)
        with jax.enable_x64(True):
            state = rule.init(len(self.x), self.outputs.shape[2:])
            chosen = Coefficients(jnp.zeros(self.outputs.shape[1:]), jnp.ones(()))
        for t in range(1, outer_steps + 1):
            with jax.enable_x64(True):
                step_key, draw_key = jax.random.split(jax.random.fold_in(key, t))
                view = self._seen(law, draw_key, particles)
                now, batch = jnp.asarray(t, float), batches.at(t)[1]
                state, chosen = self._stepped(rule, step_key, state, chosen, now, view, batch, particles)
                c = chosen.c
                if rule.on_batch and batch is not None:
                    c = jnp.zeros((len(self.x), *c.shape[1:])).at[batch].add(c)
                dual = rule.dual(state)
                unseen = not bool(jnp.all(dual.mass > 0))
                g = np.asarray(dual.filled(self.problem.derivative(view.mean())) if unseen else dual.g)
            coefficients, gamma = np.asarray(c), float(chosen.gamma)
            law, of_dual = self.gibbs(coefficients, gamma)[0], self.gibbs(g / len(self.x))[0]
            gap, fenchel_young = (self.fenchel_young(g, self.predictions(each)) for each in (of_dual, law))
            objective, dual_value = self.objective(law), self.dual_value(g)
            kl = float(law.probability @ (law.log_ratio - of_dual.log_ratio))
            yield Step(t, coefficients, gamma, law, g, objective, dual_value, fenchel_young, kl, gap)

    def optimum(self, tolerance: float = 1e-10) -> Optimum:
        """Maximise D by L-BFGS, to a duality gap of at most ``tolerance``.

        The first search is over u with g_i = l'(u_i, y_i), which is feasible for every u. On linear pieces of a loss
        (the smoothed hinge), l'' = 0 and this search has no gradient. The second search is over g itself, in the box
        that contains the conjugate's domain.
        """
        for search in (self._best_over_predictions, self._best_over_duals):
            g = search()
            law, _ = self._gibbs(g / len(self.x))
            z = self.predictions(law)
            gap = self.fenchel_young(g, z)
            if gap <= tolerance:  # dual_value refuses a law that the grid cuts off
                return Optimum(self.objective(law), self.dual_value(g), gap, self.risk(z), self.kl(law), z, g, law)
        raise RuntimeError(f"L-BFGS on the dual stopped at a duality gap of {gap:.2g}, above {tolerance:.2g}.")

    def _best_over_predictions(self) -> np.ndarray:
        """Maximise D(l'(u)): the conjugate is u . l'(u) - l(u), and dD/du_i = l''(u_i) (z_i - u_i) / n."""
        n, shape = len(self.x), self.outputs.shape[1:]

        def negative_dual(flat):
            u = flat.reshape(shape)
            g, second = self._rows("derivative", u), self._rows("second", u)
            law, log_normaliser = self._gibbs(g / n)
            conjugate = np.sum((u * g).reshape(n, -1), axis=1) - self._rows("value", u)
            residual = ((self.predictions(law) - u) / n).reshape(n, -1)
            ascent = np.einsum("nij,nj->ni", second.reshape(n, residual.shape[1], -1), residual)
            return float(np.mean(conjugate)) + self.temperature * log_normaliser, -ascent.ravel()

        return self._rows("derivative", _minimised(negative_dual, self.predictions(self._prior)))

    def _best_over_duals(self) -> np.ndarray:
        """Maximise D(g), with dD/dg_i = (z_i - l*'(g_i)) / n."""
        n, shape = len(self.x), self.outputs.shape[1:]

        def negative_dual(flat):
            g = flat.reshape(shape)
            law, log_normaliser = self._gibbs(g / n)
            ascent = self.predictions(law) - self._rows("conjugate_slope", g)
            value = float(np.mean(self._rows("conjugate", g))) + self.temperature * log_normaliser
            return value, -ascent.ravel() / n

        columns = (np.asarray(end, float).reshape(-1, *(1,) * (len(shape) - 1)) for end in self.loss.domain(self.y))
        ends = np.stack([np.broadcast_to(column, shape) for column in columns], axis=-1)
        box = ends.reshape(-1, 2) + np.array([1e-13, -1e-13])  # at an end itself the conjugate has no derivative
        start = self._rows("derivative", self.predictions(self._prior))
        return _minimised(negative_dual, start, box)

    @property
    def _prior(self) -> Law:
        return Law(np.exp(self.log_prior), np.zeros_like(self.log_prior))

    @functools.cached_property
    def _on_device(self) -> Array:
        """The outputs on JAX's device, moved there once."""
        with jax.enable_x64(True):
            return jnp.asarray(self.outputs)

    def _stepped(
        self,
        rule: Rule,
        key: Array,
        state: RuleState,
        before: Coefficients,
        t: Array,
        view: _GridOutputs,
        batch: Array | None,
        particles: int | None,
    ) -> tuple[RuleState, Coefficients]:
        """Update a rule, and take the step back if the rule does not allow it for the new law."""
        after, coefficients = _updated(rule, key, state, t, view, batch, self.problem)
        if rule.takes_back:
            law = self._gibbs(np.asarray(coefficients.c), float(coefficients.gamma))[0]
            seen = self._seen(law, jax.random.fold_in(key, 1), particles)
            if not _allows(rule, after, seen, self.problem):
                return rule.taken_back(state, after), before
        return after, coefficients

    def _seen(self, law: Law, key: Array, particles: int | None) -> _GridOutputs:
        """Return the view of a law for a rule: the whole law, or independent draws of it."""
        if particles is None:
            return _GridOutputs(self._on_device, jnp.asarray(law.probability))
        chosen = np.asarray(jax.random.choice(key, len(law.probability), (particles,), p=jnp.asarray(law.probability)))
        outputs, mass = jnp.asarray(self.outputs[chosen]), jnp.full(particles, 1 / particles)
        return _GridOutputs(outputs, mass, jnp.asarray(particles, float))

    def _rows(self, function: str, z: np.ndarray) -> np.ndarray:
        """Evaluate a function of the loss, given by its name, at every example."""
        with jax.enable_x64(True):
            return np.asarray(_over_rows(self.loss, function, jnp.asarray(z), self.y))


_updated = jax.jit(lambda rule, *arguments: rule.update(*arguments))
_allows = jax.jit(lambda rule, *arguments: rule.allows(*arguments))
_energies = jax.jit(lambda potential, thetas: jax.lax.map(potential, thetas, batch_size=1000))


@jax.jit
def _on_grid(problem: Problem, thetas: Array) -> tuple[Array, Array]:
    """Evaluate log p0 and H at the nodes."""
    outputs = jax.vmap(problem.output, in_axes=(None, 0))
    return jax.lax.map(lambda theta: (problem.log_prior(theta), outputs(theta, problem.x)), thetas, batch_size=20_000)


def _law(log_mass: np.ndarray, log_prior: np.ndarray) -> tuple[Law, float]:
    """Normalise the masses of the nodes to a law, and return the logarithm of their sum too."""
    log_normaliser = logsumexp(log_mass)
    log_q = log_mass - log_normaliser
    inside = np.isfinite(log_prior)
    log_ratio = np.where(inside, log_q - np.where(inside, log_prior, 0.0), 0.0)
    return Law(np.exp(log_q), log_ratio), float(log_normaliser)


@functools.partial(jax.jit, static_argnames=("loss", "function"))
def _over_rows(loss: Loss, function: str, z: Array, y: Any) -> Array:
    derived = {"second": jax.jacfwd(loss.derivative), "conjugate_slope": jax.grad(loss.conjugate)}
    return loss.over_rows(derived.get(function) or getattr(loss, function), z, y)


def _minimised(function: Any, start: np.ndarray, box: np.ndarray | None = None) -> np.ndarray:
    options = {"maxiter": 5000, "maxfun": 20000, "maxcor": 50, "ftol": 0.0, "gtol": 0.0}
    flat = np.ravel(start)
    found = scipy.optimize.minimize(function, flat, jac=True, method="L-BFGS-B", bounds=box, options=options)
    return found.x.reshape(start.shape)
