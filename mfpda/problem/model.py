"""A model: one neuron h(theta, x) whose sample sites are theta, a loss and a temperature.

    L(q) = (1/n) sum_i loss(z_i, y_i) + T KL(q || p0),      z_i = E_q[h(theta, x_i)]

p0 is the product of the declared sites: the prior is the regulariser. Inside the library theta is one flat vector in
unconstrained space, of the sites in the order of their declaration; supports are reached through ``biject_to``, and
log p0 includes the Jacobian, as in NumPyro.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro import sample as sample_site
from numpyro.distributions import Distribution, biject_to

from mfpda.core.schedules import positive
from mfpda.errors import InputError, listed, reason
from mfpda.problem.losses import Loss, as_loss

RESERVED_DIMS = ("chain", "draw", "outer_step", "inner_step", "anchor", "output")


class Site(NamedTuple):
    """One parameter of the neuron: its shape on its support, the shape of its unconstrained form, its dims' names."""

    name: str
    shape: tuple[int, ...]
    unconstrained: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def size(self) -> int:
        return math.prod(self.unconstrained)


class Structure(NamedTuple):
    """What tracing the neuron on one input showed: its sites and the shape of its output."""

    sites: tuple[Site, ...]
    output: tuple[int, ...]

    @property
    def size(self) -> int:
        """p, the number of unconstrained parameters."""
        return sum(site.size for site in self.sites)

    def split(self, theta: Array) -> dict[str, Array]:
        """Unconstrained values by site from the flat theta."""
        ends = np.cumsum([site.size for site in self.sites]).tolist()
        return {
            site.name: theta[end - site.size : end].reshape(site.unconstrained)
            for site, end in zip(self.sites, ends, strict=True)
        }

    def join(self, values: Mapping[str, Array]) -> Array:
        """The flat theta from unconstrained values by site."""
        return jnp.concatenate([jnp.ravel(values[site.name]) for site in self.sites])


@dataclass(frozen=True)
class Declaration:
    """The part of a model that is code and names, hence static under ``jit``."""

    neuron: Callable[[Array], Array]
    loss: Loss
    init: "_ByIdentity"
    dims: tuple[tuple[str, tuple[str, ...]], ...]
    coords: tuple[tuple[str, tuple[Any, ...]], ...]


