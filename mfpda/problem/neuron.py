"""The traced neuron h(theta, x): its sites, and its evaluation at one flat theta.

theta is in unconstrained space, with the sites in the order of their declaration. ``biject_to`` maps it to the sites'
supports, and log p0 includes the Jacobian, as in NumPyro.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to

from mfpda.errors import InputError, listed, reason
from mfpda.problem.losses import Loss

RESERVED_DIMS = ("chain", "draw", "outer_step", "inner_step", "anchor", "output")
Shape = tuple[int, ...]
SiteRecord = dict[str, Any]  # one site in NumPyro's trace


@dataclass(frozen=True)
class Declaration:
    """The code and the names of a model. It is static under ``jit``."""

    neuron: Callable[[Array], Array]
    loss: Loss
    init: "InitialLaws"
    dims: tuple[tuple[str, tuple[str, ...]], ...]
    coords: tuple[tuple[str, tuple[Any, ...]], ...]


class InitialLaws(dict[str, Distribution]):
    """Distributions by site name. It equals only itself, so it can be static under ``jit``."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


class Site(NamedTuple):
    """One parameter of the neuron: its name, its shapes on its support and in unconstrained space, and its dims."""

    name: str
    shape: Shape
    unconstrained: Shape
    dims: tuple[str, ...]

    @property
    def size(self) -> int:
        return math.prod(self.unconstrained)


class Evaluation(NamedTuple):
    """The neuron at one theta: h(theta, x), the sites' log-densities with Jacobians, and values on their supports."""

    output: Array
    log_densities: list[Array]
    values: dict[str, Array]


@dataclass(frozen=True)
class Neuron:
    """A declared neuron, traced on an input of one shape and type. It is static under ``jit``."""

    declaration: Declaration
    input: jax.ShapeDtypeStruct
    sites: tuple[Site, ...]
    output: Shape

    @property
    def size(self) -> int:
        """p, the number of unconstrained parameters."""
        return sum(site.size for site in self.sites)

    @property
    def site_names(self) -> list[str]:
        return [site.name for site in self.sites]

    def split(self, theta: Array) -> dict[str, Array]:
        """Return unconstrained values by site from the flat theta."""
        parts, start = {}, 0
        for site in self.sites:
            parts[site.name] = theta[start : start + site.size].reshape(site.unconstrained)
            start += site.size
        return parts

    def join(self, values: Mapping[str, Array]) -> Array:
        """Return the flat theta from unconstrained values by site."""
        return jnp.concatenate([jnp.ravel(values[site.name]) for site in self.sites])

    def evaluate(self, theta: Array, x: Array | None = None) -> Evaluation:
        """Evaluate the neuron at one flat theta and one input. Only the output depends on x."""
        parts, log_densities, values = self.split(theta), [], {}

        def value_of(site):
            if site["type"] != "sample":
                return None
            part, transform = parts[site["name"]], biject_to(site["fn"].support)
            values[site["name"]] = value = transform(part)
            jacobian = transform.log_abs_det_jacobian(part, value)
            log_densities.append(jnp.sum(site["fn"].log_prob(value)) + jnp.sum(jacobian))
            return value

        x = jnp.zeros(self.input.shape, self.input.dtype) if x is None else x
        with handlers.substitute(substitute_fn=value_of):
            output = jnp.asarray(self.declaration.neuron(x))
        return Evaluation(output, log_densities, values)

    def output_of(self, values: Mapping[str, Array], x: Array) -> Array:
        """Return h for one particle, given by its sites' values on their supports."""
        with handlers.substitute(data=dict(values)):
            return jnp.asarray(self.declaration.neuron(x))

    def draw(self, key: Array, laws: Mapping[str, Distribution], x: Array) -> Array:
        """Draw one flat theta from these laws, and from the priors of all other sites. x is any input of the data."""
        law_key, prior_key = jax.random.split(key)
        law_keys = jax.random.split(law_key, max(len(laws), 1))
        values = {name: law.sample(key) for (name, law), key in zip(laws.items(), law_keys, strict=False)}
        with handlers.substitute(data=values), handlers.seed(rng_seed=prior_key):
            trace = handlers.trace(self.declaration.neuron).get_trace(x)
        drawn = {name: biject_to(trace[name]["fn"].support).inv(trace[name]["value"]) for name in self.site_names}
        return self.join(drawn).astype(float)


def trace(declaration: Declaration, x: Any) -> Neuron:
    """Trace the neuron on one input x, only for its shape and type. Refuse a neuron that the library cannot use."""
    return _trace(declaration, jnp.shape(x), jnp.result_type(x), jnp.result_type(float))


