"""From a user's arrays to a problem: where they lie, what is looked at, and when a loss is tried."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.errors import InputError, NotConvexWarning
from mfpda.problem import binding
from mfpda.problem.binding import bind
from mfpda.problem.blocks import Blocks
from mfpda.problem.neuron import trace

pytestmark = pytest.mark.quick

N, D = 101, 3
SITES = {"w": dist.Normal(0, 1).expand([D]).to_event(1), "b": dist.Normal(0, 1)}


def scalar(theta, x):
    return jnp.tanh(x @ theta["w"] + theta["b"])


SCALAR = mfpda.Model.from_function(scalar, SITES, mfpda.losses.Squared(), 0.1)


def test_a_problem_has_what_was_given_and_equal_weights():
    x, y = np.random.default_rng(0).standard_normal((N, D)), np.arange(N)
    problem = bind(SCALAR, x.tolist(), y)
    np.testing.assert_array_equal(problem.x, x.astype(np.float32))
    np.testing.assert_array_equal(problem.y, y)
    assert problem.x.dtype == problem.y.dtype == problem.weights.dtype == jnp.float32
    np.testing.assert_array_equal(problem.weights, np.full(N, 1 / N, np.float32))
    assert problem.model is SCALAR
    assert problem.neuron is trace(SCALAR.declaration, jnp.zeros(D))
    assert problem.blocks == Blocks()


def test_a_memory_map_is_used_where_it_lies_and_what_may_change_is_copied(tmp_path):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    problem = bind(SCALAR, mapped, x[:, 0])
    assert problem.x.unsafe_buffer_pointer() == mapped.ctypes.data
    writable = np.load(tmp_path / "x.npy", mmap_mode="r+")
    copied = bind(SCALAR, writable, x[:, 0]).x
    writable[:] = 0
    np.testing.assert_array_equal(copied, x)


def test_data_are_checked_without_a_copy_of_their_size():
    x = np.zeros((2**18, 32), np.float32)
    x[-1, 7] = np.nan
    tracemalloc.start()
    with pytest.raises(InputError, match=rf"1 NaN or infinite of {x.size}, the first at x\[{len(x) - 1}, 7\]"):
        bind(SCALAR, x, None)
    assert tracemalloc.get_traced_memory()[1] < x.size / 2  # a byte for every number would be x.size
    tracemalloc.stop()


class Wave(mfpda.Loss):
    """Not convex: 1 - cos(z - y)."""

    def value(self, z, y):
        return 1 - jnp.cos(z - y)


class TrustedWave(Wave):
    """What its author says of it is not questioned."""

    convex = True


class Quartic(mfpda.Loss):
    """Convex, but not said to be."""

    def value(self, z, y):
        return (z - y) ** 4


def bound(loss, **arguments):
    x = np.random.default_rng(0).standard_normal((N, D))
    return bind(mfpda.Model.from_function(scalar, SITES, loss, 0.1), x, x[:, 0], **arguments)


def count_trials(monkeypatch):
    tried, sound = [], binding.seen_convex
    monkeypatch.setattr(binding, "seen_convex", lambda *arguments: tried.append(1) or sound(*arguments))
    return tried


def test_a_loss_that_is_not_convex_warns(monkeypatch):
    tried = count_trials(monkeypatch)
    with pytest.warns(NotConvexWarning, match="not convex in its prediction where it was tried"):
        bound(Wave())
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("loss", "trials"),
    [(TrustedWave(), 0), (mfpda.losses.Squared(), 0), (Quartic(), 1), (lambda z, y: (z - y) ** 2, 1)],
)
def test_a_loss_that_is_said_or_seen_to_be_convex_does_not(loss, trials, monkeypatch):
    """Every warning is an error here. One that is said to be convex is not even tried."""
    tried = count_trials(monkeypatch)
    assert bound(loss).loss.convex == (trials == 0)
    assert len(tried) == trials


def test_later_batches_of_a_stream_are_not_tried_again(monkeypatch):
    tried = count_trials(monkeypatch)
    bound(Wave(), warn=False)
    assert not tried


# priors and inputs


def test_a_prior_that_depends_on_a_middle_row_is_refused():
    """The first and the last row agree."""
    x = np.zeros((N, 1))
    x[N // 2] = 1.0

    def neuron(x):
        return jnp.tanh(numpyro.sample("w", dist.Normal(0, 1 + x[0])))

    with pytest.raises(InputError, match=r"do not depend on the input, found site 'w' with log-density .* at x\[50\]"):
        bind(mfpda.Model(neuron, mfpda.losses.Squared(), 0.1), x, np.zeros(N))


def test_rounding_between_rows_is_no_dependence():
    """XLA rounds the log-density of a Beta differently in different rows."""

    def neuron(x):
        s = numpyro.sample("s", dist.Beta(2.0, 2.0))
        return s * jnp.tanh(x @ numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1)))

    x = np.random.default_rng(1).normal(size=(40, 2))
    bind(mfpda.Model(neuron, mfpda.losses.Squared(), 0.1), x, x[:, 0])