class _ByIdentity(dict[str, Distribution]):
    """Distributions by site name; equal only to itself, so that it can be static under ``jit``."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _ByIdentity) and not self and not other)


_NO_INIT = _ByIdentity()


@jax.tree_util.register_pytree_node_class
class Model:
    """One neuron with its priors, a loss and a temperature.

    ``neuron(x)`` takes one input, declares its parameters with ``numpyro.sample`` and returns h(theta, x): a scalar, or
    a vector for several outputs. ``loss`` is one of ``mfpda.losses`` or a function (z, y) -> scalar. ``init`` gives
    sites another initial law q1 than their prior. ``dims`` and ``coords`` name the axes of sites, as in ArviZ; plates
    name theirs by themselves.

    >>> import numpyro, numpyro.distributions as dist
    >>> def neuron(x):
    ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    ...     return jnp.tanh(x @ w)
    >>> Model(neuron, loss=lambda z, y: (z - y) ** 4, temperature=0.01)
    Model(neuron, loss=FromFunction, temperature=0.01)
    """

    def __init__(
        self,
        neuron: Callable[[Array], Array],
        loss: Loss | Callable[[Array, Any], Array],
        temperature: float,
        init: Mapping[str, Distribution] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
    ):
        if not callable(neuron):
            raise InputError("a neuron, a function of one input x", repr(neuron), "Pass the function itself.")
        self.temperature: Any = positive(temperature, "temperature")
        self.declaration = Declaration(
            neuron,
            as_loss(loss),
            _ByIdentity(init) if init else _NO_INIT,
            tuple((site, (names,) if isinstance(names, str) else tuple(names)) for site, names in (dims or {}).items()),
            tuple((dim, tuple(np.asarray(values).tolist())) for dim, values in (coords or {}).items()),
        )

    @classmethod
    def from_function(
        cls,
        h: Callable[[dict[str, Array], Array], Array],
        sites: Mapping[str, Distribution],
        loss: Loss | Callable[[Array, Any], Array],
        temperature: float,
        init: Mapping[str, Distribution] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
    ) -> "Model":
        """A model from a plain h(theta, x), theta a dict, and the priors of theta's entries.

        >>> import numpyro.distributions as dist
        >>> h = lambda theta, x: jnp.tanh(theta["w"] * x)
        >>> Model.from_function(h, {"w": dist.Normal(0, 1)}, loss=lambda z, y: (z - y) ** 2, temperature=0.01)
        Model(<lambda>, loss=FromFunction, temperature=0.01)
        """

        @functools.wraps(h)
        def neuron(x):
            return h({name: sample_site(name, prior) for name, prior in sites.items()}, x)

        return cls(neuron, loss, temperature, init, dims, coords)

    def __repr__(self) -> str:
        name = getattr(self.neuron, "__name__", repr(self.neuron))
        return f"Model({name}, loss={type(self.loss).__name__}, temperature={self.temperature})"

    def tree_flatten(self):
        return (self.temperature,), self.declaration

    @classmethod
    def tree_unflatten(cls, declaration, leaves):
        model = object.__new__(cls)
        (model.temperature,), model.declaration = leaves, declaration
        return model

    @property
    def neuron(self) -> Callable[[Array], Array]:
        return self.declaration.neuron

    @property
    def loss(self) -> Loss:
        return self.declaration.loss

    @property
    def coords(self) -> dict[str, tuple[Any, ...]]:
        return dict(self.declaration.coords)

    def structure(self, x: Any) -> Structure:
        """Sites and output shape, from one input x (only its shape and type matter). Refuses a neuron it cannot use."""
        return _structure(self.declaration, jnp.shape(x), jnp.result_type(x))

    def output(self, theta: Array, x: Array) -> Array:
        """h(theta, x) for one flat theta and one input."""
        return self._run(theta, x)[0]

    def log_prior(self, theta: Array, x: Array) -> Array:
        """log p0 of one flat theta in unconstrained space, Jacobian included. x is any input: its value is not used."""
        return sum(self.log_densities(theta, x), start=jnp.zeros((), theta.dtype))

    def log_densities(self, theta: Array, x: Array) -> list[Array]:
        """The terms of log p0, one per site."""
        return self._run(theta, x)[1]

    def constrain(self, theta: Array, x: Array) -> dict[str, Array]:
        """The sites' values on their supports for one flat theta."""
        return self._run(theta, x)[2]

    def output_of(self, values: Mapping[str, Array], x: Array) -> Array:
        """h for one particle given by its sites' values on their supports."""
        with handlers.substitute(data=dict(values)):
            return jnp.asarray(self.neuron(x))

    def draw_prior(self, key: Array, x: Array) -> Array:
        """One flat theta drawn from the prior p0."""
        return self._draw(key, x, _NO_INIT)

    def draw_initial(self, key: Array, x: Array) -> Array:
        """One flat theta drawn from q1: the prior, or ``init`` for the sites that it names."""
        return self._draw(key, x, self.declaration.init)

    def _draw(self, key: Array, x: Array, init: Mapping[str, Distribution]) -> Array:
        structure = self.structure(x)
        drawn: dict[str, Array] = {}
        init_key, prior_key = jax.random.split(key)
        init_keys = dict(zip(init, jax.random.split(init_key, max(len(init), 1)), strict=False))

        def first_value(site):
            return init[site["name"]].sample(init_keys[site["name"]]) if site["name"] in init else None

        with handlers.substitute(substitute_fn=first_value), handlers.seed(rng_seed=prior_key):
            trace = handlers.trace(self.neuron).get_trace(x)
        for site in structure.sites:
            drawn[site.name] = biject_to(trace[site.name]["fn"].support).inv(trace[site.name]["value"])
        return structure.join(drawn).astype(float)

    def _run(self, theta: Array, x: Array) -> tuple[Array, list[Array], dict[str, Array]]:
        """The neuron at theta: its output, the sites' log-densities with Jacobians, the sites' values."""
        parts, log_densities, values = self.structure(x).split(theta), [], {}

        def value_of(site):
            if site["type"] != "sample":
                return None
            transform = biject_to(site["fn"].support)
            unconstrained = parts[site["name"]]
            value = transform(unconstrained)
            jacobian = transform.log_abs_det_jacobian(unconstrained, value)
            log_densities.append(jnp.sum(site["fn"].log_prob(value)) + jnp.sum(jacobian))
            values[site["name"]] = value
            return value

        with handlers.substitute(substitute_fn=value_of):
            return jnp.asarray(self.neuron(x)), log_densities, values

    def check_prior(self, x: Any, smallest_gamma: float) -> None:
        """Refuse a prior for which p0^gamma cannot be integrated, gamma the smallest factor that the rule will use.

        Each site's own density is tried, the others fixed: a prior that is heavy only jointly passes.
        """
        for site, power, dimensions in _tails(self.declaration, jnp.shape(x), jnp.result_type(x)):
            if smallest_gamma * power <= dimensions * (1 + 1e-3):
                fraction = "p0" if smallest_gamma == 1 else f"p0^({Fraction(smallest_gamma).limit_denominator(100)})"
                raise InputError(
                    f"priors such that {fraction} is integrable (the rule samples it)",
                    f"site {site!r}, whose density falls only like |theta|^-{power:.2g}"
                    + (f" over {dimensions} dimensions" if dimensions > 1 else ""),
                    "Use a prior with lighter tails (Normal, Laplace, a StudentT of more degrees), or keep "
                    "gamma = 1 throughout: rule=DualAveraging(gamma=1.0) or rule='latest'.",
                )


