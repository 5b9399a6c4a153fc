"""Every mistake of the list, refused before anything is compiled, in a sentence that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import mfpda
from mfpda import InputError, Model, NotConvexWarning
from mfpda.engine import outer_step
from mfpda.problem import losses
from tests.helpers import draw

X, Y = np.linspace(-1, 1, 20)[:, None], np.linspace(-1, 1, 20)
NORMAL = dist.Normal(0, 1)


def model_of(body, loss=losses.Squared(), **arguments):
    return Model(body, loss, **({"temperature": 0.1} | arguments))


def neuron(x):
    return jnp.tanh(x[0] * numpyro.sample("w", NORMAL))


def of_three(x):
    return x[0] * jnp.sum(numpyro.sample("w", NORMAL.expand([3]).to_event(1)))


def refused(match, model=None, data=(X, Y), key=None, **arguments):
    """fit refuses, with this in the message, and compiles no outer step."""
    before = outer_step.outer_step._cache_size()
    key = jax.random.key(0) if key is None else key
    with pytest.raises(InputError, match=match) as caught:
        mfpda.fit(key, model_of(neuron) if model is None else model, data, **({"progress": False} | arguments))
    assert outer_step.outer_step._cache_size() == before
    message = str(caught.value)
    assert message.startswith("Expected ")
    assert ", found " in message
    assert message.count(". ") >= 1
    assert message.endswith((".", "?"))


# neurons and losses


def test_a_neuron_without_sites():
    refused(r"at least one sample site.*numpyro.sample\(", model_of(lambda x: x[0]))


def test_a_discrete_site():
    refused(
        "continuous sites.*'k'.*Bernoulli", model_of(lambda x: x[0] * numpyro.sample("k", dist.BernoulliProbs(0.5)))
    )


def test_an_observed_site():
    refused("'w' with obs=.*drop obs=", model_of(lambda x: x[0] * numpyro.sample("w", NORMAL, obs=1.0)))


def test_a_param_site():
    refused("numpyro.param 'w'", model_of(lambda x: x[0] * numpyro.param("w", 1.0)))


def test_a_scaled_site():
    refused("handlers.scale", model_of(handlers.scale(neuron, 3.0)))


def test_a_prior_that_cannot_be_sampled():
    improper = dist.ImproperUniform(dist.constraints.real, (), ())
    refused("can be sampled", model_of(lambda x: x[0] * numpyro.sample("w", improper)))


def test_a_prior_that_depends_on_the_input():
    refused("do not depend on the input, found site 'w'", model_of(lambda x: numpyro.sample("w", dist.Normal(x[0], 1))))


@pytest.mark.parametrize(
    ("body", "loss", "match"),
    [
        (lambda x: x * numpyro.sample("w", NORMAL), losses.Logistic(), r"scalar output for Logistic.*\(1,\).*h\[0\]"),
        (lambda x: jnp.ones(3) * numpyro.sample("w", NORMAL), losses.SmoothedHinge(), r"scalar.*\(3,\).*Softmax"),
        (lambda x: x[0] * numpyro.sample("w", NORMAL), losses.Softmax(), r"one output per class.*shape \(\)"),
        (lambda x: x * numpyro.sample("w", NORMAL), losses.Squared(), r"y of the neuron's shape \(20, 1\).*\(20,\)"),
        (lambda x: x * numpyro.sample("w", NORMAL), lambda z, y: (z - y) ** 2, "scalar for one example"),
    ],
)
def test_an_output_that_does_not_fit_the_loss(body, loss, match):
    refused(match, model_of(body, loss), (X, np.sign(Y)))


def test_outputs_of_two_axes():
    body = lambda x: jnp.ones((2, 2)) * numpyro.sample("w", NORMAL)  # noqa: E731
    refused("a scalar or a vector", model_of(body, lambda z, y: jnp.sum(z)))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x @ numpyro.sample("w", NORMAL.expand([3]).to_event(1)),  # w of 3, x of 1
        lambda x: x[:, 0] * numpyro.sample("w", NORMAL),  # written for the batch
        lambda x, y: x[0] * numpyro.sample("w", NORMAL),  # wants y
        lambda x: numpyro.sample("w", NORMAL) and None,  # returns nothing
        lambda x: float(x[0]) * numpyro.sample("w", NORMAL),  # not traceable
        lambda x: numpyro.sample("w", NORMAL) + numpyro.sample("w", NORMAL),  # one name twice
    ],
)
def test_a_neuron_that_cannot_be_called(body):
    refused(r"takes one input x of shape \(1,\).*when it was called.*one row of x at a time", model_of(body))


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda z, y: jnp.mean(z - y, axis=0), "for one prediction z of shape.*when it was called"),
        (lambda z, y, w: z, "for one prediction z of shape.*missing 1 required"),
    ],
)
def test_a_loss_that_cannot_be_called(loss, match):
    refused(match, model_of(neuron, loss))


def test_a_neuron_that_is_not_differentiable():
    refused("returns floats.*int", model_of(lambda x: (numpyro.sample("w", NORMAL) > 0).astype(int)))


def test_a_loss_that_is_not_convex_warns():
    model = model_of(neuron, lambda z, y: jnp.tanh((z - y) ** 2))
    with pytest.warns(NotConvexWarning, match="not convex in its prediction"):
        mfpda.fit(jax.random.key(0), model, (X, Y), particles=5, outer_steps=1, inner_steps=1, progress=False)


HEAVY = model_of(lambda x: jnp.tanh(x[0] * numpyro.sample("w", dist.Cauchy(0, 1))))


def test_a_prior_whose_cube_root_is_not_integrable():
    refused(r"p0\^\(1/3\) is integrable.*'w'.*\|theta\|\^-2.*gamma=1.0", HEAVY, rule="dual_averaging")


@pytest.mark.parametrize("rule", [mfpda.DualAveraging(gamma=1.0), "latest"], ids=str)
def test_a_rule_that_needs_no_cube_root_takes_the_same_prior(rule):
    arguments = {"particles": 10, "outer_steps": 2, "inner_steps": 2, "progress": False}
    assert mfpda.fit(jax.random.key(0), HEAVY, (X, Y), rule=rule, **arguments).outer_steps == 2


@pytest.mark.parametrize("name", ["chain", "draw", "outer_step"])
def test_sites_with_names_that_arviz_needs(name):
    refused(f"other than.*'{name}'", model_of(lambda x: x[0] * numpyro.sample(name, NORMAL)))


@pytest.mark.parametrize("name", ["chain", "draw", "outer_step"])
def test_dims_with_names_that_arviz_needs(name):
    refused(f"other than.*'{name}' at site 'w'", model_of(of_three, dims={"w": [name]}))


@pytest.mark.parametrize(
    ("match", "body", "arguments"),
    [
        ("1 dims for site 'w'", of_three, {"dims": {"w": ["a", "b"]}}),
        ("dims for the neuron's sites.*'v'", of_three, {"dims": {"v": ["a"]}}),
        ("coords for dims of the sites.*'b'", of_three, {"dims": {"w": "a"}, "coords": {"b": [1, 2, 3]}}),
        ("3 coords for dim 'a'", of_three, {"dims": {"w": ["a"]}, "coords": {"a": [1, 2]}}),
        ("no site named so", of_three, {"dims": {"w": ["w"]}}),
        ("without '/'", lambda x: x[0] * numpyro.sample("layer/w", NORMAL), {}),
        ("init for the neuron's sites.*'v'", neuron, {"init": {"v": NORMAL}}),
        (r"shape \(\) as init of site 'w'.*\(2,\)", neuron, {"init": {"w": NORMAL.expand([2])}}),
        ("NumPyro distribution", neuron, {"init": {"w": 3.0}}),
    ],
)
def test_dims_coords_and_init_that_do_not_fit(match, body, arguments):
    refused(match, model_of(body, **arguments))


def test_an_init_that_is_no_dict():
    with pytest.raises(InputError, match="init as a dict from site names to NumPyro distributions, found function"):
        model_of(neuron, init=lambda: NORMAL)


@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, np.inf, "hot", None])
def test_temperature(wrong):
    with pytest.raises(InputError, match="temperature"):
        model_of(neuron, temperature=wrong)


@pytest.mark.parametrize(
    ("match", "arguments"), [("a neuron", {"body": 3}), ("a loss from", {"body": neuron, "loss": "squared"})]
)
def test_a_model_of_something_else(match, arguments):
    with pytest.raises(InputError, match=match):
        model_of(**arguments)


POWERS = [1, 1.0, 0.5, 2.1, -1, np.nan, np.array([1.0, 2.0])]


@pytest.mark.parametrize("wrong", POWERS)
def test_a_power_normal_outside_its_range(wrong):
    with pytest.raises(InputError, match=r"power in \(1, 2\].*1.01"):
        mfpda.PowerNormal(1.0, wrong)


@pytest.mark.parametrize("wrong", POWERS)
def test_a_penalty_outside_its_range(wrong):
    with pytest.raises(InputError, match=r"power in \(1, 2\]"):
        mfpda.penalty(1e-2, 1e-3, power=wrong)


# data


def test_x_and_y_of_different_length():
    refused("equal length.*20 inputs and 19 labels", data=(X, Y[:-1]))


@pytest.mark.parametrize("data", [(np.empty((0, 1)), np.empty(0)), (np.float64(1.0), np.float64(1.0))])
def test_empty_data(data):
    refused("at least one example", data=data)


@pytest.mark.parametrize("data", [None, X, (X,), (X, Y, Y)])
def test_data_that_is_no_pair(data):
    refused(r"\(x, y\) or mfpda.Stream", data=data)


@pytest.mark.parametrize(
    ("match", "data"),
    [
        ("numeric array x", (np.array([["a"]] * 20), Y)),
        ("numeric array y", (X, np.array(["a"] * 20))),
        ("numeric array y", (X, Y + 1j)),
        ("array x, found ragged", ([[1.0], [1.0, 2.0]], Y[:2])),
    ],
)
def test_data_that_are_no_numbers(match, data):
    refused(match, data=data)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("x", r"2 NaN or infinite of 20, the first at x\[7, 0\]"),
        ("y", r"1 NaN or infinite of 20, the first at y\[4\]"),
    ],
)
def test_data_that_is_not_finite_says_how_many_and_where(name, match, value):
    x, y = X.copy(), Y.copy()
    if name == "x":
        x[[7, 11], 0] = value
    else:
        y[4] = value
    refused(match, data=(x, y))


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SmoothedHinge()])
@pytest.mark.parametrize(
    ("y", "match"),
    [
        ((Y > 0) * 1, r"labels -1 and 1.*10 other labels, the first y\[0\].*2 \* y - 1"),
        (1.5 * np.sign(Y), r"labels -1 and 1.*the first y\[0\] = -1.5"),
        (None, "label -1 or 1"),
    ],
)
def test_labels_outside_a_binary_loss(loss, y, match):
    refused(match, model_of(neuron, loss), (X, y))


@pytest.mark.parametrize("wrong", [3, -1, 0.5])
def test_labels_outside_softmax(wrong):
    y = np.zeros(20)
    y[5] = wrong
    body = lambda x: jnp.ones(3) * numpyro.sample("w", NORMAL)  # noqa: E731
    refused(r"labels 0..2.*1 other label, the first y\[5\]", model_of(body, losses.Softmax()), (X, y))


@pytest.mark.parametrize(
    ("draw", "match"),
    [
        (lambda key, n: np.ones((n, 1)), "returns \\(x, y\\)"),
        (lambda key, n: (np.ones((n + 1, 1)), np.ones(n + 1)), "50 examples from the Stream's draw, found 51"),
        (lambda key, n: (np.full((n, 1), np.nan), np.ones(n)), "NaN or infinite"),
        (lambda key: None, "draw"),
    ],
)
def test_a_stream_that_draws_wrong(draw, match):
    refused(match, data=mfpda.Stream(draw))


# key, model and numbers


@pytest.mark.parametrize("wrong", [0, 1.5, np.zeros(2, np.uint32), "seed"])
def test_a_key_that_is_none(wrong):
    refused(r"JAX random key as the first argument.*jax.random.key\(0\)", key=wrong)


def test_a_missing_key():
    with pytest.raises(InputError, match=r"JAX random key as the first argument, found Model"):
        mfpda.fit(model_of(neuron), (X, Y))


def test_several_keys():
    refused("an array of keys", key=jax.random.split(jax.random.key(0)))


def test_a_neuron_in_place_of_a_model():
    refused("Model as the second argument", model=neuron)


STEP_SIZES = [0, -1e-3, np.nan, np.inf]


@pytest.mark.parametrize("wrong", [*STEP_SIZES, "large"])
def test_step_size(wrong):
    with pytest.raises(InputError, match="step"):
        mfpda.ULA(step_size=wrong)


@pytest.mark.parametrize("wrong", STEP_SIZES)
def test_a_schedule_of_step_sizes(wrong):
    refused("step_size at outer step 1", kernel=mfpda.ULA(step_size=lambda t: wrong))


@pytest.mark.parametrize("name", ["particles", "outer_steps", "inner_steps", "batch_size"])
@pytest.mark.parametrize("wrong", [0, -3, 2.5, np.nan, "ten"])
def test_counts(name, wrong):
    refused(name, **{name: wrong})


@pytest.mark.parametrize("wrong", [-1, 2.5, True, "ten"])
def test_certify_every(wrong):
    refused("a whole number as certify_every", certify_every=wrong)


@pytest.mark.parametrize("name", ["stop_at_gap", "memory"])
@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, np.inf, "small"])
def test_positive_numbers(name, wrong):
    refused(f"a positive finite number as {name}", **{name: wrong})


def test_too_little_memory():
    refused("GiB of memory for 1000 particles", memory=1e-9)


def test_a_batch_larger_than_the_data():
    refused("at most n = 20, found 21.*batch_size=None", batch_size=21)


# plugs


class NoKernel:
    """It has the methods of a kernel, and is none."""

    init = refresh = step = lambda *_: None


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("'ula', 'mala', .*'numpyro:BarkerMH'.*'hmcmc'", {"kernel": "hmcmc"}),
        ("'dual_averaging', .*'latest'.*Did you mean 'latest'", {"rule": "lastest"}),
        ("'warm', 'resample'.*'cold'", {"start": "cold"}),
        ("the class ULA.*Call it", {"kernel": mfpda.ULA}),
        ("the class Latest.*Call it", {"rule": mfpda.Latest}),
        ("the class Warm.*Call it", {"start": mfpda.Warm}),
        ("Did you mean 'ula'", {"kernel": "ULA"}),
        ("a kernel, found <object.*a subclass of mfpda.Kernel", {"kernel": object()}),
        ("a rule, found <object.*a subclass of mfpda.Rule", {"rule": object()}),
        ("a start, found 3.*a subclass of mfpda.Start", {"start": 3}),
        ("a kernel, found <.*NoKernel.*a subclass of mfpda.Kernel", {"kernel": NoKernel()}),
        ("a start, found <function.*a subclass of mfpda.Start", {"start": lambda *_: None}),
        ("a rule, found ULA.*a subclass of mfpda.Rule", {"rule": mfpda.ULA()}),
    ],
)
def test_plugs_that_are_none(match, arguments):
    refused(match, **arguments)


@pytest.mark.parametrize("rule", ["dual_newton", "dual_coordinate_ascent"])
def test_a_stream_for_a_rule_that_returns_to_its_examples(rule):
    refused(r"a data set \(x, y\) for Dual.*found a stream", data=mfpda.Stream(draw), rule=rule)


def test_a_stream_for_a_rule_that_cannot_grow():
    class Fixed(mfpda.Rule):
        def init(self, anchors, outputs):
            return jnp.zeros((anchors, *outputs))

    refused("a method grow of Fixed, for streams, found none", data=mfpda.Stream(draw), rule=Fixed())


def test_batches_for_a_rule_that_needs_all_examples():
    refused("all examples at every step for DualNewton.*found batches of 5", rule="dual_newton", batch_size=5)


# record, metrics, folders


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("names of metrics other than", {"metrics": {"risk": lambda predict: 0.0}}),
        ("names of metrics other than", {"metrics": {"gap": lambda predict: 0.0}}),
        ("names of metrics other than", {"metrics": {"settled": lambda predict: 0.0}, "rule": "dual_newton"}),
        ("functions of predict", {"metrics": {"mine": 3}}),
        ("metrics as a dict", {"metrics": len}),
        ("without '/'", {"metrics": {"test/risk": len}}),
        ("strings without", {"metrics": {1: len}}),
        ("a Record, found 10", {"record": 10}),
        ("sites of the neuron.*'v'", {"record": mfpda.Record(sites=("v",))}),
        ("folder of a checkpoint, found no folder at 'run.nc'", {"resume": "run.nc"}),
        ("the name of a folder, or a Checkpoint", {"checkpoint": 3}),
        ("a Fit to resume, found int", {"resume": 3}),
    ],
)
def test_other_wrong_arguments(match, arguments):
    refused(match, **arguments)


def test_a_record_of_every_zeroth_step():
    with pytest.raises(InputError, match=r"Record.every"):
        mfpda.Record(every=0)


# resuming


@pytest.fixture(scope="module")
def earlier(small):
    return mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)


@pytest.fixture(scope="module")
def streamed(small):
    arguments = small.quick | {"outer_steps": 1, "batch_size": 5}
    return mfpda.fit(jax.random.key(0), small.model, mfpda.Stream(draw), **arguments)


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("rule of the run", {"rule": "latest"}),
        ("kernel of the run", {"kernel": "gradient_descent"}),
        ("particles of the run that is resumed, 30, found 31", {"particles": 31}),
        ("batch_size of the run", {"batch_size": 4}),
        ("already done", {"outer_steps": 3}),
    ],
)
def test_resuming_with_other_settings(small, earlier, match, change):
    refused(match, small.model, small.data, resume=earlier, **(small.quick | change))


def test_resuming_with_other_data(small, earlier):
    refused("another y", small.model, (small.x, -small.data[1]), resume=earlier, **small.quick)


def test_resuming_on_a_stream(small, earlier):
    refused(r"kind of data of the run.*\(x, y\), found a stream", small.model, mfpda.Stream(draw), resume=earlier)


def of_small(h, **change):
    """The model of the small problem with this neuron, declared anew."""
    given = {"sites": {"w": NORMAL.expand([1]).to_event(1), "b": NORMAL}, "loss": losses.Squared(), "temperature": 0.02}
    return Model.from_function(h, **(given | change))


def small_neuron(theta, x):
    return 2 * jnp.tanh(x @ theta["w"] + theta["b"])


OTHER_MODELS = [
    ("temperature 0.02, found temperature 0.5", of_small(small_neuron, temperature=0.5)),
    ("h.theta, x.", of_small(lambda theta, x: 1.5 * small_neuron(theta, x))),
]


@pytest.mark.parametrize(("match", "other"), OTHER_MODELS)
def test_resuming_with_another_model(small, earlier, match, other):
    refused(match, other, small.data, resume=earlier, **small.quick)


def test_resuming_with_another_loss_of_the_same_name(small):
    first, second = (of_small(small_neuron, loss=lambda z, y, p=p: (z - y) ** p) for p in (2, 4))
    fit_of_first = mfpda.fit(jax.random.key(0), first, small.data, **small.quick)
    refused("whose loss is", second, small.data, resume=fit_of_first, **small.quick)


@pytest.mark.parametrize(("match", "other"), OTHER_MODELS)
def test_resuming_a_stream_with_another_model(small, streamed, match, other):
    arguments = small.quick | {"outer_steps": 1, "batch_size": 5}
    refused(match, other, mfpda.Stream(draw), resume=streamed, **arguments)


def test_resuming_with_the_same_model_declared_anew(small, earlier):
    again = of_small(small_neuron)
    assert mfpda.fit(jax.random.key(0), again, small.data, **small.quick, resume=earlier).outer_steps == 8
