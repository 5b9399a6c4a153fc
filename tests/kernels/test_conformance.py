"""What every registered kernel must do, the one of the base class's docstring, and one without a step size."""

import doctest
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda import InputError
from mfpda.engine import outer_step
from mfpda.kernels import KERNELS, Kernel, KernelInfo, Position
from tests.helpers import slow_but
from tests.kernels.conformance import CHECKS, MODEL


def from_the_docstring():
    """The kernel of the base class's docstring, as a new user would type it in."""
    namespace = {}
    (test,) = doctest.DocTestFinder(recurse=False).find(Kernel, globs=namespace)
    for example in test.examples:
        exec(example.source, test.globs)
    return test.globs["RandomWalk"]


class Independent(Kernel):
    """Proposals from a normal law, wherever the particle is. It has no step size, and no other setting either."""

    adjusted = True

    def init(self, key, theta, potential):
        return Position(theta)

    def step(self, key, state, potential):
        draw_key, accept_key = jax.random.split(key)
        proposal = 0.8 * jax.random.normal(draw_key, state.theta.shape, state.theta.dtype)
        height = lambda theta: potential(theta) - jnp.sum(jnp.square(theta)) / (2 * 0.8**2)  # noqa: E731
        energy, rise = potential(state.theta), height(proposal) - height(state.theta)
        acceptance = jnp.where(jnp.isfinite(rise), jnp.exp(-jnp.maximum(rise, 0)), 0)
        accepted = jax.random.uniform(accept_key, dtype=acceptance.dtype) < acceptance
        theta = jnp.where(accepted, proposal, state.theta)
        return Position(theta), KernelInfo(energy, acceptance, ~jnp.isfinite(rise), gradients=0)


OURS = {"docstring": lambda: from_the_docstring()(), "without a step size": Independent}


# Programs take long to compile: one kernel of each other library in the default run, the rest in the slow one.
NAMES = slow_but([name for name in KERNELS if ":" not in name or name.lower().endswith(":hmc")], KERNELS)


def kernel_of(name):
    return OURS[name]() if name in OURS else KERNELS.resolve(name)


@pytest.fixture(params=[*NAMES, *OURS], scope="module")
def kernel(request):
    return kernel_of(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(kernel, check):
    check(kernel)


def test_it_prints_as_itself(kernel):
    known = vars(mfpda) | {type(kernel).__name__: type(kernel)}
    assert eval(repr(kernel), known) == kernel


@pytest.mark.parametrize("name", ["docstring", *NAMES])
def test_auto_step_size_runs_and_does_not_diverge(name):
    """A new kernel runs in fit, compiled once, with a step size of its own choice: adjusted ones near their target."""
    kernel = kernel_of(name)
    before = outer_step.outer_step._cache_size()
    x = jax.random.normal(jax.random.key(0), (20, 2))
    fit = mfpda.fit(
        jax.random.key(0), MODEL, (x, x[:, 0]), rule="dual_averaging", kernel=kernel, particles=100, outer_steps=6,
        inner_steps=10, progress=False,
    )  # fmt: skip
    assert outer_step.outer_step._cache_size() == before + 1
    last = fit.rows[-1].stats
    assert fit.status is mfpda.Status.FINISHED
    assert last["step_size"] > 0
    assert last["gradients"] >= (0 if type(kernel).__name__ == "RandomWalk" else 10)
    if kernel.adjusted:
        longest = np.isfinite(kernel.longest_step(1.0))  # then it may accept more
        assert -0.1 < last["acceptance_rate"] - kernel.target_acceptance < (0.3 if longest else 0.1)


@pytest.mark.parametrize("step_size", ["auto", 0.1])
def test_no_two_kernels_share_a_compiled_program(step_size):
    """JAX takes arguments of equal structure for the same kernel when their hashes meet."""
    structures = [jax.tree.structure(make(step_size=step_size)) for make in KERNELS.values()]
    for first, second in itertools.combinations(structures, 2):
        assert first != second


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf"), "big"])
@pytest.mark.parametrize("name", list(KERNELS))
def test_a_step_size_must_be_positive(name, wrong):
    with pytest.raises(InputError, match="step"):
        KERNELS[name](step_size=wrong)
