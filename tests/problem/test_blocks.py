"""Anchors in blocks: the same numbers as all at once, in less memory, for the same two matrix products a gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda.engine import outer_step
from mfpda.errors import InputError
from mfpda.judging import replicates
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import Stream, feed
from mfpda.problem.memory import GIB, bytes_per_output
from mfpda.problem.neuron import trace
from mfpda.problem.problem import Problem
from mfpda.sampling import tuning

N, D, M = 101, 3, 37
CLOSE = {"rtol": 2e-5, "atol": 1e-5}


def scalar(theta, x):
    return jnp.tanh(x @ theta["w"] + theta["b"])


def vector(theta, x):
    return scalar(theta, x) * jnp.array([1.0, -2.0, 0.5])


SITES = {"w": dist.Normal(0, 1).expand([D]).to_event(1), "b": dist.Normal(0, 1)}
SCALAR = mfpda.Model.from_function(scalar, SITES, mfpda.losses.Squared(), 0.1)
VECTOR = mfpda.Model.from_function(vector, SITES, mfpda.losses.Softmax(), 0.1)
CUTS = [  # of the 101 examples the last block sees 0, 1 and 4 again
    pytest.param(SCALAR, 1, id="one by one"),
    pytest.param(SCALAR, 64, id="in two", marks=pytest.mark.slow),
    pytest.param(VECTOR, 7, id="three outputs"),
]


def problem_of(model):
    """M particles, a problem of N examples, and coefficients."""
    random, width = np.random.default_rng(0), trace(model.declaration, jnp.zeros(D)).output
    x = jnp.asarray(random.standard_normal((N, D)), float)
    y = jnp.asarray(random.integers(0, 3, N)) if width else jnp.sin(3 * x[:, 0])
    c = jnp.asarray(random.standard_normal((N, *width)) / N, float)
    return jnp.asarray(random.standard_normal((M, D + 1)), float), Problem.of(model, x, y), c


def budget(model, particles, rows):
    """GiB in which so many rows just fit."""
    neuron = trace(model.declaration, jnp.zeros(D))
    return particles * rows * bytes_per_output(neuron, jnp.result_type(float)) / GIB


def test_every_row_is_mapped_and_summed_once():
    x, w = jnp.arange(1.0, 12.0), jnp.ones(11)
    for rows in (1, 4, 10, 11, None):
        both = Blocks(rows).mapped(lambda x: {"one": x**2, "two": jnp.stack([x, -x], 1)}, x)
        np.testing.assert_array_equal(both["one"], x**2)
        np.testing.assert_array_equal(both["two"], np.stack([x, -x], 1))
        assert float(Blocks(rows).summed(lambda w, x: w @ x, w, x)) == 66


def test_blocks_are_of_equal_length_and_one_block_is_none():
    assert [Blocks(64)._cut(n) for n in (65, 128, 129)] == [(2, 33), (2, 64), (3, 43)]
    assert Blocks(8).over(8) == Blocks()
    assert Blocks(8).over(9) == Blocks(8)


@jax.jit
def energies(potential, thetas):
    """V, its gradient, its Hessian's products, and the curvature that step sizes are tuned on."""
    along = lambda theta, v: jax.jvp(jax.grad(potential), (theta,), (v,))[1]  # noqa: E731
    return (
        jax.vmap(potential)(thetas),
        *jax.vmap(jax.value_and_grad(potential))(thetas),
        jax.vmap(along)(thetas, thetas[::-1]),
        tuning.curvature(jax.random.key(0), potential, thetas),
    )


