"""Whether a model is that of an earlier run: the same names, and the same values at a few particles."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError
from mfpda.persistence import fingerprint
from mfpda.problem import Problem

pytestmark = pytest.mark.quick

X = np.linspace(-1, 1, 12)[:, None]
SITES = {"w": dist.Normal(0, 1).expand([1]).to_event(1), "b": dist.Normal(0, 1)}


def h(theta, x):
    return 2 * jnp.tanh(x @ theta["w"] + theta["b"])


def problem_of(y=np.sin(X[:, 0]), **change):
    given = {"h": h, "sites": SITES, "loss": mfpda.losses.Squared(), "temperature": 0.02}
    model = mfpda.Model.from_function(**(given | change))
    return Problem.of(model, jnp.asarray(X, float), None if y is None else jnp.asarray(y, float))


@pytest.fixture(scope="module")
def thetas():
    return jax.random.normal(jax.random.key(0), (9, 2))


def test_names_can_be_held_by_a_file():
    names = fingerprint.names(problem_of())
    assert names == {"sites": '[["w", [1]], ["b", []]]', "loss": "Squared", "temperature": 0.02}
    assert json.loads(json.dumps(names)) == names


def test_values_are_those_of_the_first_few(thetas):
    values = fingerprint.values(problem_of(), thetas)
    assert tuple(values) == fingerprint.VALUES
    few, w, b = fingerprint.FEW, thetas[:4, 0], thetas[:4, 1]
    outputs = 2 * np.tanh(np.outer(w, X[:few, 0]) + np.asarray(b)[:, None])
    np.testing.assert_allclose(values["h(theta, x)"], outputs, rtol=1e-5)
    log_densities = np.sum(-0.5 * np.square(thetas[:4]) - 0.5 * np.log(2 * np.pi), axis=1)
    np.testing.assert_allclose(values["log p0(theta)"], log_densities, rtol=1e-5)
    losses = 0.5 * np.square(outputs.mean(axis=0) - np.sin(X[:few, 0]))
    np.testing.assert_allclose(values["loss"], losses, rtol=1e-5)


def test_they_do_not_depend_on_other_particles_nor_on_weights_and_blocks(thetas):
    problem = problem_of()
    values = fingerprint.values(problem, thetas)
    weighted = dataclasses.replace(problem, weights=jnp.arange(12.0))
    others = {
        "fewer particles": fingerprint.values(problem, thetas[: fingerprint.FEW]),
        "other weights": fingerprint.values(weighted, thetas),
        "blocks": fingerprint.values(problem.in_blocks(mfpda.problem.Blocks(5)), thetas),
    }
    for what, other in others.items():
        for name, value in values.items():
            np.testing.assert_array_equal(other[name], value, err_msg=what)


def test_fewer_particles_and_examples_than_a_few(thetas):
    one = problem_of().at(slice(0, 1))
    assert {name: value.shape for name, value in fingerprint.values(one, thetas[:2]).items()} == {
        "h(theta, x)": (2, 1), "log p0(theta)": (2,), "loss": (1,),
    }  # fmt: skip


def test_the_same_model_declared_anew_is_the_same(thetas):
    earlier, again = problem_of(), problem_of()
    fingerprint.check_names(again, fingerprint.names(earlier))
    fingerprint.check_values(again, thetas, fingerprint.values(earlier, thetas))


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("loss Squared, found loss Logistic", {"loss": mfpda.losses.Logistic()}),
        ("temperature 0.02, found temperature 0.5", {"temperature": 0.5}),
        ('sites.*"b".*found sites', {"sites": {"w": SITES["w"], "c": SITES["b"]}, "h": lambda theta, x: theta["c"]}),
        (r"sites.*\[1\].*found sites.*\[\]", {"sites": {"w": SITES["b"]}, "h": lambda theta, x: theta["w"]}),
    ],
)
def test_other_names_are_refused(match, change):
    with pytest.raises(InputError, match="the model of that run, with " + match):
        fingerprint.check_names(problem_of(**change), fingerprint.names(problem_of()))


@pytest.mark.parametrize(
    ("match", "change"),
    [
        (r"h\(theta, x\)", {"h": lambda theta, x: 2.01 * jnp.tanh(x @ theta["w"] + theta["b"])}),
        (r"log p0\(theta\)", {"sites": SITES | {"b": dist.Normal(0, 3)}}),
        ("loss", {"loss": mfpda.losses.Squared(), "y": np.cos(X[:, 0])}),
    ],
)
def test_other_values_are_refused(thetas, match, change):
    with pytest.raises(InputError, match=f"the model of that run, whose {match} is .* at one of its particles, found"):
        fingerprint.check_values(problem_of(**change), thetas, fingerprint.values(problem_of(), thetas))


def test_rounding_is_no_other_value(thetas):
    values = {name: value * (1 + 5e-4) for name, value in fingerprint.values(problem_of(), thetas).items()}
    fingerprint.check_values(problem_of(), thetas, values)


def test_a_loss_without_labels(thetas):
    problem = problem_of(y=None, loss=lambda z, y: (z - 1) ** 2)
    values = fingerprint.values(problem, thetas)
    np.testing.assert_allclose(values["loss"], np.square(values["h(theta, x)"].mean(axis=0) - 1), rtol=1e-5)