@functools.lru_cache(maxsize=256)
def _tails(declaration: Declaration, shape: tuple[int, ...], dtype: np.dtype) -> list[tuple[str, float, int]]:
    """How fast each site's density falls: (site, s, d), p0 like r^-s along a ray that moves d coordinates.

    p0^gamma is integrable over those coordinates only if gamma s > d. s is the steepest fall seen between two radii:
    a power law never falls faster than its last power, and far out transforms such as stick-breaking are flat by
    rounding alone.
    """
    structure = _structure(declaration, shape, dtype)
    model = Model.tree_unflatten(declaration, (1.0,))
    row = jnp.zeros(shape, dtype)
    radii = np.array([4.0, 16.0, 64.0, 1e3, 1e4, 1e6])
    both_ways = np.concatenate([radii, -radii])
    ends = np.cumsum([site.size for site in structure.sites]).tolist()
    rays = []
    for k, (site, end) in enumerate(zip(structure.sites, ends, strict=True)):
        start = end - site.size
        rays += [(k, *moved) for moved in dict.fromkeys([(start, start + 1), (end - 1, end), (start, end)])]
    thetas = np.zeros((len(rays), len(both_ways), structure.size))
    for ray, (_, start, end) in zip(thetas, rays, strict=True):
        ray[:, start:end] = both_ways[:, None]
    at_all = jax.jit(jax.vmap(jax.vmap(lambda theta: jnp.stack(model.log_densities(theta, row)))))
    heights = np.asarray(at_all(jnp.asarray(thetas, float)), float)
    tails = []
    for (k, start, end), along in zip(rays, heights, strict=True):
        with np.errstate(invalid="ignore"):  # -inf twice running says nothing, and nanmax passes over it
            falls = -np.diff(along[:, k].reshape(2, -1)) / np.diff(np.log(radii))
        power = float(np.nanmax(falls, axis=1, initial=-np.inf).min())
        if math.isfinite(power):
            tails.append((structure.sites[k].name, power, end - start))
    return tails


@functools.lru_cache(maxsize=256)
def _structure(declaration: Declaration, shape: tuple[int, ...], dtype: np.dtype) -> Structure:
    """Trace the neuron abstractly on an input of this shape, and check what it declares."""
    found: dict[str, dict[str, Any]] = {}

    def declare(key, x):
        with handlers.seed(rng_seed=key):
            trace = handlers.trace(declaration.neuron).get_trace(x)
        found.update({name: site for name, site in trace.items() if site["type"] in ("sample", "param")})
        _refuse_unusable(found)
        with handlers.seed(rng_seed=key):
            output = declaration.neuron(x)
        return jnp.asarray(output), {
            name: biject_to(site["fn"].support).inv(site["value"]) for name, site in found.items()
        }

    try:
        output, unconstrained = jax.eval_shape(declare, jax.random.key(0), jax.ShapeDtypeStruct(shape, dtype))
    except InputError:
        raise
    except NotImplementedError as error:
        raise InputError(
            "priors that can be sampled",
            str(error) or "one without a sampler",
            "Use a proper distribution for every site.",
        ) from error
    except Exception as error:
        raise InputError(
            f"a neuron that takes one input x of shape {shape} and returns h(theta, x)",
            reason(error),
            "It sees one row of x at a time, never the batch or y, and must use jax.numpy so that JAX can trace it.",
        ) from error
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise InputError("a neuron that returns floats", f"type {output.dtype}", "h must be differentiable in theta.")
    dims = _named_dims(found, declaration)
    sites = tuple(
        Site(name, jnp.shape(site["value"]), unconstrained[name].shape, dims[name]) for name, site in found.items()
    )
    _check_init(declaration.init, sites)
    declaration.loss.check_output(output.shape)
    return Structure(sites, output.shape)


