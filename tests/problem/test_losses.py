import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from mfpda.errors import InputError
from mfpda.problem.losses import (
    FromFunction,
    Logistic,
    Loss,
    SmoothedHinge,
    Softmax,
    Squared,
    as_loss,
    seen_convex,
    seen_only_kinks,
)

SCALAR = [(Squared(), 0.7), (Logistic(), 1.0), (Logistic(), -1.0), (SmoothedHinge(), 1.0), (SmoothedHinge(), -1.0)]
POINTS = np.array([-3.0, -0.9, -0.2, 0.1, 0.24, 0.8, 4.0])


@pytest.mark.parametrize(("loss", "y"), SCALAR)
def test_derivative_is_the_slope_of_the_value(loss, y):
    with jax.enable_x64(True):
        for z in POINTS:
            slope = (loss.value(z + 1e-6, y) - loss.value(z - 1e-6, y)) / 2e-6
            assert abs(loss.derivative(jnp.asarray(z), y) - slope) < 1e-6


def test_softmax_derivative_is_the_slope_of_the_value():
    with jax.enable_x64(True):
        z = jnp.array([0.3, -1.0, 2.0])
        for k, unit in enumerate(jnp.eye(3)):
            slope = (Softmax().value(z + 1e-6 * unit, 1) - Softmax().value(z - 1e-6 * unit, 1)) / 2e-6
            assert abs(Softmax().derivative(z, 1)[k] - slope) < 1e-6


def test_smoothed_hinge_at_the_pieces_of_the_paper():
    loss = SmoothedHinge()
    assert [float(loss.value(z, 1.0)) for z in (0.6, 0.25, 0.0, -1.0)] == [0.0, 0.25, 1.0, 5.0]
    assert float(loss.value(-0.25, -1.0)) == 0.25


@pytest.mark.parametrize(("loss", "y"), SCALAR)
def test_conjugate_is_the_supremum(loss, y):
    """Against a bounded scalar maximiser, at duals inside the domain."""
    with jax.enable_x64(True):
        lower, upper = (float(end) for end in loss.domain(y))
        lower, upper = max(lower, -3.0), min(upper, 3.0)
        for share in (0.03, 0.4, 0.9):
            g = lower + share * (upper - lower)
            best = scipy.optimize.minimize_scalar(
                lambda z, g=g: float(loss.value(z, y)) - g * z,
                bounds=(-60, 60),
                method="bounded",
                options={"xatol": 1e-9},
            )
            assert abs(float(loss.conjugate(g, y)) + best.fun) < 1e-8


@pytest.mark.parametrize(("loss", "y"), [*SCALAR, (Softmax(), 2)])
def test_fenchel_young_is_an_equality_at_the_derivative_and_an_inequality_elsewhere(loss, y):
    with jax.enable_x64(True):
        z = jnp.array([0.4, -0.2, 0.1]) if isinstance(loss, Softmax) else jnp.asarray(0.4)
        g = loss.derivative(z, y)
        for other in (z, z + 0.5, z * -2):
            defect = loss.value(other, y) + loss.conjugate(g, y) - jnp.sum(g * other)
            assert defect >= -1e-12
            assert (defect < 1e-12) == bool(jnp.allclose(loss.derivative(other, y), g, atol=1e-12))


@pytest.mark.parametrize(("loss", "y"), SCALAR[1:])
def test_conjugate_is_infinite_just_outside_its_domain_and_finite_at_its_ends(loss, y):
    for end, outward in zip(loss.domain(y), (-1, 1), strict=True):
        assert jnp.isfinite(loss.conjugate(end, y))
        assert jnp.isinf(loss.conjugate(end + outward * 0.01, y))


def test_softmax_conjugate_is_infinite_off_the_simplex():
    assert jnp.isfinite(Softmax().conjugate(jnp.array([0.2, -0.5, 0.3]), 1))
    assert jnp.isinf(Softmax().conjugate(jnp.array([0.3, -0.5, 0.3]), 1))
    assert jnp.isinf(Softmax().conjugate(jnp.array([-0.2, 0.1, 0.1]), 1))


@pytest.mark.parametrize(
    ("loss", "y", "g"), [(*SCALAR[0], 1.3), (*SCALAR[1], -0.3), (*SCALAR[2], 0.9), (*SCALAR[3], -3.0)]
)
def test_numerical_conjugate_agrees_with_the_closed_form(loss, y, g):
    assert abs(Loss.conjugate(loss, g, y) - loss.conjugate(g, y)) < 1e-5
    for end in loss.domain(y):
        if jnp.isfinite(end):
            assert abs(Loss.conjugate(loss, end, y) - loss.conjugate(end, y)) < 1e-5
            assert jnp.isinf(Loss.conjugate(loss, 1.1 * end + 0.1 * jnp.sign(end) + (0.1 * y if end == 0 else 0), y))


def test_numerical_conjugate_of_several_outputs():
    g = jnp.array([0.2, -0.5, 0.3])
    assert abs(Loss.conjugate(Softmax(), g, 1) - Softmax().conjugate(g, 1)) < 1e-5
    assert jnp.isinf(Loss.conjugate(Softmax(), g + 0.1, 1))
    assert abs(Loss.conjugate(Squared(), g, jnp.ones(3)) - Squared().conjugate(g, jnp.ones(3))) < 1e-5


