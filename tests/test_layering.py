"""The rooms of the house: a room imports only from rooms above it, and never the package root."""

import ast
from pathlib import Path

import pytest

import mfpda

ROOMS = [
    "errors",
    "core",
    "registry",
    "distributed",
    "problem",
    "kernels",
    "rules",
    "sampling",
    "starts",
    "judging",
    "progress",
    "persistence",
    "results",
    "engine",
    "exact",
    "theory",
    "studies",
    "cli",
    "__main__",
]
PACKAGE = Path(mfpda.__file__).parent
FILES = [
    path.relative_to(PACKAGE)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or path.stem != "__init__"
]


def room_of(path):
    return path.parts[0].removesuffix(".py")


def imports_of(path):
    """The rooms that a file imports from; "mfpda" stands for a name of the package root."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "mfpda":
            yield from (alias.name if alias.name in ROOMS else "mfpda" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mfpda."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("mfpda.") for alias in node.names if alias.name.startswith("mfpda"))


def test_every_room_is_known():
    assert {room_of(path) for path in FILES} == set(ROOMS)
    assert len([entry for entry in PACKAGE.iterdir() if entry.name != "__pycache__"]) <= 22


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_room_imports_only_from_rooms_above(path):
    for imported in imports_of(PACKAGE / path):
        assert imported in ROOMS, f"{path} imports {imported}, the package root"
        assert ROOMS.index(imported) <= ROOMS.index(room_of(path)), f"{path} imports {imported}, a room below it"


def test_public_names_are_listed():
    for name in mfpda.__all__:
        assert getattr(mfpda, name) is not None
    public = {name for name in vars(mfpda) if not name.startswith("_")}
    assert public - set(mfpda.__all__) <= set(ROOMS)