def _refuse_unusable(found: Mapping[str, dict[str, Any]]) -> None:
    if not found:
        raise InputError(
            "a neuron with at least one sample site",
            "none",
            'Declare its parameters inside it: w = numpyro.sample("w", dist.Normal(0, 1)).',
        )
    for name, site in found.items():
        if site["type"] == "param":
            raise InputError(
                "sample sites only",
                f"numpyro.param {name!r}",
                "Give it a prior with numpyro.sample: the prior regularises it.",
            )
        if site["is_observed"]:
            raise InputError(
                "sites without observed values",
                f"site {name!r} with obs=...",
                "The data enter through the loss: drop obs= and pass (x, y) to fit.",
            )
        if site["fn"].support.is_discrete:
            raise InputError(
                "continuous sites",
                f"site {name!r} with the discrete {type(site['fn']).__name__}",
                "Particles move along gradients: use a continuous relaxation of it.",
            )
        if site.get("scale") not in (None, 1, 1.0):
            raise InputError("sites with their own density", f"site {name!r} under handlers.scale", "Change the prior.")
        if "/" in name:
            raise InputError(
                "site names without '/'", repr(name), "Netcdf reads '/' as a group: use handlers.scope's divider=."
            )


def _named_dims(found: Mapping[str, dict[str, Any]], declaration: Declaration) -> dict[str, tuple[str, ...]]:
    """A name for every axis of every site: from its plates, then from ``dims``, else site_dim_0 and so on."""
    given, coords = dict(declaration.dims), dict(declaration.coords)
    unknown = [name for name in given if name not in found]
    if unknown:
        raise InputError(f"dims for the neuron's sites ({listed(found)})", listed(unknown), "Correct the site's name.")
    named: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for name, site in found.items():
        shape = jnp.shape(site["value"])
        batch = len(shape) - site["fn"].event_dim
        axes: list[str | None] = [None] * len(shape)
        for frame in site["cond_indep_stack"]:
            axes[batch + frame.dim] = frame.name
        names = list(given.get(name, ()))
        free = [axis for axis, axis_name in enumerate(axes) if axis_name is None]
        if len(names) == len(shape):
            axes = list(names)
        elif names and len(names) != len(free):
            raise InputError(
                f"{len(free)} dims for site {name!r} of shape {shape}",
                f"{names}",
                "Name every axis that no plate names.",
            )
        else:
            for axis, axis_name in zip(free, names or [f"{name}_dim_{k}" for k in range(len(free))], strict=True):
                axes[axis] = axis_name
        named[name] = tuple(str(axis) for axis in axes)
        for clash in {name, *named[name]} & set(RESERVED_DIMS):
            raise InputError(
                "names of sites, plates and dims other than " + listed(RESERVED_DIMS),
                f"{clash!r} at site {name!r}",
                "ArviZ needs these names for its own axes: choose another.",
            )
        for axis_name, size in zip(named[name], shape, strict=True):
            if axis_name in found or sizes.setdefault(axis_name, size) != size:
                what = "a site's name" if axis_name in found else f"sizes {sizes[axis_name]} and {size}"
                raise InputError(
                    f"one size for dim {axis_name!r}, and no site of its name", what, "Rename one of them."
                )
            if len(coords.get(axis_name, (None,) * size)) != size:
                raise InputError(
                    f"{size} coords for dim {axis_name!r}", f"{len(coords[axis_name])}", "Give one label per entry."
                )
    stray = [dim for dim in coords if dim not in sizes]
    if stray:
        raise InputError(f"coords for dims of the sites ({listed(sizes)})", listed(stray), "Correct the dim's name.")
    return named


def _check_init(init: Mapping[str, Distribution], sites: tuple[Site, ...]) -> None:
    shapes = {site.name: site.shape for site in sites}
    for name, law in init.items():
        if name not in shapes:
            raise InputError(f"init for the neuron's sites ({listed(shapes)})", repr(name), "Correct the site's name.")
        shape = tuple(law.shape()) if isinstance(law, Distribution) else None
        if shape != shapes[name]:
            raise InputError(
                f"a NumPyro distribution of shape {shapes[name]} as init of site {name!r}",
                repr(law) if shape is None else f"shape {shape}",
                "Use .expand(shape).to_event() to fit the site.",
            )
