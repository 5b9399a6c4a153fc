"""The 1,797 handwritten digits of 8 x 8 pixels inside scikit-learn, in ten classes, shared by two studies."""

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

EXAMPLES = 1797


def test_share(n):
    """Examples to test for one to train: what ``Estimate.of`` needs to know of random splits."""
    return (EXAMPLES - n) / n


def split(seed, n):
    """n digits to train, the others to test, centred by the training means and divided by one standard deviation."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order] - np.mean(x[order[:n]], axis=0), y[order]
    x = x / np.std(x[:n])
    return x[:n], y[:n], x[n:], y[n:]


def accuracy(x, y):
    """The share of examples whose largest output is the one of their class, as a metric of a run."""
    return lambda predict: jnp.mean(jnp.argmax(predict(x), axis=1) == y)
