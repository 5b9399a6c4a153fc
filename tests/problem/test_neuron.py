import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

from mfpda import Model
from mfpda.problem import losses
from mfpda.problem.neuron import trace
from mfpda.problem.problem import Problem

pytestmark = pytest.mark.quick

X = jnp.array([0.3, -0.8])


def layered(x):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    with numpyro.plate("unit", 3):
        b = numpyro.sample("b", dist.Gamma(2.0, 1.0))
    mix = numpyro.sample("mix", dist.Dirichlet(jnp.ones(3)))
    amplitude = numpyro.sample("amplitude", dist.Uniform(-1.0, 2.0))
    return amplitude * jnp.tanh(x @ w + b @ mix)


MODEL = Model(layered, losses.Squared(), 0.1, dims={"w": ["feature"]}, coords={"feature": ["left", "right"]})


@pytest.fixture(scope="module")
def problem():
    return Problem.of(MODEL, X[None])


@pytest.fixture(scope="module")
def draws(problem):
    """20,000 thetas of q1, which is the prior here."""
    return jax.jit(jax.vmap(problem.draw_initial))(jax.random.split(jax.random.key(1), 20_000))


def test_sites_are_found_with_their_shapes_and_names():
    neuron = trace(MODEL.declaration, X)
    assert [site.name for site in neuron.sites] == ["scale", "w", "b", "mix", "amplitude"]
    assert neuron.site_names == ["scale", "w", "b", "mix", "amplitude"]
    assert [site.dims for site in neuron.sites] == [(), ("feature",), ("unit",), ("mix_dim_0",), ()]
    assert neuron.size == 1 + 2 + 3 + 2 + 1
    assert neuron.output == ()
    assert (neuron.input.shape, neuron.input.dtype) == ((2,), jnp.float32)


def test_split_and_join_undo_each_other():
    neuron = trace(MODEL.declaration, X)
    theta = jnp.arange(9.0)
    parts = neuron.split(theta)
    assert {name: part.shape for name, part in parts.items()} == {
        "scale": (), "w": (2,), "b": (3,), "mix": (2,), "amplitude": (),
    }  # fmt: skip
    np.testing.assert_array_equal(parts["b"], [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(neuron.join(dict(reversed(parts.items()))), theta)


def test_only_shape_and_type_of_the_input_matter():
    """One neuron for all rows, so that what is compiled for it serves them all; another for another shape or type."""
    assert trace(MODEL.declaration, X) is trace(MODEL.declaration, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert trace(MODEL.declaration, X) is trace(MODEL.declaration, 7 * X)
    assert trace(MODEL.declaration, X) != trace(MODEL.declaration, jnp.zeros(2, int))
    with jax.enable_x64(True):
        assert trace(MODEL.declaration, np.zeros(2)).input.dtype == jnp.float64


def test_output_and_prior_agree_with_numpyro(problem, draws):
    """h and log p0 against NumPyro's own log joint at the constrained values plus the Jacobians of its transforms."""

    @jax.jit
    @jax.vmap
    def pairs(theta):
        values = problem.neuron.evaluate(theta).values
        joint, traced = log_density(layered, (X,), {}, values)
        for name, part in problem.neuron.split(theta).items():
            transform = dist.biject_to(traced[name]["fn"].support)
            joint += jnp.sum(transform.log_abs_det_jacobian(part, values[name]))
        output = values["amplitude"] * jnp.tanh(X @ values["w"] + values["b"] @ values["mix"])
        return [
            (problem.log_prior(theta), joint),
            (problem.output(theta, X), output),
            (problem.neuron.output_of(values, X), output),
        ]

    for found, expected in pairs(draws[:3]):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_initial_draws_are_the_priors(problem, draws):
    values = problem.constrain(draws)
    assert list(values) == ["scale", "w", "b", "mix", "amplitude"]
    assert abs(jnp.mean(values["amplitude"]) - 0.5) < 5 * (3 / 12**0.5) / 20_000**0.5
    assert abs(jnp.mean(values["b"]) - 2.0) < 5 * 2**0.5 / 60_000**0.5
    np.testing.assert_allclose(jnp.sum(values["mix"], axis=1), 1, rtol=1e-5)


def test_init_replaces_the_prior_of_its_sites_only():
    init = {"w": dist.Normal(7.0, 0.01).expand([2]).to_event(1)}
    problem = Problem.of(Model(layered, losses.Squared(), 0.1, init=init), X[None])
    theta = jax.jit(problem.draw_initial)(jax.random.key(0))
    np.testing.assert_allclose(problem.constrain(theta[None])["w"], 7, atol=0.1)
    plain = Problem.of(Model(layered, losses.Squared(), 0.1), X[None])
    assert jax.jit(problem.log_prior)(theta) == jax.jit(plain.log_prior)(theta)