@functools.lru_cache(maxsize=256)
def _trace(declaration: Declaration, shape: Shape, dtype: np.dtype, floating: np.dtype) -> Neuron:
    """Trace the neuron abstractly, and check its sites. ``floating`` is only part of the cache's key."""
    found: dict[str, SiteRecord] = {}
    example = jax.ShapeDtypeStruct(shape, dtype)

    def declare(key, x):
        with handlers.seed(rng_seed=key), handlers.trace() as trace:
            output = declaration.neuron(x)
        found.update({name: site for name, site in trace.items() if site["type"] in ("sample", "param")})
        _refuse_unusable(found)
        values = {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in found.items()}
        return jnp.asarray(output), values

    try:
        output, unconstrained = jax.eval_shape(declare, jax.random.key(0), example)
    except InputError:
        raise
    except NotImplementedError as error:
        advice = "Use a proper distribution for every site."
        raise InputError("priors that can be sampled", str(error) or "one without a sampler", advice) from error
    except Exception as error:
        expected = f"a neuron that takes one input x of shape {shape} and returns h(theta, x)"
        advice = "It sees one row of x at a time, never the batch or y. Use jax.numpy, so that JAX can trace it."
        raise InputError(expected, reason(error), advice) from error
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise InputError("a neuron that returns floats", f"type {output.dtype}", "h must be differentiable in theta.")
    dims = _named_dims(found, declaration)
    sites = tuple(
        Site(name, jnp.shape(site["value"]), unconstrained[name].shape, dims[name]) for name, site in found.items()
    )
    _check_init(declaration.init, sites)
    declaration.loss.check_output(output.shape)
    return Neuron(declaration, example, sites, output.shape)


def _refuse_unusable(found: Mapping[str, SiteRecord]) -> None:
    if not found:
        advice = 'Declare its parameters inside it: w = numpyro.sample("w", dist.Normal(0, 1)).'
        raise InputError("a neuron with at least one sample site", "none", advice)
    for name, site in found.items():
        if site["type"] == "param":
            advice = "Give it a prior with numpyro.sample: the prior regularises it."
            raise InputError("sample sites only", f"numpyro.param {name!r}", advice)
        if site["is_observed"]:
            advice = "The data enter through the loss: drop obs= and pass (x, y) to fit."
            raise InputError("sites without observed values", f"site {name!r} with obs=...", advice)
        if site["fn"].support.is_discrete:
            advice = "Particles move along gradients: use a continuous relaxation of it."
            raise InputError("continuous sites", f"site {name!r} with the discrete {type(site['fn']).__name__}", advice)
        if site.get("scale") not in (None, 1, 1.0):
            raise InputError("sites with unscaled densities", f"site {name!r} under handlers.scale", "Scale the prior.")
        if "/" in name:
            advice = "Netcdf reads '/' as a group: use handlers.scope's divider=."
            raise InputError("site names without '/'", repr(name), advice)


def _named_dims(found: Mapping[str, SiteRecord], declaration: Declaration) -> dict[str, tuple[str, ...]]:
    """Name every axis of every site: by its plate, then by ``dims``, else site_dim_0 and so on."""
    given, coords = dict(declaration.dims), dict(declaration.coords)
    unknown = [name for name in given if name not in found]
    if unknown:
        raise InputError(f"dims for the neuron's sites ({listed(found)})", listed(unknown), "Correct the site's name.")
    named: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for name, site in found.items():
        shape, names = jnp.shape(site["value"]), list(given.get(name, ()))
        axes = {len(shape) - site["fn"].event_dim + frame.dim: frame.name for frame in site["cond_indep_stack"]}
        if len(names) == len(shape):
            axes = {}  # ``dims`` names all axes
        free = [axis for axis in range(len(shape)) if axis not in axes]
        if names and len(names) != len(free):
            advice = "Name every axis that no plate names."
            raise InputError(f"{len(free)} dims for site {name!r} of shape {shape}", f"{names}", advice)
        axes.update(zip(free, names or [f"{name}_dim_{k}" for k in range(len(free))], strict=True))
        named[name] = tuple(str(axes[axis]) for axis in range(len(shape)))
        for clash in {name, *named[name]} & set(RESERVED_DIMS):
            expected = f"names of sites, plates and dims other than {listed(RESERVED_DIMS)}"
            advice = "ArviZ needs these names for its own axes: choose another."
            raise InputError(expected, f"{clash!r} at site {name!r}", advice)
        for dim, size in zip(named[name], shape, strict=True):
            if dim in found or sizes.setdefault(dim, size) != size:
                clash = "a site's name" if dim in found else f"sizes {sizes[dim]} and {size}"
                raise InputError(f"one size for dim {dim!r}, and no site named so", clash, "Rename one of them.")
            labels = len(coords.get(dim, range(size)))
            if labels != size:
                raise InputError(f"{size} coords for dim {dim!r}", f"{labels}", "Give one label per entry.")
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
            expected = f"a NumPyro distribution of shape {shapes[name]} as init of site {name!r}"
            advice = "Use .expand(shape).to_event() to fit the site."
            raise InputError(expected, repr(law) if shape is None else f"shape {shape}", advice)
