"""What every loss must do, as checks that any loss object can be put through. z and y are scalars by default."""

import jax
import jax.numpy as jnp
import numpy as np

PREDICTIONS = np.linspace(-3, 3, 25)
LABELS = (-1.0, 1.0)


def check_value_is_a_scalar(loss, labels=LABELS, predictions=PREDICTIONS):
    for y in labels:
        for z in predictions:
            value = loss.value(jnp.asarray(z, float), jnp.asarray(y))
            assert jnp.shape(value) == ()
            assert jnp.isfinite(value)


def check_derivative_is_the_gradient(loss, labels=LABELS, predictions=PREDICTIONS):
    """By central differences in double precision. Kinks would have to lie on the grid to matter."""
    with jax.enable_x64(True):
        for y in map(jnp.asarray, labels):
            for z in predictions:
                z, step = jnp.asarray(z, float), 1e-6
                for k in range(max(z.size, 1)):
                    ahead = step * jnp.ones(()) if z.ndim == 0 else step * jnp.eye(z.size)[k]
                    slope = (loss.value(z + ahead, y) - loss.value(z - ahead, y)) / (2 * step)
                    found = jnp.ravel(loss.derivative(z, y))[k]
                    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-5)


def check_fenchel_young(loss, labels=LABELS, predictions=PREDICTIONS):
    """l(z) + l*(g) >= g . z for every g = l'(u), with equality at u = z."""
    with jax.enable_x64(True):
        for y in map(jnp.asarray, labels):
            zs = [jnp.asarray(z, float) for z in predictions]
            duals = [loss.derivative(z, y) for z in zs]
            conjugates = np.array([loss.conjugate(g, y) for g in duals])
            values = np.array([loss.value(z, y) for z in zs])
            products = np.array([[jnp.sum(g * z) for z in zs] for g in duals])
            slack = values[None] + conjugates[:, None] - products
            assert np.all(np.isfinite(conjugates))
            assert np.all(slack >= -1e-6)
            np.testing.assert_allclose(np.diag(slack), 0, atol=1e-6)


def check_convexity_is_declared_truly(loss, labels=LABELS, predictions=PREDICTIONS):
    """A loss that says it is convex is so between every two predictions tried."""
    if not loss.convex:
        return
    for y in map(jnp.asarray, labels):
        for a in predictions:
            for b in predictions:
                a, b = jnp.asarray(a, float), jnp.asarray(b, float)
                middle = loss.value((a + b) / 2, y)
                assert middle <= (loss.value(a, y) + loss.value(b, y)) / 2 + 1e-5 * (1 + abs(middle))


def check_equal_settings_are_equal(loss, **_):
    """Or every model would compile its own programs."""
    again = type(loss)(**vars(loss))
    assert again == loss
    assert hash(again) == hash(loss)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
