import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError
from mfpda.problem import bind, check_proper, over_outputs, properness, runs_away
from tests.helpers import slow_but
from tests.proper_models import IMPROPER, PROPER, X, Y, model_of, problem_of

QUICK = (
    "a relu", "cube", "Cauchy", "LogNormal scale", "cold Laplace", "cold HalfNormal times normal", "Neal's funnel",
    "linear", "wide linear", "tanh(a) relu", "hot a relu", "Cauchy in tanh", "sine", "funnel", "Uniform weights",
    "Neal's funnel in tanh",
)  # fmt: skip


def test_the_tables_are_long_enough():
    assert len(IMPROPER) >= 10
    assert len(PROPER) >= 30


@pytest.mark.parametrize("name", slow_but(QUICK, IMPROPER))
def test_improper_models_are_refused_with_the_line_to_write(name):
    same_order = name.startswith("cold") or name == "a relu"
    line = r"more slowly than its prior falls.*`jnp.tanh\(a\) \* jax.nn.relu\(w @ x \+ b\)`.*lighter tails"
    advice = "a temperature well above" if same_order else "No temperature helps"
    with pytest.raises(InputError, match=f"{line}.*{advice}"):
        check_proper(problem_of(name))


@pytest.mark.parametrize("name", slow_but(QUICK, PROPER))
def test_proper_models_are_never_refused(name):
    check_proper(problem_of(name))


@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
def test_the_advice_for_a_relu_works(temperature):
    """At every temperature tanh(a) relu passes; a relu does from a temperature on that the refusal names."""
    check_proper(problem_of("tanh(a) relu", temperature))
    if temperature < 0.5:
        with pytest.raises(InputError, match="'a'"):
            check_proper(problem_of("a relu", temperature))
    if temperature == 5.0:
        check_proper(problem_of("a relu", temperature))


def quadratic(temperature):
    """h = a w x with normal priors, one example: V = (a^2 + w^2) / 2 - a w y / T is improper exactly if |y| > T."""
    neuron = lambda x: numpyro.sample("a", dist.Normal(0, 1)) * numpyro.sample("w", dist.Normal(0, 1)) * x  # noqa: E731
    return bind(mfpda.Model(neuron, mfpda.losses.Squared(), temperature), np.ones(1), np.ones(1))


@pytest.mark.parametrize(("g", "improper"), [(-1.05, True), (-0.95, False), (0.95, False), (1.05, True), (0.0, False)])
def test_the_boundary_of_a_quadratic_is_found(g, improper):
    problem = quadratic(1.0)
    thetas = jax.random.normal(jax.random.key(0), (100, 2))
    assert bool(runs_away(problem.potential(jnp.array([g])), thetas).any()) == improper


def test_descent_finds_the_one_bad_direction_of_many():
    """h = a w_1 in 200 dimensions, with V = (a^2 + |w|^2) / 2 - 1.5 a w_1: random directions hardly see w_1."""
    h = lambda theta, x: theta["a"] * theta["w"][0] * x  # noqa: E731
    sites = {"a": dist.Normal(0, 1), "w": dist.Normal(0, 1).expand([200]).to_event(1)}
    problem = bind(mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 1.0), np.ones(1), np.array([1.5]))
    with pytest.raises(InputError, match="'a', 'w'"):
        check_proper(problem)


def gibbs(name, factor=1.0):
    """The potential of the first linearisation, times a factor."""
    problem = problem_of(name)
    g = factor * problem.derivative(jnp.zeros(len(X)))
    return problem.potential(over_outputs(problem.weights, g) * g)


@pytest.mark.parametrize("name", ["a relu", "cube", "LogNormal scale"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e4])
def test_particles_see_that_their_density_is_improper(name, scale):
    potential = gibbs(name)
    thetas = scale * jax.random.normal(jax.random.key(0), (100, potential.problem.neuron.size))
    assert runs_away(potential, thetas).any()


@pytest.mark.parametrize("name", ["linear", "tanh(a) relu", "funnel", "Cauchy in tanh", "Uniform weights"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e4])
def test_particles_of_a_proper_density_never_do(name, scale):
    """Also if they are far away, as where dual averaging overshoots."""
    potential = gibbs(name, 1 + scale)
    thetas = scale * jax.random.normal(jax.random.key(0), (100, potential.problem.neuron.size))
    assert not runs_away(potential, thetas).any()


def test_few_particles_are_enough():
    assert runs_away(gibbs("a relu"), jnp.ones((1, 4))).any()


def test_what_is_not_finite_decides_nothing():
    """An output that overflows, is NaN far out or at once, or a prior that does."""
    radii = properness.RADII[:, None]
    zero, falling = jnp.zeros(1, bool), jnp.asarray(-(radii**3))
    rising = jnp.asarray(radii**2)
    judge = lambda e, p: bool(properness.judged(e, p, zero)[0][0])  # noqa: E731
    assert judge(falling, rising)
    assert judge(jnp.where(radii > 100, jnp.nan, falling), rising)
    assert judge(jnp.where(radii > 100, -jnp.inf, falling), rising)  # by what it did before
    assert not judge(jnp.where(radii > 1, -jnp.inf, falling), rising)
    assert not judge(falling, jnp.where(radii > 1, jnp.inf, rising))
    assert not judge(jnp.full_like(falling, jnp.nan), rising)
    assert not judge(falling, -rising)  # the neck of a funnel


def test_a_neuron_that_is_not_finite_is_left_to_the_run():
    neuron = lambda x: x[0] * jnp.log(numpyro.sample("w", dist.Normal(0, 1)))  # noqa: E731
    check_proper(bind(mfpda.Model(neuron, mfpda.losses.Squared(), 0.1), X, Y))


def test_double_precision():
    with jax.enable_x64(True):
        check_proper(problem_of("tanh(a) relu"))
        with pytest.raises(InputError, match="no finite integral"):
            check_proper(problem_of("a relu"))


def test_a_second_problem_of_the_same_shape_compiles_nothing():
    model = model_of("tanh(a) relu")
    check_proper(bind(model, X, Y))
    before = properness._followed._cache_size()
    check_proper(bind(model, X[::-1], Y))
    potential = bind(model, X, -Y).potential(jnp.asarray(Y, float))
    runs_away(potential, jnp.ones((100, 4)))
    assert properness._followed._cache_size() == before
