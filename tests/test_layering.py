"""The rooms of the house: a module imports only from rooms above it, and never the package root."""

import ast
from pathlib import Path

import mfpda

ROOMS = [
    "errors",
    "signals",
    "registry",
    "schedules",
    "losses",
    "distributions",
    "keys",
    "devices",
    "processes",
    "model",
    "blocks",
    "data",
    "spectrum",
    "weights",
    "outputs",
    "potential",
    "kernels",
    "sampling",
    "tuning",
    "tempering",
    "rules",
    "starts",
    "fingerprint",
    "certificate",
    "estimators",
    "stein",
    "storage",
    "history",
    "history_store",
    "arviz_data",
    "checkpoint",
    "fitted",
    "loading",
    "outer_step",
    "keeping",
    "running",
    "optimise",
    "exact",
    "theory",
    "features",
    "diagnostics",
    "plots",
    "studies",
    "cli",
    "__main__",
]
PACKAGE = Path(mfpda.__file__).parent


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "mfpda":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mfpda."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("mfpda.") for alias in node.names if alias.name.startswith("mfpda"))


def test_every_room_is_known():
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert rooms - {"__init__"} == set(ROOMS)


def test_modules_import_only_from_rooms_above():
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for imported in imports_of(path):
            assert imported in ROOMS, f"{path.name} imports {imported} from the package root"
            assert ROOMS.index(imported) <= ROOMS.index(room), f"{path.name} imports {imported}, a room below it"
