"""Names for plugs: tables of kernels, rules and starts, which drive fit, the command line and the tests."""

import difflib
from typing import Any

from mfpda.errors import InputError, listed


class Registry(dict[str, type]):
    """Classes by name, so that ``fit(kernel="ula")`` means ``fit(kernel=ULA())``."""

    def __init__(self, kind: str, classes: dict[str, type]):
        super().__init__(classes)
        self.kind = kind

    def resolve(self, plug: Any) -> Any:
        """The plug itself, or the one that this name stands for, with its default settings."""
        if isinstance(plug, str):
            if plug not in self:
                near = difflib.get_close_matches(plug.lower(), self, n=1)
                advice = f"Did you mean {near[0]!r}?" if near else f"Give one of these, or a {self.kind} object."
                raise InputError(f"the name of a {self.kind} ({listed(self)})", repr(plug), advice)
            return self[plug]()
        if isinstance(plug, type):
            raise InputError(f"a {self.kind} object", f"the class {plug.__name__}", f"Call it: {plug.__name__}().")
        return plug

    def name_of(self, plug: Any) -> str:
        """The name a plug is registered under, or its class name."""
        return next((name for name, cls in self.items() if type(plug) is cls), type(plug).__name__)
