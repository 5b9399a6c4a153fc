"""The problems that the measurements of trust share, and how they read arguments, write records and print tables."""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn import datasets

import mfpda
from mfpda.exact import Quadrature
from models import circles
from tests.helpers import WIDE_BOUNDS, reference, single_index

REFERENCES = tuple(WIDE_BOUNDS)


class Exact(NamedTuple):
    """A reference problem in 2 dimensions on a grid. The same problem in p dimensions has the same duals and gaps."""

    grid: Quadrature
    dual: np.ndarray  # of the optimum
    predictions: np.ndarray  # of the optimum
    winnable: float  # L(p0) - L*, what could be won over the prior

    def predictions_of(self, g):
        """Return the exact predictions of q_g."""
        return self.grid.predictions(self.grid.gibbs(g / len(g))[0])

    def gap(self, g):
        """Return the exact L(q_g) - D(g)."""
        g = np.asarray(g, float)
        return self.grid.fenchel_young(g, self.predictions_of(g))

    def error(self, z):
        """Return the root mean square distance of predictions from the optimum's."""
        return float(np.sqrt(np.mean((np.asarray(z, float) - self.predictions) ** 2)))


@functools.cache
def exact(name):
    plain = reference(name)
    grid = Quadrature.of(plain.model, plain.data, plain.bounds)
    best = grid.optimum()
    return Exact(grid, best.dual, best.predictions, grid.objective(grid.gibbs(0 * best.dual)[0]) - best.objective)


class Case(NamedTuple):
    """A model with training data. Real data may have a test set, and a reference its exact solution."""

    model: mfpda.Model
    data: Any
    test: Any = None
    exact: Exact | None = None


def of_reference(name, dimensions):
    problem = reference(name, dimensions)
    return Case(problem.model, problem.data, exact=exact(name))


def normal(name, *shape):
    return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))


def standardised(values, rows=slice(None)):
    """Centre and scale columns by the mean and the standard deviation of these rows."""
    return (values - values[rows].mean(axis=0)) / values[rows].std(axis=0)


def diabetes(temperature=0.01):
    """One tanh neuron with an output weight, 12 parameters: 331 rows to train, 111 to test."""
    x, y = datasets.load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (standardised(part[order], slice(331)) for part in (x, y))

    def neuron(x):
        return 3 * jnp.tanh(normal("a")) * jnp.tanh(x @ normal("w", 10) + normal("b"))

    model = mfpda.Model(neuron, mfpda.losses.Squared(), temperature)
    return Case(model, (x[:331], y[:331]), test=(x[331:], y[331:]))


def breast_cancer():
    x, y = datasets.load_breast_cancer(return_X_y=True)
    neuron = lambda x: 5 * jnp.tanh(x @ normal("w", 30) + normal("b"))  # noqa: E731
    return Case(mfpda.Model(neuron, mfpda.losses.Logistic(), 0.01), (standardised(x), 2.0 * y - 1))


def wine():
    x, y = datasets.load_wine(return_X_y=True)
    neuron = lambda x: 3 * jnp.tanh(normal("v", 3)) * jnp.tanh(x @ normal("w", 13) + normal("b"))  # noqa: E731
    return Case(mfpda.Model(neuron, mfpda.losses.Softmax(), 0.01), (standardised(x), y))


def digits():
    """All 1,797 digits. The neuron is that of models/paper/multiclass.py, with a standard normal prior."""
    x, y = datasets.load_digits(return_X_y=True)
    neuron = lambda x: 10 * jnp.tanh(normal("a", 10) * jnp.tanh(x @ normal("b", 64)))  # noqa: E731
    return Case(mfpda.Model(neuron, mfpda.losses.Softmax(), 0.01), (x / 16, y))


def relu():
    """A regression whose outputs have no bound."""
    x = np.random.default_rng(0).standard_normal((200, 5))
    neuron = lambda x: jnp.tanh(normal("a")) * jnp.maximum(x @ normal("w", 5) + normal("b"), 0)  # noqa: E731
    return Case(mfpda.Model(neuron, mfpda.losses.Squared(), 0.01), (x, np.sin(x @ np.ones(5) / np.sqrt(5) * 2)))


PROBLEMS = {
    **{name: functools.partial(of_reference, name, 2) for name in REFERENCES},
    **{f"{name}_50": functools.partial(of_reference, name, 50) for name in REFERENCES},
    "circles": lambda: Case(circles.model, circles.data(jax.random.key(0))),
    "diabetes": diabetes,
    "breast_cancer": breast_cancer,
    "wine": wine,
    "digits": digits,
    "sign_teacher": lambda: Case(*single_index()),
    "relu": relu,
}


def span(text):
    """Read ``3:8`` as range(3, 8) and ``5`` as range(5)."""
    first, _, last = text.rpartition(":")
    return range(int(first or 0), int(last))


def arguments(description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, help="append one JSON line per record to this file")
    parser.add_argument("--join", type=Path, nargs="+", help="run nothing, print the table of these files")
    return parser


def joined(files):
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def keep(record, out):
    """Append a record to a file, if there is one, and show it on standard error."""
    line = json.dumps(record, default=float)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")
    print(line, file=sys.stderr, flush=True)
    return record


def print_row(*cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def print_head(*names):
    print_row(*names)
    print_row(*("---" for _ in names))


def grouped(records, *names):
    """Group records by the values of these names, in order of appearance."""
    groups = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return groups


def column(records, name):
    """Return these numbers as an array, NaN where there is none."""
    return np.array([np.nan if record.get(name) is None else record[name] for record in records], float)
