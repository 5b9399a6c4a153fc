"""Plugs (kernels, rules, starts): their base class, and the tables that find them by name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

import jax
import numpy as np

from mfpda.errors import InputError, listed, nearest

Data = TypeVar("Data", bound=type)
AnyPlug = TypeVar("AnyPlug", bound="Plug")
Description = dict[str, Any]  # a plug as JSON can hold it


def pytree(cls: Data) -> Data:
    """Register a dataclass as a pytree. Fields are leaves, unless their metadata has ``{"static": True}``.

    JAX's own ``register_dataclass`` lets the structures of two classes with the same fields compare equal (0.10 to
    0.12). When their hashes collide, the program compiled for one class runs in place of the other's.
    """
    static = [field.name for field in dataclasses.fields(cls) if field.metadata.get("static")]
    leaves = [field.name for field in dataclasses.fields(cls) if field.name not in static]

    def flatten(self):
        return tuple(getattr(self, name) for name in leaves), tuple(getattr(self, name) for name in static)

    def flatten_with_keys(self):
        values, settings = flatten(self)
        return list(zip(map(jax.tree_util.GetAttrKey, leaves), values, strict=True)), settings

    def unflatten(settings, values):
        self: Any = object.__new__(cls)
        vars(self).update(zip([*static, *leaves], [*settings, *values], strict=True))
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Plug:
    """Base class of everything that ``fit`` can swap.

    Every subclass is made a frozen dataclass and a pytree: declare fields, and write no decorator. A field is a
    leaf (see ``pytree``), so its number can change without a recompilation.
    """

    kind: ClassVar[str] = "plug"

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True)(cls)
        own = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for base in filter(dataclasses.is_dataclass, cls.__mro__[1:]):
            wrong = own.intersection(vars(base)) - {field.name for field in dataclasses.fields(base)}
            if wrong:
                advice = f"Write it without a type: {min(wrong)} = ..."
                raise InputError(f"{min(wrong)} as an option of the class {cls.__name__}", "a field", advice)
        pytree(cls)

    @property
    def settings_by_name(self) -> dict[str, Any]:
        """The settings of the plug."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


class Registry(dict[str, Callable[..., AnyPlug]], Generic[AnyPlug]):
    """A table of plugs by name: ``fit(kernel="ula")`` means ``fit(kernel=ULA())``.

    Every plug extends ``base``. ``families`` wrap other libraries: "family:name" means family(name), even if the table
    does not list it. ``parts`` are the registries for settings that are plugs. ``also`` are names that ``fit``
    understands but that are no plugs.
    """

    def __init__(
        self,
        base: type[AnyPlug],
        plugs: Mapping[str, Callable[..., AnyPlug]],
        families: Mapping[str, Callable[..., AnyPlug]] | None = None,
        parts: Mapping[str, "Registry"] | None = None,
        also: tuple[str, ...] = (),
    ):
        super().__init__(plugs)
        self.base, self.kind, self.also = base, base.kind, also
        self.families, self.parts = dict(families or {}), dict(parts or {})

    def resolve(self, plug: object) -> AnyPlug:
        """Return the plug itself, or build the one of this name with default settings."""
        if isinstance(plug, str):
            return self.build(plug, {})
        if isinstance(plug, self.base):
            return plug
        cls = plug if isinstance(plug, type) else type(plug)
        shown = f"the class {cls.__name__}" if plug is cls else f"a {cls.__name__}"
        library = cls.__module__.partition(".")[0]
        if library in self.families:
            advice = f"Wrap it: mfpda.{self.families[library].__name__}(...)."
            raise InputError(f"a {self.kind} object", f"{shown} of {library} itself", advice)
        if plug is cls and issubclass(cls, self.base):
            raise InputError(f"a {self.kind} object", shown, f"Call it: {cls.__name__}().")
        advice = f"Use one of {listed(self)}, or a subclass of mfpda.{self.base.__name__}."
        raise InputError(f"a {self.kind}", shown if plug is cls else repr(plug), advice)

    def build(self, name: str, settings: Mapping[str, Any]) -> AnyPlug:
        """Build the plug of this name with these settings."""
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

    def name_of(self, plug: AnyPlug) -> str:
        """Return the name that a plug is registered under, or the name of its class."""
        if type(plug) in self.families.values():
            return plug.name  # type: ignore[attr-defined]
        return next((name for name, cls in self.items() if type(plug) is cls), type(plug).__name__)

    def describe(self, plug: AnyPlug) -> Description:
        """Describe a plug by its name and settings, in values that JSON can hold."""
        settings = plug.settings_by_name
        parts = {key: table.describe(settings[key]) for key, table in self.parts.items() if key in settings}
        settings = {key: parts[key] if key in parts else _as_json(value) for key, value in settings.items()}
        return {"name": self.name_of(plug), "settings": settings}

    def rebuild(self, description: Description) -> AnyPlug:
        """Build the plug of this description. Refuse it if its class is not registered or a setting was not saved."""
        name, settings = description["name"], description["settings"]
        lost = [key for key, value in settings.items() if isinstance(value, dict) and not self._can_rebuild(key, value)]
        if lost or not self.knows(name):
            found = f"a run made with {name}" + (f" and a {listed(lost)} that is your own code" if lost else "")
            advice = f"Pass the one it was made with: load(path, model, {self.kind}=...)."
            raise InputError(f"a registered {self.kind} ({listed(self)})", found, advice)
        parts = {key: table.rebuild(settings[key]) for key, table in self.parts.items() if key in settings}
        numbers = {key: np.asarray(value) if isinstance(value, list) else value for key, value in settings.items()}
        return self.build(name, {**numbers, **parts})

    def _can_rebuild(self, key: str, description: Description) -> bool:
        """Whether a setting can be built from its description."""
        return key in self.parts and self.parts[key].knows(description["name"])


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    return value if isinstance(value, (int, float, str, type(None))) else {"unsaved": repr(value)}
