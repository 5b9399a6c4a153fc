"""Names for plugs: tables of kernels, rules and starts, which drive fit, the command line and the tests."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mfpda.errors import InputError, listed


class Registry(dict[str, Callable[..., Any]]):
    """What makes a plug, by name, so that ``fit(kernel="ula")`` means ``fit(kernel=ULA())``.

    ``families`` make the plugs of another library from their names there: "family:name" means family(name), also for
    names that the table does not list. ``parts`` are the tables of settings that are plugs themselves.
    """

    def __init__(
        self,
        kind: str,
        plugs: Mapping[str, Callable[..., Any]],
        families: Mapping[str, Callable[..., Any]] | None = None,
        parts: Mapping[str, "Registry"] | None = None,
    ):
        super().__init__(plugs)
        self.kind = kind
        self.families = dict(families or {})
        self.parts = dict(parts or {})

    def resolve(self, plug: Any) -> Any:
        """The plug itself, or the one that this name stands for, with its default settings."""
        if isinstance(plug, str):
            return self.build(plug, {})
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
        near = difflib.get_close_matches(name.lower(), self, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else f"Give one of these, or a {self.kind} object."
        raise InputError(f"the name of a {self.kind} ({listed(self)})", repr(name), advice)

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
        lost = [key for key, value in settings.items() if isinstance(value, dict) and key not in self.parts]
        if lost or not (name in self or name.partition(":")[0] in self.families):
            raise InputError(
                f"a registered {self.kind} ({listed(self)})",
                f"a run made with {name}" + (f" and a {listed(lost)} that is code" if lost else ""),
                f"Pass the one it was made with: load(path, model, {self.kind}=...).",
            )
        return self.build(
            name,
            {
                key: self.parts[key].rebuilt(value) if key in self.parts else _from_json(value)
                for key, value in settings.items()
            },
        )


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