@pytest.mark.parametrize(("model", "rows"), CUTS)
def test_energies(model, rows):
    thetas, problem, c = problem_of(model)
    whole = problem.potential(c, 0.6)
    blocked = whole.in_blocks(Blocks(rows))
    assert blocked.problem.blocks == Blocks(rows)
    for ours, theirs in zip(energies(blocked, thetas), energies(whole, thetas), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


@jax.jit
def seen(problem, thetas, c):
    """All that is ever seen of the outputs."""
    view = problem.outputs(thetas)
    z = view.mean()
    weighted = dataclasses.replace(problem, weights=jnp.linspace(0, 2 / N, N))
    return (
        z,
        view.mean(jnp.arange(80)),
        problem.projections(thetas, c),
        weighted.stiffness(thetas, z),
        *replicates.moments(problem, thetas),
        *outer_step.snapshot(problem, thetas)[:3],
    )


@pytest.mark.parametrize(("model", "rows"), CUTS)
def test_outputs(model, rows):
    thetas, problem, c = problem_of(model)
    blocked = problem.in_blocks(Blocks(rows))
    for ours, theirs in zip(seen(blocked, thetas, c), seen(problem, thetas, c), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def holds_all_outputs(program):
    """Whether this program, before or after compilation, has an array of particles and anchors."""
    return any(shape in program for shape in (f"[{M},{N}]", f"[{N},{M}]", f"<{M}x{N}x", f"<{N}x{M}x"))


def gradients(rows):
    """The compiled program of M gradients, in blocks of so many rows."""
    potential = Problem.of(SCALAR, jnp.zeros((N, D)), None, Blocks(rows)).potential(jnp.ones(N))
    each = jax.jit(lambda potential, thetas: jax.vmap(jax.value_and_grad(potential))(thetas))
    return each.lower(potential, jnp.zeros((M, D + 1))).compile()


def test_a_gradient_is_two_matrix_products_and_never_holds_all_outputs():
    whole, blocked = gradients(None), gradients(20)
    assert whole.as_text().count(" dot(") == blocked.as_text().count(" dot(") == 2
    assert [holds_all_outputs(program.as_text()) for program in (whole, blocked)] == [True, False]
    assert blocked.memory_analysis().temp_size_in_bytes < 0.5 * whole.memory_analysis().temp_size_in_bytes


def test_a_snapshot_never_holds_all_outputs():
    thetas, problem, _ = problem_of(SCALAR)
    for rows in (None, 16):
        program = outer_step.snapshot.lower(problem.in_blocks(Blocks(rows)), thetas).as_text()
        assert holds_all_outputs(program) == (rows is None)


def outer_step_of(fit):
    """The program of an outer step of this fit."""
    plugs = fit.kernel, fit.rule, fit.start
    one = np.int32(1)
    return outer_step.outer_step.lower(jax.random.key(0), one, fit.state, fit.problem, None, *plugs, one).as_text()


def run(kernel, outer_steps=3, **arguments):
    problem = problem_of(SCALAR)[1]
    return mfpda.fit(
        jax.random.key(1), SCALAR, (problem.x, problem.y), rule="dual_averaging", kernel=kernel, particles=M,
        outer_steps=outer_steps, inner_steps=4, progress=False, **arguments
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [mfpda.ULA(step_size=0.01), mfpda.MALA(step_size=0.01)])
def test_a_fit(kernel, tmp_path):
    """In blocks it is the same within rounding; stopped, saved, loaded and resumed in the same blocks, to the bit."""
    whole, blocked = run(kernel), run(kernel, memory=budget(SCALAR, M, 20))
    assert [fit.settings.block_rows for fit in (whole, blocked)] == [None, 16]
    np.testing.assert_allclose(blocked.thetas, whole.thetas, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(blocked.predict(blocked.problem.x), whole.predict(whole.problem.x), **CLOSE)
    for name in ("risk", "stiffness", "acceptance_rate"):
        assert blocked.rows[-1].stats[name] == pytest.approx(whole.rows[-1].stats[name], rel=1e-4)
    assert [holds_all_outputs(outer_step_of(fit)) for fit in (whole, blocked)] == [True, False]
    run(kernel, 1, memory=budget(SCALAR, M, 20)).save(tmp_path / "run.nc")
    loaded = mfpda.load(tmp_path / "run.nc", SCALAR)
    assert loaded.problem.blocks == loaded.last_potential.problem.blocks == Blocks(16)
    np.testing.assert_array_equal(run(kernel, resume=loaded).thetas, blocked.thetas)


@pytest.mark.slow
def test_a_certificate():
    """Its replicates have more particles than the run, and so smaller blocks: 16 rows, not 64."""
    kernel, memory = mfpda.MALA(step_size=0.01), budget(SCALAR, 200, 20)
    fits = run(kernel), run(kernel, memory=memory)
    assert [fit.progress.blocks_for(200).rows for fit in fits] == [None, 16]
    ours, theirs = (fit.certify(jax.random.key(0), replicates=4, particles=200) for fit in fits)
    np.testing.assert_allclose(ours.predictions, theirs.predictions, rtol=1e-3, atol=1e-3)
    for name in ("gap", "stderr", "upper", "objective", "dual_value", "particle_distance", "stiffness"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-2), name


SMALLEST = budget(SCALAR, M, 8)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (0.9 * SMALLEST, f"at least {SMALLEST:.3g} GiB of memory for {M} particles.*fewer particles"),
        (-1.0, "memory"),
    ],
)
def test_too_small_a_budget(memory, message):
    with pytest.raises(InputError, match=message):
        run("ula", memory=memory)


def test_blocks_of_a_stream_do_not_depend_on_t():
    def draw(key, size):
        x = jax.random.normal(key, (size, D))
        return x, x[:, 0]

    source = feed(jax.random.key(0), SCALAR, Stream(draw), 5)
    source.blocks = Blocks(32)
    assert [source.at(t)[0].blocks.rows for t in (1, 4, 5, 8, 9)] == [None, None, 32, 32, 32]
    assert source.judged_on(9).blocks == Blocks()
