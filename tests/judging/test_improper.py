"""No certificate has a number where the fitted density is improper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpda.errors import CertificateStatus
from mfpda.judging import certify
from tests.helpers import slow_but
from tests.proper_models import X, problem_of

NAMES = (
    "a relu", "cube", "StudentT", "Cauchy", "LogNormal scale", "HalfCauchy scale", "cold Laplace", "cold product",
    "three factors", "centred horseshoe",
)  # fmt: skip
FACTORS = (1.0, 0.8, 1.3, -1.0, 3.0)  # of the dual -y: 10 densities, 5 duals, 50 tries


@pytest.mark.parametrize("name", slow_but(NAMES[:3], NAMES))
def test_no_certificate_for_an_improper_density(name):
    problem = problem_of(name)
    g = problem.derivative(jnp.zeros(len(X)))
    draws = jax.vmap(problem.draw_prior)(jax.random.split(jax.random.key(7), 200))
    for k, factor in enumerate(FACTORS):
        judged = certify(jax.random.key(k), problem, factor * g, draws, particles=200, replicates=4)
        assert judged.status is CertificateStatus.IMPROPER, factor
        assert np.isnan([judged.gap, judged.stderr, judged.objective, judged.dual_value, judged.risk]).all()
        assert judged.upper == np.inf
        assert "improper" in str(judged)
        assert "replicates" not in str(judged)


@pytest.mark.parametrize("name", ["linear", "tanh(a) relu"])
def test_proper_densities_have_one(name):
    problem = problem_of(name, 0.5)
    draws = jax.vmap(problem.draw_prior)(jax.random.split(jax.random.key(7), 200))
    dual = 0.5 * problem.derivative(jnp.zeros(len(X)))
    judged = certify(jax.random.key(0), problem, dual, draws, particles=400, replicates=4)
    assert judged.status is CertificateStatus.CERTIFIED
