"""Problems and comparisons that several test files share."""

import html.parser
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr

import mfpda
from mfpda.persistence import provenance
from mfpda.problem import Problem
from mfpda.progress import Progress, Settings, initial_state
from mfpda.sampling import tuning

NEURONS = {
    "tanh_squared": lambda theta, x: jnp.tanh(theta["w"] * x[0] + theta["b"]),
    "tanh_logistic": lambda theta, x: 5 * jnp.tanh(theta["w"] * x[0] + theta["b"]),
    "sine_squared": lambda theta, x: 2 * jnp.sin(theta["w"] * x[0]) * jnp.tanh(theta["b"]),
}
LOSSES = {"squared": mfpda.losses.Squared(), "logistic": mfpda.losses.Logistic()}
WIDE_BOUNDS = {"tanh_squared": (-4, 4), "tanh_logistic": (-14, 14), "sine_squared": (-18, 18)}


def slow_but(kept, names):
    """The names as parameters of a test: those kept in the default run, the others slow."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


def reference(name, dimensions=2):
    """A reference problem: its model, its data, its exact optimum, and bounds that hold its Gibbs densities.

    In more than 2 ``dimensions`` the neuron sees two orthonormal directions of theta ~ N(0, s^2 I_p). The Gibbs density
    is then the one in 2 dimensions times a normal, so that the optimum and every gap are the same.
    """
    stored = json.loads((Path(__file__).parent / "references" / f"{name}.json").read_text())
    prior, neuron = dist.Normal(0, stored["prior_scale"]), NEURONS[name]
    if dimensions == 2:
        sites, h = {"w": prior, "b": prior}, neuron
    else:
        seen = np.linalg.qr(np.random.default_rng(0).normal(size=(dimensions, 2)))[0]
        sites = {"theta": prior.expand([dimensions]).to_event(1)}
        h = lambda theta, x: neuron(dict(zip("wb", theta["theta"] @ seen, strict=True)), x)  # noqa: E731
    model = mfpda.Model.from_function(h, sites, LOSSES[stored["loss"]], stored["temperature"])
    optimum = SimpleNamespace(**stored["optimum"])
    optimum.predictions = np.asarray(optimum.predictions).ravel()
    return SimpleNamespace(
        model=model,
        data=(np.asarray(stored["x"]), np.asarray(stored["y"])),
        optimum=optimum,
        temperature=stored["temperature"],
        bounds=WIDE_BOUNDS[name],
    )


def single_index(n=1000, d=50):
    """The sign of one direction, at the lambda1 and lambda2 of the paper's Appendix F.1."""
    random = np.random.default_rng(0)
    x = random.standard_normal((n, d))
    prior, temperature = mfpda.penalty(lambda1=1e-2, lambda2=5e-4)
    sites = {"w": prior.expand([d]).to_event(1), "b": prior}
    h = lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    return mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), temperature), (x, np.sign(x[:, 0]))


def normal_potential(scale, dimensions=1):
    """-log p0 of a centred normal prior."""
    sites = {"w": dist.Normal(0, scale).expand([dimensions]).to_event(1)}
    h = lambda theta, x: jnp.sum(theta["w"]) * x  # noqa: E731
    model = mfpda.Model.from_function(h, sites, mfpda.losses.Squared(), 1.0)
    return Problem.of(model, jnp.ones(1)).prior_potential()


def draw(key, batch_size):
    x = jax.random.normal(key, (batch_size, 1))
    return x, jnp.sin(x[:, 0])


def same(fit, other):
    """Equal in every bit that a run leaves behind, but for its clock."""
    for ours, theirs in zip(jax.tree.leaves(fit.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [row.outer_step for row in fit.rows] == [row.outer_step for row in other.rows]
    for name in fit.groups["outer_stats"].data_vars:
        if name != "seconds":
            np.testing.assert_array_equal(fit.groups["outer_stats"][name], other.groups["outer_stats"][name])
    xr.testing.assert_identical(
        fit.groups["particle_history"].load().drop_attrs(), other.groups["particle_history"].load().drop_attrs()
    )
    for group in ("initial_particles", "prior"):
        xr.testing.assert_identical(fit.groups[group].drop_attrs(), other.groups[group].drop_attrs())


def begun(model, x, y, *, rule=mfpda.DualAveraging(), kernel=mfpda.ULA(0.1), batch_size=None, is_stream=False):
    """A run of five particles before its first outer step, made without ``fit``."""
    problem = Problem.of(model, jnp.asarray(x, float), None if y is None else jnp.asarray(y, float))
    batch = None if batch_size is None else jnp.arange(batch_size)
    planned, start = tuning.plan(kernel, 1)[0], mfpda.Warm()
    drawn = jax.jit(initial_state, static_argnames="particles")
    state = drawn(jax.random.key(0), problem, batch, planned, rule, particles=5)
    initial = {name: np.asarray(value) for name, value in problem.constrain(state.ensemble.theta).items()}
    return Progress(
        problem=problem,
        rule=rule,
        kernel=planned,
        start=start,
        settings=Settings(
            rule=repr(rule), overshoots=rule.overshoots, kernel=repr(kernel), start=repr(start), particles=5,
            outer_steps=4, inner_steps=3, batch_size=batch_size, memory=0.5, block_rows=None,
        ),
        is_stream=is_stream,
        provenance=provenance(jax.random.key(0), model),
        t=0,
        inner_steps=0,
        state=state,
        initial=initial,
        prior=initial,
        rows=(),
    )  # fmt: skip


class _Table(html.parser.HTMLParser):
    """The words of a table, by the element that holds them. Refuses elements that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("caption", "th", "td"):
            self.words.append((tag, ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        tag, before = self.words[-1]
        assert self.open[-1] == tag
        self.words[-1] = tag, before + data


def cells(page):
    """The caption of a table in HTML, and its rows as a dict from label to text."""
    table = _Table()
    table.feed(page)
    table.close()
    assert table.open == []
    (caption, title), *rest = table.words
    assert caption == "caption"
    labels, texts = rest[::2], rest[1::2]
    assert {tag for tag, _ in labels} == {"th"}
    assert {tag for tag, _ in texts} == {"td"}
    return title, {label: text for (_, label), (_, text) in zip(labels, texts, strict=True)}


MODEL_FILE = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import mfpda

def neuron(x):
    return 2 * jnp.tanh(x * numpyro.sample("w", dist.Normal(0, 1)) + numpyro.sample("b", dist.Normal(0, 1)))

model = mfpda.Model(neuron, mfpda.losses.Squared(), 0.02)

def data(key):
    x = jnp.linspace(-2, 2, 30)
    return x, jnp.sin(x)

settings = {"particles": 20, "outer_steps": 4, "inner_steps": 3}
"""
