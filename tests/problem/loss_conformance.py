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
            zs = jnp.asarray(predictions, float)
            duals = jnp.stack([loss.derivative(z, y) for z in zs])
            conjugates = np.asarray(jax.jit(jax.vmap(loss.conjugate, in_axes=(0, None)))(duals, y))
            values = np.array([loss.value(z, y) for z in zs])
            products = np.asarray(duals.reshape(len(zs), -1) @ zs.reshape(len(zs), -1).T)
            slack = values[None] + conjugates[:, None] - products
            assert np.all(np.isfinite(conjugates))
            assert np.all(slack >= -1e-6)
            np.testing.assert_allclose(np.diag(slack), 0, atol=1e-6)


def check_convexity_is_declared_truly(loss, labels=LABELS, predictions=PREDICTIONS):
    """A loss that says it is convex is so between every two predictions tried."""
    if not loss.convex:
        return
    for y in map(jnp.asarray, labels):
        zs = jnp.asarray(predictions, float)
        between = (zs[:, None] + zs[None]) / 2
        at = jax.vmap(loss.value, in_axes=(0, None))
        ends, middle = at(zs, y), jax.vmap(at, in_axes=(0, None))(between, y)
        assert jnp.all(middle <= (ends[:, None] + ends) / 2 + 1e-5 * (1 + jnp.abs(middle)))


def check_equal_settings_are_equal(loss, **_):
    """Or every model would compile its own programs."""
    again = type(loss)(**vars(loss))
    assert again == loss
    assert hash(again) == hash(loss)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
