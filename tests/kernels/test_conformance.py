"""What every registered kernel must do, and the one that the protocol's docstring declares."""

import doctest
import itertools

import jax
import numpy as np
import pytest

import mfpda
from mfpda import InputError
from mfpda.engine import outer_step
from mfpda.kernels import KERNELS, Kernel
from tests.kernels.conformance import CHECKS, MODEL


def from_the_docstring():
    """The kernel of the protocol's docstring, as a new user would type it in."""
    namespace = {}
    (test,) = doctest.DocTestFinder(recurse=False).find(Kernel, globs=namespace)
    for example in test.examples:
        exec(example.source, test.globs)
    return test.globs["RandomWalk"]


def quick_or_slow(name):
    """Every fit compiles for ten seconds: one kernel of each library in the default run, the others in the slow one."""
    return () if ":" not in name or name.lower().endswith(":hmc") else pytest.mark.slow


NAMES = [pytest.param(name, marks=pytest.mark.slow if "nuts" in name.lower() else ()) for name in KERNELS]


@pytest.fixture(params=[*NAMES, "docstring"], scope="module")
def kernel(request):
    return from_the_docstring()() if request.param == "docstring" else KERNELS.resolve(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(kernel, check):
    check(kernel)


def test_it_fits_the_protocol_and_prints_as_itself(kernel):
    assert isinstance(kernel, Kernel)
    if type(kernel).__name__ != "RandomWalk":
        assert eval(repr(kernel), vars(mfpda)) == kernel


@pytest.mark.parametrize("name", ["docstring", *(pytest.param(name, marks=quick_or_slow(name)) for name in KERNELS)])
def test_auto_step_size_runs_and_does_not_diverge(name):
    """A new kernel runs in fit, compiled once, with a step size of its own choice: adjusted ones near their target."""
    kernel = from_the_docstring()() if name == "docstring" else KERNELS.resolve(name)
    before = outer_step.outer_step._cache_size()
    x = jax.random.normal(jax.random.key(0), (20, 2))
    fit = mfpda.fit(
        jax.random.key(0), MODEL, (x, x[:, 0]), kernel=kernel, particles=100, outer_steps=6, inner_steps=10,
        progress=False,
    )  # fmt: skip
    assert outer_step.outer_step._cache_size() == before + 1
    last = fit.rows[-1].stats
    assert fit.status is mfpda.Status.FINISHED
    assert last["step_size"] > 0
    assert last["gradients"] >= (0 if type(kernel).__name__ == "RandomWalk" else 10)
    if getattr(kernel, "adjusted", False):
        longest = hasattr(kernel, "longest_step") and np.isfinite(kernel.longest_step(1.0))  # then it may accept more
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
