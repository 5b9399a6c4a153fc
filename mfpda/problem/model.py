"""A model: one neuron h(theta, x) whose sample sites are theta, a loss and a temperature."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro import sample as sample_site
from numpyro.distributions import Distribution

from mfpda.core import positive
from mfpda.errors import InputError
from mfpda.problem.losses import Loss, as_loss
from mfpda.problem.neuron import Declaration, InitialLaws

NO_INIT = InitialLaws()


@jax.tree_util.register_pytree_node_class
class Model:
    """One neuron with its priors, a loss and a temperature T. The prior p0 is the regulariser:

        L(q) = (1/n) sum_i loss(z_i, y_i) + T KL(q || p0),      z_i = E_q[h(theta, x_i)]

    ``neuron(x)`` takes one input, declares its parameters with ``numpyro.sample`` and returns h(theta, x): a scalar, or
    a vector for several outputs. ``loss`` is one of ``mfpda.losses`` or a function (z, y) -> scalar. ``init`` gives
    sites an initial law q1 that differs from their prior. ``dims`` and ``coords`` name the axes of sites, as in ArviZ.
    Plates name their own axes.

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> def neuron(x):
    ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    ...     return jnp.tanh(x @ w)
    >>> Model(neuron, loss=lambda z, y: (z - y) ** 4, temperature=0.01)
    Model(neuron, loss=FromFunction, temperature=0.01)
    """

    def __init__(
        self,
        neuron: Callable[[Array], Array],
        loss: Loss | Callable[[Array, Array], Array],
        temperature: float,
        init: Mapping[str, Distribution] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
    ):
        if not callable(neuron):
            raise InputError("a neuron, a function of one input x", repr(neuron), "Pass the function itself.")
        if init is not None and not isinstance(init, Mapping):
            advice = 'Give {"w": dist.Normal(0, 0.1)}, for example.'
            raise InputError("init as a dict from site names to NumPyro distributions", type(init).__name__, advice)
        self.temperature: Any = positive(temperature, "temperature")
        self.declaration = Declaration(
            neuron,
            as_loss(loss),
            InitialLaws(init) if init else NO_INIT,
            tuple((site, (names,) if isinstance(names, str) else tuple(names)) for site, names in (dims or {}).items()),
            tuple((dim, tuple(np.asarray(values).tolist())) for dim, values in (coords or {}).items()),
        )

    @classmethod
    def from_function(
        cls,
        h: Callable[[dict[str, Array], Array], Array],
        sites: Mapping[str, Distribution],
        loss: Loss | Callable[[Array, Array], Array],
        temperature: float,
        init: Mapping[str, Distribution] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
    ) -> "Model":
        """Make a model from a plain h(theta, x), where theta is a dict, and the priors of theta's entries.

        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> h = lambda theta, x: jnp.tanh(theta["w"] * x)
        >>> Model.from_function(h, {"w": dist.Normal(0, 1)}, loss=lambda z, y: (z - y) ** 2, temperature=0.01)
        Model(<lambda>, loss=FromFunction, temperature=0.01)
        """

        @functools.wraps(h)
        def neuron(x):
            return h({name: sample_site(name, prior) for name, prior in sites.items()}, x)

        return cls(neuron, loss, temperature, init, dims, coords)

    def __repr__(self) -> str:
        name = getattr(self.declaration.neuron, "__name__", repr(self.declaration.neuron))
        return f"Model({name}, loss={type(self.loss).__name__}, temperature={self.temperature})"

    def tree_flatten(self):
        return (self.temperature,), self.declaration

    @classmethod
    def tree_unflatten(cls, declaration, leaves):
        model = object.__new__(cls)
        (model.temperature,), model.declaration = leaves, declaration
        return model

    @property
    def loss(self) -> Loss:
        return self.declaration.loss

    @property
    def has_init(self) -> bool:
        """Whether particles begin at a law that differs from the prior."""
        return bool(self.declaration.init)