@pytest.mark.parametrize("loss", [lambda z, y: -jnp.log(z), lambda z, y: jnp.where(z > 0, -jnp.log(z), jnp.inf)])
def test_numerical_conjugate_of_a_loss_with_a_domain(loss):
    """-log z on z > 0 has the conjugate -1 - log(-g) on g < 0."""
    found = [float(as_loss(loss).conjugate(g, None)) for g in (-0.01, -0.5, -2.0, -300.0)]
    np.testing.assert_allclose(found, [-1 - np.log(-g) for g in (-0.01, -0.5, -2.0, -300.0)], rtol=1e-5)
    assert jnp.isinf(as_loss(loss).conjugate(0.5, None))
    assert seen_convex(as_loss(loss), None, ())
    assert not seen_convex(as_loss(lambda z, y: loss(z, y) - 0.1 * z**2), None, ())


def test_numerical_conjugate_of_a_loss_with_a_kink():
    absolute = FromFunction(lambda z, y: jnp.abs(z - y))
    np.testing.assert_allclose([absolute.conjugate(g, 0.7) for g in (-1.0, -0.5, 0.9)], [-0.7, -0.35, 0.63], atol=1e-6)
    assert jnp.isinf(absolute.conjugate(1.1, 0.7))


def test_numerical_conjugate_of_a_loss_that_overflows():
    """log cosh: finite inside (-1, 1) and +inf outside, although cosh overflows at |z| near 89."""
    loss = FromFunction(lambda z, y: jnp.log(jnp.cosh(z - y)))
    for g in (-3.0, -1.5, 1.1, 1.5):
        assert loss.conjugate(g, 0.0) == jnp.inf
    g = 0.5
    assert loss.conjugate(g, 0.0) == pytest.approx(g * np.arctanh(g) + 0.5 * np.log(1 - g**2), abs=1e-5)


def test_a_function_becomes_a_loss_with_its_derivative():
    loss = as_loss(lambda z, y: (z - y) ** 4)
    assert abs(loss.derivative(2.0, 1.0) - 4) < 1e-5
    with pytest.raises(InputError, match="Call it"):
        as_loss(Squared)


def test_convexity_is_seen():
    labels = np.array([1.0, -1.0])
    assert all(seen_convex(loss, labels, ()) for loss in (Squared(), Logistic(), SmoothedHinge()))
    assert seen_convex(Softmax(), np.array([0, 1]), (3,))
    assert not seen_convex(FromFunction(lambda z, y: jnp.tanh(z * y)), labels, ())
    assert not seen_convex(FromFunction(lambda z, y: z[0] * z[1]), None, (2,))


def huber(width):
    return lambda z, y: jnp.where(jnp.abs(z - y) < width, (z - y) ** 2 / (2 * width), jnp.abs(z - y) - width / 2)


NUMBERS, SIGNS, CLASSES = np.linspace(-1.3, 2.1, 9), np.array([1.0, -1.0]), np.array([0, 1, 2])
KINKED = {
    "absolute": (lambda z, y: jnp.abs(z - y), NUMBERS, ()),
    "absolute, far labels": (lambda z, y: jnp.abs(z - y), 1000 * NUMBERS, ()),
    "hinge": (lambda z, y: jnp.maximum(0, 1 - y * z), SIGNS, ()),
    "hinge by cases": (lambda z, y: jnp.where(y * z < 1, 1 - y * z, 0.0), SIGNS, ()),
    "pinball": (lambda z, y: jnp.maximum(0.9 * (y - z), -0.1 * (y - z)), NUMBERS, ()),
    "no label": (lambda z, y: jax.nn.relu(z), None, ()),
    "several outputs": (lambda z, y: jnp.sum(jnp.abs(z - y)), np.stack([NUMBERS, -NUMBERS], axis=1), (2,)),
    "several classes": (lambda z, y: jnp.max(1 + z - z[y]), CLASSES, (3,)),
}
CURVED = {
    "squared": (Squared(), NUMBERS, ()),
    "logistic": (Logistic(), SIGNS, ()),
    "smoothed hinge": (SmoothedHinge(), SIGNS, ()),
    "softmax": (Softmax(), CLASSES, (3,)),
    "smooth absolute": (lambda z, y: jnp.sqrt((z - y) ** 2 + 1e-2), NUMBERS, ()),
    "wide Huber": (huber(1.0), NUMBERS, ()),
    "narrow Huber": (huber(1e-3), NUMBERS, ()),
    "narrow Huber, far labels": (huber(0.1), 1000 * NUMBERS, ()),
    "smooth pinball": (lambda z, y: 0.1 * (z - y) + 0.05 * jax.nn.softplus((y - z) / 0.05), NUMBERS, ()),
    "logarithm": (lambda z, y: -jnp.log(z), None, ()),
    "linear, without kinks": (lambda z, y: z * y, NUMBERS, ()),
}


@pytest.mark.parametrize("name", [*KINKED, *CURVED])
def test_losses_whose_slope_only_jumps_are_seen(name):
    loss, y, outputs = (KINKED | CURVED)[name]
    labels = None if y is None else jnp.asarray(y)
    assert seen_only_kinks(as_loss(loss), labels, outputs) == (name in KINKED)


def test_another_value_inherits_no_formula_of_the_old_one():
    class Wave(Squared):
        def value(self, z, y):
            return jnp.cos(z - y)

    class Scaled(Squared):
        scale: float = 1.0

    assert Squared.convex
    assert not Wave().convex
    assert Scaled().convex
    assert Wave().derivative(1.0, 0.0) == pytest.approx(-np.sin(1))
    assert (Wave().strong_convexity(1.0), Scaled().strong_convexity(1.0)) == (0.0, 1.0)
    assert Logistic().convex  # its parent has labels and a domain, but no value
    assert Logistic().domain(1.0) == (-1.0, 0.0)


def test_an_init_of_its_own_is_refused():
    """Two losses would be equal whatever their settings are, and one would run the other's program."""
    with pytest.raises(InputError, match="settings of Pinball as fields, found an __init__"):

        class Pinball(Loss):
            def __init__(self, level):
                self.level = level
