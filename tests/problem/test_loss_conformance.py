"""Every loss of the library, and one of a user, passes the checks; broken ones do not."""

import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from tests.problem import loss_conformance
from tests.problem.loss_conformance import CHECKS

pytestmark = pytest.mark.quick

VECTORS = np.random.default_rng(0).normal(size=(8, 3))
CASES = {
    "squared": (mfpda.losses.Squared(), {}),
    "logistic": (mfpda.losses.Logistic(), {}),
    "smoothed_hinge": (mfpda.losses.SmoothedHinge(), {"predictions": np.linspace(-3, 3, 23)}),  # no kink on the grid
    "softmax": (mfpda.losses.Softmax(), {"labels": (0, 2), "predictions": VECTORS}),
    "squared_vector": (mfpda.losses.Squared(), {"labels": (VECTORS[0],), "predictions": VECTORS}),
}


class Cosh(mfpda.Loss):
    """With numerical conjugate."""

    scale: float = 1.0
    convex = True

    def value(self, z, y):
        return jnp.log(jnp.cosh((z - y) / self.scale))


CASES["of_a_user"] = (Cosh(2.0), {})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_losses_conform(name, check):
    loss, arguments = CASES[name]
    check(loss, **arguments)


class WrongDerivative(Cosh):
    def derivative(self, z, y):
        return 1.01 * super().derivative(z, y)


class WrongConjugate(mfpda.losses.Squared):
    def conjugate(self, g, y):
        return super().conjugate(g, y) - 1e-3


class NotConvex(mfpda.Loss):
    convex = True

    def value(self, z, y):
        return jnp.cos(z - y)


@pytest.mark.parametrize(
    ("loss", "check"),
    [
        (WrongDerivative(), loss_conformance.check_derivative_is_the_gradient),
        (WrongConjugate(), loss_conformance.check_fenchel_young),
        (NotConvex(), loss_conformance.check_convexity_is_declared_truly),
    ],
)
def test_broken_losses_are_seen(loss, check):
    with pytest.raises(AssertionError):
        check(loss)
