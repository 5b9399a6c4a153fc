"""Plugs: how a class becomes one, and the tables of kernels, rules and starts by name, which drive fit, the command
line and the tests."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from mfpda.errors import InputError, listed, nearest

Plug = TypeVar("Plug", bound=type)


def plug(cls: Plug) -> Plug:
    """A frozen dataclass as a pytree: its fields are leaves, so their numbers can change without compiling again, but
    for those whose metadata says ``{"static": True}``.

    JAX's own ``register_dataclass`` lets the structures of two classes with the same fields compare equal (0.10 to
    0.12), so that now and then, when their hashes meet, the program compiled for one kernel runs in place of another's.
    """
    static = [field.name for field in dataclasses.fields(cls) if field.metadata.get("static")]
    leaves = [field.name for field in dataclasses.fields(cls) if field.name not in static]

    def flattened(self):
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in leaves]
        return keyed, tuple(getattr(self, name) for name in static)

    def unflattened(settings, values):
        self: Any = object.__new__(cls)
        for name, value in zip([*static, *leaves], [*settings, *values], strict=True):
            object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flattened, unflattened)
    return cls


class Registry(dict[str, Callable[..., Any]]):
    """What makes a plug, by name, so that ``fit(kernel="ula")`` means ``fit(kernel=ULA())``.

    ``families`` make the plugs of another library from their names there: "family:name" means family(name), also for
    names that the table does not list. ``parts`` are the tables of settings that are plugs themselves. ``also`` are
    names that mean something to ``fit`` and stand for no plug.
    """

    def __init__(
        self,
        kind: str,
        plugs: Mapping[str, Callable[..., Any]],
        families: Mapping[str, Callable[..., Any]] | None = None,
        parts: Mapping[str, "Registry"] | None = None,
        also: tuple[str, ...] = (),
    ):
        super().__init__(plugs)
        self.kind = kind
        self.families = dict(families or {})
        self.parts = dict(parts or {})
        self.also = also

    def resolve(self, plug: Any) -> Any:
        """The plug itself, or the one that this name stands for, with its default settings."""
        if isinstance(plug, str):
            return self.build(plug, {})
        library = (plug if isinstance(plug, type) else type(plug)).__module__.partition(".")[0]
        if library in self.families:
            advice = f"Wrap it: mfpda.{self.families[library].__name__}(...)."
            raise InputError(f"a {self.kind} object", f"{_shown(plug)} of {library} itself", advice)
        if isinstance(plug, type):
            raise InputError(f"a {self.kind} object", f"the class {plug.__name__}", f"Call it: {plug.__name__}().")
        return plug

    def build(self, name: str, settings: Mapping[str, Any]) -> Any:
        """The plug of this name with these settings."""
        if name in self:
            return self[name](**settings)
        family, _, member = name.partition(":")
        if member and family in self.families:
            return self.families[family](member, **settings)
        names = [*self, *self.also]
        same = [known for known in names if known.lower() == name.lower()]
        members = [known for known in names if known.lower().partition(":")[2] == name.lower()]
        meant = " or ".join(map(repr, same or members or nearest(name, names)))
        advice = f"Did you mean {meant}?" if meant else f"Give one of these, or a {self.kind} object."
        raise InputError(f"the name of a {self.kind} ({listed(names)})", repr(name), advice)

    def knows(self, name: str) -> bool:
        """Whether a plug can be built from this name."""
        return name in self or name.partition(":")[0] in self.families

    def name_of(self, plug: Any) -> str:
        """The name a plug is registered under, or its class name."""
        if type(plug) in self.families.values():
            return plug.name
        return next((name for name, cls in self.items() if type(plug) is cls), type(plug).__name__)

    def described(self, plug: Any) -> dict[str, Any]:
        """A plug as JSON can hold it: its name and its settings."""
        settings = {
            name: self.parts[name].described(value) if name in self.parts else _as_json(value)
            for name, value in settings_of(plug).items()
        }
        return {"name": self.name_of(plug), "settings": settings}

    def rebuilt(self, description: dict[str, Any]) -> Any:
        """The plug that was described so; refused where its class is not registered, or a setting could not be kept."""
        name, settings = description["name"], description["settings"]
        lost = [key for key, value in settings.items() if isinstance(value, dict) and not self._can_rebuild(key, value)]
        if lost or not self.knows(name):
            raise InputError(
                f"a registered {self.kind} ({listed(self)})",
                f"a run made with {name}" + (f" and a {listed(lost)} that is code of yours" if lost else ""),
                f"Pass the one it was made with: load(path, model, {self.kind}=...).",
            )
        return self.build(
            name,
            {
                key: self.parts[key].rebuilt(value) if key in self.parts else _from_json(value)
                for key, value in settings.items()
            },
        )

    def _can_rebuild(self, key: str, description: dict[str, Any]) -> bool:
        """Whether a setting that is no number, but was described, can be made again."""
        return key in self.parts and self.parts[key].knows(description["name"])


def settings_of(plug: Any) -> dict[str, Any]:
    """The settings a plug was made with, by name: its fields, or what an adapter says they are."""
    if hasattr(plug, "named_settings"):
        return plug.named_settings
    return {field.name: getattr(plug, field.name) for field in dataclasses.fields(plug)}


def _as_json(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return np.asarray(value).tolist()
    return value if isinstance(value, (int, float, str, type(None))) else {"unsaved": repr(value)}


def _from_json(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value


def _shown(plug: Any) -> str:
    return f"the class {plug.__name__}" if isinstance(plug, type) else f"a {type(plug).__name__}"
