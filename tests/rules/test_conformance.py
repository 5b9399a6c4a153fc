"""What every registered rule must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.exact import _GridOutputs
from mfpda.rules import RULES, Problem, Rule


@pytest.fixture(params=list(RULES))
def rule(request):
    return RULES[request.param]()


def test_it_fits_the_protocol_and_prints_as_itself(rule):
    assert isinstance(rule, Rule)
    assert eval(repr(rule), vars(mfpda)) == rule


@pytest.mark.parametrize("batch", [None, jnp.array([4, 1])])
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_coefficients_and_duals_have_the_shape_of_the_outputs(rule, batch, outputs):
    loss = mfpda.losses.Softmax() if outputs else mfpda.losses.Logistic()
    y = jnp.array([0, 1, 2, 1, 0]) if outputs else jnp.ones(5)
    z = jax.random.normal(jax.random.key(0), (5, *outputs))
    state = rule.init(5, outputs)
    for t in (1.0, 2.0):
        state, coefficients = rule.update(
            jax.random.key(0), state, jnp.asarray(t), _GridOutputs(z), batch, Problem(y, loss, jnp.asarray(0.1))
        )
    anchors = 2 if rule.on_batch and batch is not None else 5
    assert coefficients.c.shape == (anchors, *outputs)
    assert rule.smallest_gamma <= coefficients.gamma <= 1
    g, mass = rule.dual(state, jnp.asarray(2.0))
    seen = np.ones(5, bool) if batch is None else np.isin(np.arange(5), batch)
    np.testing.assert_array_equal(mass > 0, seen)
    conjugates = loss.over_rows(loss.conjugate, g, y)
    assert bool(jnp.all(jnp.isfinite(conjugates[seen])))
    np.testing.assert_allclose(g[seen], loss.over_rows(loss.derivative, z, y)[seen], rtol=1e-5)


def test_growing_keeps_what_there_is(rule):
    state = rule.init(2, ())
    problem = Problem(jnp.ones(2), mfpda.losses.Squared(), jnp.asarray(0.1))
    state, _ = rule.update(
        jax.random.key(0), state, jnp.asarray(1.0), _GridOutputs(jnp.array([3.0, 5.0])), None, problem
    )
    g, mass = rule.dual(rule.grow(state, 4), jnp.asarray(1.0))
    np.testing.assert_allclose(g, [2, 4, 0, 0])
    np.testing.assert_array_equal(mass > 0, [True, True, False, False])
