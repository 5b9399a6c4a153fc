"""What every registered rule must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfpda
from mfpda.exact import _GridOutputs
from mfpda.rules import RULES, Problem, Rule

ON_THE_COVARIANCE = ("dual_newton", "dual_coordinate_ascent")  # others linearise at z itself


@pytest.fixture(params=list(RULES))
def rule(request):
    return RULES[request.param]()


def spread(z, width=0.1):
    """Outputs of ten particles around their mean z."""
    deviations = width * jax.random.normal(jax.random.key(9), (10, *z.shape))
    return _GridOutputs(z + deviations - jnp.mean(deviations, axis=0), jnp.full(10, 0.1))


def linearises_at_predictions(rule):
    return not isinstance(rule, tuple(RULES[name] for name in ON_THE_COVARIANCE))


def types(state):
    return jax.tree.map(lambda part: (part.shape, part.dtype, part.weak_type), state)


def test_it_fits_the_protocol_and_prints_as_itself(rule):
    assert isinstance(rule, Rule)
    assert eval(repr(rule), vars(mfpda)) == rule


@pytest.mark.parametrize("batch", [None, jnp.array([4, 1])])
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_coefficients_and_duals_have_the_shape_of_the_outputs(rule, batch, outputs):
    if batch is not None and getattr(rule, "full_batch", False):
        pytest.skip("fit refuses batches for this rule")
    loss = mfpda.losses.Softmax() if outputs else mfpda.losses.Logistic()
    y = jnp.array([0, 1, 2, 1, 0]) if outputs else jnp.ones(5)
    z = jax.random.normal(jax.random.key(0), (5, *outputs))
    begun = state = rule.init(5, outputs)
    for t in (1.0, 2.0):
        state, coefficients = rule.update(
            jax.random.key(0), state, jnp.asarray(t), spread(z), batch, Problem(y, loss, jnp.asarray(0.1))
        )
    anchors = 2 if rule.on_batch and batch is not None else 5
    assert coefficients.c.shape == (anchors, *outputs)
    assert rule.smallest_gamma <= coefficients.gamma <= 1
    g, mass = rule.dual(state, jnp.asarray(2.0))
    assert g.shape == (5, *outputs)
    seen = np.ones(5, bool) if batch is None else np.isin(np.arange(5), batch)
    np.testing.assert_array_equal(mass > 0, seen)
    conjugates = loss.over_rows(loss.conjugate, g, y)
    assert bool(jnp.all(jnp.isfinite(conjugates[seen])))
    derivative = loss.over_rows(loss.derivative, z, y)[seen]
    if linearises_at_predictions(rule):
        np.testing.assert_allclose(g[seen], derivative, rtol=1e-5)
    else:  # l' at predictions that the new g itself moves a little
        np.testing.assert_allclose(g[seen], derivative, atol=0.02)

    assert types(state) == types(begun)  # or a run would compile its outer step twice
    recorded = rule.stats(state) if hasattr(rule, "stats") else {}
    assert all(isinstance(name, str) and value.shape == () for name, value in recorded.items())


def test_growing_keeps_what_there_is(rule):
    state = rule.init(2, ())
    problem = Problem(jnp.ones(2), mfpda.losses.Squared(), jnp.asarray(0.1))
    outputs = spread(jnp.array([3.0, 5.0]), width=1e-3)
    state, _ = rule.update(jax.random.key(0), state, jnp.asarray(1.0), outputs, None, problem)
    before = rule.dual(state, jnp.asarray(1.0))
    g, mass = rule.dual(rule.grow(state, 4), jnp.asarray(1.0))
    np.testing.assert_array_equal(g, [*before.g, 0, 0])
    np.testing.assert_allclose(before.g, [2, 4], rtol=1e-3)
    np.testing.assert_array_equal(mass > 0, [True, True, False, False])
