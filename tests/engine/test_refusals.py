"""Every mistake of the list, refused before anything is compiled, in a sentence that says what to do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mfpda
from mfpda import InputError, Model, NotConvexWarning
from mfpda.engine import outer_step
from mfpda.problem import losses

X, Y = np.linspace(-1, 1, 20)[:, None], np.linspace(-1, 1, 20)
NORMAL = dist.Normal(0, 1)


def model_of(body, loss=losses.Squared(), **arguments):
    return Model(body, loss, **({"temperature": 0.1} | arguments))


def neuron(x):
    return jnp.tanh(x[0] * numpyro.sample("w", NORMAL))


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
        (lambda x: x * numpyro.sample("w", NORMAL), losses.Squared(), r"y of shape \(20, 1\).*\(20,\)"),
        (lambda x: x * numpyro.sample("w", NORMAL), lambda z, y: (z - y) ** 2, "scalar for one example"),
    ],
)
def test_an_output_that_does_not_fit_the_loss(body, loss, match):
    refused(match, model_of(body, loss), (X, np.sign(Y)))


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


def test_a_loss_that_cannot_be_called():
    refused("for one prediction z of shape.*when it was called", model_of(neuron, lambda z, y: jnp.mean(z - y, axis=0)))
    refused("for one prediction z of shape.*missing 1 required", model_of(neuron, lambda z, y, w: z))


def test_a_neuron_that_is_not_differentiable():
    refused("returns floats.*int", model_of(lambda x: (numpyro.sample("w", NORMAL) > 0).astype(int)))


def test_x_and_y_of_different_length():
    refused("equal length.*20 inputs and 19 labels", data=(X, Y[:-1]))


@pytest.mark.parametrize("data", [(np.empty((0, 1)), np.empty(0)), (np.float64(1.0), np.float64(1.0))])
def test_empty_data(data):
    refused("at least one example", data=data)


@pytest.mark.parametrize("data", [None, X, (X,), (X, Y, Y)])
def test_data_that_is_no_pair(data):
    refused(r"\(x, y\) or mfpda.Stream", data=data)


def test_data_that_are_no_numbers():
    refused("numeric array x", data=(np.array([["a"]] * 20), Y))
    refused("numeric array y", data=(X, np.array(["a"] * 20)))
    refused("numeric array y", data=(X, Y + 1j))
    refused("array x, found ragged", data=([[1.0], [1.0, 2.0]], Y[:2]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_says_how_many_and_where(value):
    x, y = X.copy(), Y.copy()
    x[[7, 11], 0] = value
    y[4] = value
    refused(r"2 NaN or infinite of 20, the first at x\[7, 0\]", data=(x, Y))
    refused(r"1 NaN or infinite of 20, the first at y\[4\]", data=(X, y))


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SmoothedHinge()])
def test_labels_outside_a_binary_loss(loss):
    refused(r"labels -1 and 1.*10 other, the first y\[0\].*2 \* y - 1", model_of(neuron, loss), (X, (Y > 0) * 1))
    refused(r"labels -1 and 1.*the first y\[0\] = -1.5", model_of(neuron, loss), (X, 1.5 * np.sign(Y)))
    refused("label -1 or 1", model_of(neuron, loss), (X, None))


@pytest.mark.parametrize("wrong", [3, -1, 0.5])
def test_labels_outside_softmax(wrong):
    y = np.zeros(20)
    y[5] = wrong
    body = lambda x: jnp.ones(3) * numpyro.sample("w", NORMAL)  # noqa: E731
    refused(r"labels 0..2.*1 other, the first y\[5\]", model_of(body, losses.Softmax()), (X, y))


@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, np.inf, "hot", None])
def test_temperature(wrong):
    with pytest.raises(InputError, match="temperature"):
        model_of(neuron, temperature=wrong)


@pytest.mark.parametrize("wrong", [0, -1e-3, np.nan, np.inf, "large"])
def test_step_size(wrong):
    with pytest.raises(InputError, match="step"):
        mfpda.ULA(step_size=wrong)
    if not isinstance(wrong, str):
        refused("step_size at outer step 1", kernel=mfpda.ULA(step_size=lambda t: wrong))


@pytest.mark.parametrize("name", ["particles", "outer_steps", "inner_steps", "batch_size"])
@pytest.mark.parametrize("wrong", [0, -3, 2.5, np.nan, "ten"])
def test_counts(name, wrong):
    refused(name, **{name: wrong})


def test_a_batch_larger_than_the_data():
    refused("at most n = 20, found 21.*batch_size=None", batch_size=21)


@pytest.mark.parametrize("wrong", [1, 1.0, 0.5, 2.1, -1, np.nan, np.array([1.0, 2.0])])
def test_power_outside_its_range(wrong):
    with pytest.raises(InputError, match=r"power in \(1, 2\].*1.01"):
        mfpda.PowerNormal(1.0, wrong)
    with pytest.raises(InputError, match=r"power in \(1, 2\]"):
        mfpda.penalty(1e-2, 1e-3, power=wrong)


def test_a_prior_whose_cube_root_is_not_integrable():
    heavy = model_of(lambda x: jnp.tanh(x[0] * numpyro.sample("w", dist.Cauchy(0, 1))))
    refused(r"p0\^\(1/3\) is integrable.*'w'.*\|theta\|\^-2.*gamma=1.0", heavy)
    arguments = {"particles": 10, "outer_steps": 2, "inner_steps": 2, "progress": False}
    for rule in (mfpda.DualAveraging(gamma=1.0), "latest"):
        assert mfpda.fit(jax.random.key(0), heavy, (X, Y), rule=rule, **arguments).outer_steps == 2


@pytest.mark.parametrize("name", ["chain", "draw", "outer_step"])
def test_names_that_arviz_needs(name):
    refused(f"other than.*'{name}'", model_of(lambda x: x[0] * numpyro.sample(name, NORMAL)))
    plated = lambda x: x[0] * jnp.sum(numpyro.sample("w", NORMAL.expand([3]).to_event(1)))  # noqa: E731
    refused(f"other than.*'{name}' at site 'w'", model_of(plated, dims={"w": [name]}))


def test_dims_and_coords_that_do_not_fit():
    plated = lambda x: x[0] * jnp.sum(numpyro.sample("w", NORMAL.expand([3]).to_event(1)))  # noqa: E731
    refused("1 dims for site 'w'", model_of(plated, dims={"w": ["a", "b"]}))
    refused("dims for the neuron's sites.*'v'", model_of(plated, dims={"v": ["a"]}))
    refused("coords for dims of the sites.*'b'", model_of(plated, dims={"w": "a"}, coords={"b": [1, 2, 3]}))
    refused("3 coords for dim 'a'", model_of(plated, dims={"w": ["a"]}, coords={"a": [1, 2]}))
    refused("no site of its name", model_of(plated, dims={"w": ["w"]}))
    refused("without '/'", model_of(lambda x: x[0] * numpyro.sample("layer/w", NORMAL)))


def test_init_that_does_not_fit():
    refused("init for the neuron's sites.*'v'", model_of(neuron, init={"v": NORMAL}))
    refused(r"shape \(\) as init of site 'w'.*\(2,\)", model_of(neuron, init={"w": NORMAL.expand([2])}))
    refused("NumPyro distribution", model_of(neuron, init={"w": 3.0}))


def test_unknown_names_list_the_known_ones():
    refused("'ula', 'mala', .*'numpyro:BarkerMH'.*'hmcmc'", kernel="hmcmc")
    refused("'dual_averaging', .*'latest'.*Did you mean 'latest'", rule="lastest")
    refused("'warm', 'resample'.*'cold'", start="cold")
    refused("the class ULA.*Call it", kernel=mfpda.ULA)
    refused("Did you mean 'ula'", kernel="ULA")
    refused("a kernel: a frozen dataclass", kernel=object())
    refused("a rule with init", rule=object())
    refused("a start, callable", start=3)


@pytest.mark.parametrize("wrong", [0, 1.5, np.zeros(2, np.uint32), "seed"])
def test_a_key_that_is_none(wrong):
    with pytest.raises(InputError, match=r"JAX random key as the first argument.*jax.random.key\(0\)"):
        mfpda.fit(wrong, model_of(neuron), (X, Y))


def test_a_missing_key():
    with pytest.raises(InputError, match=r"JAX random key as the first argument, found Model"):
        mfpda.fit(model_of(neuron), (X, Y))
    with pytest.raises(InputError, match="an array of keys"):
        mfpda.fit(jax.random.split(jax.random.key(0)), model_of(neuron), (X, Y))
    with pytest.raises(InputError, match="Model as the second argument"):
        mfpda.fit(jax.random.key(0), neuron, (X, Y))


def test_a_loss_that_is_not_convex_warns():
    model = model_of(neuron, lambda z, y: jnp.tanh((z - y) ** 2))
    with pytest.warns(NotConvexWarning, match="not convex in its prediction"):
        mfpda.fit(jax.random.key(0), model, (X, Y), particles=5, outer_steps=1, inner_steps=1, progress=False)


def test_other_wrong_arguments():
    refused("names of metrics other than", metrics={"risk": lambda predict: 0.0})
    refused("functions of predict", metrics={"mine": 3})
    refused("metrics as a dict", metrics=len)
    refused("without '/'", metrics={"test/risk": len})
    refused("strings without", metrics={1: len})
    refused("a Record, found 10", record=10)
    refused("folder of a checkpoint, found no folder at 'run.nc'", resume="run.nc")
    refused("sites of the neuron.*'v'", record=mfpda.Record(sites=("v",)))
    with pytest.raises(InputError, match=r"Record.every"):
        mfpda.Record(every=0)
    with pytest.raises(InputError, match="a neuron"):
        model_of(3)
    with pytest.raises(InputError, match="a loss from"):
        model_of(neuron, loss="squared")


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


class TestLoading:
    """Files that are not ours, are cut short, or belong to another model."""

    @pytest.fixture
    def path(self, small, tmp_path):
        mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick).save(tmp_path / "run.nc")
        return tmp_path / "run.nc"

    def test_no_file(self, small, tmp_path):
        with pytest.raises(InputError, match="no file at"):
            mfpda.load(tmp_path / "none.nc", small.model)

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.97])
    def test_a_truncated_file(self, path, small, share):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match=r"cut short.*Fit.save"):
            mfpda.load(path, small.model)

    def test_a_file_of_something_else(self, path, small):
        path.write_text("not a fit at all")
        with pytest.raises(InputError, match="no netCDF"):
            mfpda.load(path, small.model)

    def test_a_netcdf_file_of_another_program(self, path, small):
        import xarray as xr

        xr.Dataset({"a": ("b", [1.0])}).to_netcdf(path, engine="h5netcdf")
        with pytest.raises(InputError, match="mfpda did not write"):
            mfpda.load(path, small.model)

    def test_stacked_runs(self, path, small):
        fits = [mfpda.fit(jax.random.key(k), small.model, small.data, **small.quick) for k in range(2)]
        mfpda.to_inference_data(*fits).to_netcdf(path)
        with pytest.raises(InputError, match="stacked as chains"):
            mfpda.load(path, small.model)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"loss": losses.Logistic()}, "loss Squared, found loss Logistic"),
            ({"temperature": 0.5}, "temperature 0.02, found temperature 0.5"),
            ({"sites": {"w": NORMAL.expand([1]).to_event(1), "c": NORMAL}}, 'sites.*"b".*found sites'),
            ({"sites": {"w": dist.Normal(0, 3).expand([1]).to_event(1), "b": NORMAL}}, "log p0"),
            ({"h": lambda theta, x: 3 * jnp.tanh(x @ theta["w"] + theta["b"])}, "h.theta, x"),
        ],
    )
    def test_another_model(self, path, change, match):
        given = {
            "h": lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta.get("b", 0.0)),
            "sites": {"w": NORMAL.expand([1]).to_event(1), "b": NORMAL},
            "loss": losses.Squared(),
            "temperature": 0.02,
        }
        with pytest.raises(InputError, match=match):
            mfpda.load(path, Model.from_function(**(given | change)))


def test_resuming_with_other_settings(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    for match, change in {
        "rule of the run": {"rule": "latest"},
        "kernel of the run": {"kernel": "gradient_descent"},
        "particles of the run that is resumed, 30, found 31": {"particles": 31},
        "batch_size of the run": {"batch_size": 4},
        "already done": {"outer_steps": 3},
    }.items():
        with pytest.raises(InputError, match=match):
            mfpda.fit(jax.random.key(0), small.model, small.data, **(small.quick | change), resume=fit)
    with pytest.raises(InputError, match="another y"):
        mfpda.fit(jax.random.key(0), small.model, (small.x, -small.data[1]), **small.quick, resume=fit)
    given = {"sites": {"w": NORMAL.expand([1]).to_event(1), "b": NORMAL}, "loss": losses.Squared(), "temperature": 0.02}
    h = lambda theta, x: 2 * jnp.tanh(x @ theta["w"] + theta["b"])  # noqa: E731
    for match, other in {
        "temperature 0.02, found temperature 0.5": Model.from_function(h, **(given | {"temperature": 0.5})),
        "h.theta, x.": Model.from_function(lambda theta, x: 1.5 * h(theta, x), **given),
    }.items():
        with pytest.raises(InputError, match=match):
            mfpda.fit(jax.random.key(0), other, small.data, **small.quick, resume=fit)
    first, second = (Model.from_function(h, **(given | {"loss": lambda z, y, p=p: (z - y) ** p})) for p in (2, 4))
    fit_of_first = mfpda.fit(jax.random.key(0), first, small.data, **small.quick)
    with pytest.raises(InputError, match="whose loss is"):
        mfpda.fit(jax.random.key(0), second, small.data, **small.quick, resume=fit_of_first)
    same = Model.from_function(h, **given)  # declared anew, but the same
    assert mfpda.fit(jax.random.key(0), same, small.data, **small.quick, resume=fit).outer_steps == 8


def test_files_that_cannot_be_written(small, tmp_path):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    with pytest.raises(InputError, match="which does not exist"):
        fit.save(tmp_path / "none" / "run.nc")
    with pytest.raises(InputError, match="the folder"):
        fit.save(tmp_path)


def test_a_neuron_that_is_not_finite_at_the_start_is_named_as_the_cause():
    broken = model_of(lambda x: x[0] * jnp.log(numpyro.sample("w", NORMAL)))
    with pytest.raises(
        mfpda.RunError, match=r"after outer step 0: h.theta, x. is not finite at the particles it began"
    ):
        mfpda.fit(jax.random.key(0), broken, (X, Y), particles=20, outer_steps=1, inner_steps=1, progress=False)


def test_a_scaled_site():
    from numpyro import handlers

    refused("handlers.scale", model_of(handlers.scale(neuron, 3.0)))


def test_outputs_of_two_axes():
    body = lambda x: jnp.ones((2, 2)) * numpyro.sample("w", NORMAL)  # noqa: E731
    refused("a scalar or a vector", model_of(body, lambda z, y: jnp.sum(z)))


def test_plugs_that_are_no_pytrees():
    @dataclasses.dataclass(frozen=True)
    class Mine:
        init = refresh = step = lambda *_: None

    refused("registered as pytrees", kernel=Mine())
    refused("registered as pytrees", start=lambda *_: None)


def test_what_is_no_fit(small):
    fit = mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick)
    assert mfpda.summary(fit) == mfpda.summary(fit.idata)
    for wrong in (lambda: mfpda.summary("run.nc"), lambda: mfpda.to_inference_data([fit, fit])):
        with pytest.raises(InputError, match="fit"):
            wrong()
