import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

from mfpda import InputError, Model
from mfpda.problem import losses


def layered(x):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    with numpyro.plate("unit", 3):
        b = numpyro.sample("b", dist.Gamma(2.0, 1.0))
    mix = numpyro.sample("mix", dist.Dirichlet(jnp.ones(3)))
    amplitude = numpyro.sample("amplitude", dist.Uniform(-1.0, 2.0))
    return amplitude * jnp.tanh(x @ w + b @ mix)


@pytest.fixture
def model():
    return Model(layered, losses.Squared(), 0.1, dims={"w": ["feature"]}, coords={"feature": ["left", "right"]})


X = jnp.array([0.3, -0.8])


def test_sites_are_found_with_their_shapes_and_names(model):
    structure = model.structure(X)
    assert [site.name for site in structure.sites] == ["scale", "w", "b", "mix", "amplitude"]
    assert [site.dims for site in structure.sites] == [(), ("feature",), ("unit",), ("mix_dim_0",), ()]
    assert structure.size == 1 + 2 + 3 + 2 + 1
    assert structure.output == ()


def test_output_and_prior_agree_with_numpyro(model):
    """h and log p0 against NumPyro's own log joint at the constrained values plus the Jacobians of its transforms."""
    thetas = jax.jit(jax.vmap(model.draw_initial, (0, None)))(jax.random.split(jax.random.key(0), 3), X)
    for theta in thetas:
        values = model.constrain(theta, X)
        joint, trace = log_density(layered, (X,), {}, values)
        jacobians = 0.0
        for name, part in model.structure(X).split(theta).items():
            transform = dist.biject_to(trace[name]["fn"].support)
            jacobians += jnp.sum(transform.log_abs_det_jacobian(part, values[name]))
        np.testing.assert_allclose(model.log_prior(theta, X), joint + jacobians, rtol=1e-5)
        expected = values["amplitude"] * jnp.tanh(X @ values["w"] + values["b"] @ values["mix"])
        np.testing.assert_allclose(model.output(theta, X), expected, rtol=1e-5)
        np.testing.assert_allclose(model.output_of(values, X), expected, rtol=1e-5)


def test_initial_draws_are_the_priors(model):
    thetas = jax.jit(jax.vmap(model.draw_initial, (0, None)))(jax.random.split(jax.random.key(1), 20_000), X)
    values = jax.jit(jax.vmap(model.constrain, (0, None)))(thetas, X)
    assert abs(jnp.mean(values["amplitude"]) - 0.5) < 5 * (3 / 12**0.5) / 20_000**0.5
    assert abs(jnp.mean(values["b"]) - 2.0) < 5 * 2**0.5 / 60_000**0.5
    np.testing.assert_allclose(jnp.sum(values["mix"], axis=1), 1, rtol=1e-5)


def test_init_replaces_the_prior_of_its_sites_only():
    init = {"w": dist.Normal(7.0, 0.01).expand([2]).to_event(1)}
    model = Model(layered, losses.Squared(), 0.1, init=init)
    theta = model.draw_initial(jax.random.key(0), X)
    values = model.constrain(theta, X)
    np.testing.assert_allclose(values["w"], 7, atol=0.1)
    plain = Model(layered, losses.Squared(), 0.1)
    assert model.log_prior(theta, X) == plain.log_prior(theta, X)


def test_from_function_is_the_same_model_as_the_neuron():
    def neuron(x):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
        return jnp.tanh(x @ w)

    sites = {"w": dist.Normal(0, 2).expand([2]).to_event(1)}
    declared = Model(neuron, losses.Squared(), 0.1)
    plain = Model.from_function(lambda theta, x: jnp.tanh(x @ theta["w"]), sites, losses.Squared(), 0.1)
    theta = jnp.array([0.4, -1.0])
    assert declared.output(theta, X) == plain.output(theta, X)
    assert declared.log_prior(theta, X) == plain.log_prior(theta, X)


def test_a_model_is_a_pytree_whose_only_leaf_is_the_temperature(model):
    assert jax.tree.leaves(model) == [0.1]
    other = Model(layered, losses.Squared(), 0.7, dims={"w": ["feature"]}, coords={"feature": ["left", "right"]})
    assert jax.tree.structure(model) == jax.tree.structure(other)
    assert jax.jit(lambda model: 2 * model.temperature)(other) == pytest.approx(1.4)


@pytest.mark.parametrize(
    "prior",
    [
        dist.StudentT(4, 0, 1),
        dist.Laplace(0, 1),
        dist.HalfCauchy(1.0),
        dist.Gamma(0.5, 1.0),
        dist.Beta(2.0, 2.0),
        dist.Dirichlet(jnp.ones(10)),
        dist.Normal(0, 100),
        dist.LogNormal(0, 3),
    ],
)
def test_priors_with_integrable_cube_roots_are_taken(prior):
    h = lambda theta, x: jnp.sum(theta["w"]) * x  # noqa: E731
    Model.from_function(h, {"w": prior}, losses.Squared(), 0.1).check_prior(1.0, 1 / 3)


@pytest.mark.parametrize(
    "prior", [dist.Cauchy(0, 1), dist.StudentT(2, 0, 5), dist.MultivariateStudentT(4.0, jnp.zeros(3), jnp.eye(3))]
)
def test_priors_without_are_refused_and_gamma_one_is_offered(prior):
    h = lambda theta, x: jnp.sum(theta["w"]) * x  # noqa: E731
    model = Model.from_function(h, {"w": prior}, losses.Squared(), 0.1)
    with pytest.raises(InputError, match=r"DualAveraging\(gamma=1.0\)"):
        model.check_prior(1.0, 1 / 3)
    model.check_prior(1.0, 1.0)
