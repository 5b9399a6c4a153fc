"""The rooms of the house and its rules: what a file may import, ask of a plug, and how long a function may be."""

import ast
from pathlib import Path

import pytest

import mfpda

pytestmark = pytest.mark.quick

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
MOST_ENTRIES, MOST_LINES = 22, 60
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


def test_the_house_has_few_rooms():
    entries = sorted(entry.name for entry in PACKAGE.iterdir() if entry.name != "__pycache__")
    assert len(entries) <= MOST_ENTRIES, entries


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


# the outer step knows nothing of files and results


def rooms_used(path):
    """The rooms that a file imports from, and all those that they import from in turn."""
    used, left = set(), set(imports_of(PACKAGE / path))
    while left:
        room = left.pop()
        used.add(room)
        files = (each for each in FILES if room_of(each) == room)
        left |= {imported for each in files for imported in imports_of(PACKAGE / each)} - used
    return used


def libraries_of(source):
    """The libraries that a file imports, also inside of its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def test_the_outer_step_knows_nothing_of_files_and_results():
    step = Path("engine", "outer_step.py")
    used = rooms_used(step)
    assert {"problem", "rules", "kernels", "starts", "sampling", "progress"} <= used
    assert used.isdisjoint({"results", "persistence", "engine", "mfpda"}), used
    for path in [step, *(each for each in FILES if room_of(each) in used)]:
        assert "arviz" not in set(libraries_of((PACKAGE / path).read_text())), path


def test_the_search_for_rooms_finds_what_is_there():
    """The run, beside it, does use them."""
    assert {"persistence", "results", "engine"} <= rooms_used(Path("engine", "run.py"))
    assert {"jax", "arviz", "xarray"} <= set(libraries_of("import jax.numpy\ndef f():\n  import arviz as az, xarray"))
    assert "arviz" in set(libraries_of("from arviz.stats import ess"))


# a plug has what its base class defines: nobody asks whether it has it

ROOMS_OF_PLUGS = "engine", "sampling", "starts", "rules", "kernels", "progress", "judging", "results"
ASKED = {  # of objects that are not ours
    ("kernels/adapters.py", "algorithm", "'__name__'"): "an algorithm of another library: a module, class or function",
    ("kernels/adapters.py", "self.algorithm", "'__name__'"): "the same",
    ("kernels/adapters.py", "value", "'dtype'"): "a leaf of another library's state: an array, or a plain number",
    ("kernels/from_blackjax.py", "value", "'init'"): "a name of BlackJAX's: is it an algorithm?",
    ("kernels/from_blackjax.py", "value", "'build_kernel'"): "a name of BlackJAX's: is it an algorithm?",
    ("kernels/from_blackjax.py", "after", "'logdensity'"): "a state of BlackJAX's: not every one has it",
    ("kernels/from_blackjax.py", "info", "'acceptance_rate'"): "what a BlackJAX kernel reports: not every one does",
    ("kernels/from_blackjax.py", "info", "'is_divergent'"): "what a BlackJAX kernel reports: not every one does",
    (
        "kernels/from_blackjax.py",
        "info",
        "'num_integration_steps'",
    ): "what a BlackJAX kernel reports: not every one does",
    ("kernels/from_numpyro.py", "infer", "algorithm"): "numpyro.infer: does it have an algorithm of this name?",
    ("kernels/from_numpyro.py", "infer", "name"): "numpyro.infer: does it have an algorithm of this name?",
    ("kernels/from_numpyro.py", "after", "'diverging'"): "a state of NumPyro's: not every one has it",
    ("kernels/from_numpyro.py", "after", "'num_steps'"): "a state of NumPyro's: not every one has it",
    ("judging/estimators.py", "points", "'shape'"): "a user's points: an array, or lists",
    ("judging/stein.py", "thetas", "'shape'"): "a user's points: an array, or lists",
    ("results/arviz_data.py", "inference_data", "'groups'"): "ArviZ data: a method in 0.x, a property in 1.x",
    ("results/plots.py", "alignment_array", "'dims'"): "a user's array: xarray's, or another",
}


def asked_in(source):
    """What a file asks whether it has an attribute, and which: by hasattr, or by getattr with a default."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments = [ast.unparse(argument) for argument in node.args]
            if node.func.id == "hasattr" or (node.func.id == "getattr" and len(arguments) == 3):
                yield arguments[0], arguments[1]


def test_nobody_asks_a_plug_what_it_has():
    found = {
        (path.as_posix(), *asked)
        for path in FILES
        if room_of(path) in ROOMS_OF_PLUGS
        for asked in asked_in((PACKAGE / path).read_text())
    }
    assert found - set(ASKED) == set(), "define it in the base class, with a default"
    assert set(ASKED) - found == set(), "allowed here, but no longer in use"


def test_the_search_for_questions_finds_them():
    source = "if hasattr(rule, 'stale') or getattr(self.start, 'draws_anew', False): getattr(rule, 'dual'); f(1, 2, 3)"
    assert list(asked_in(source)) == [("rule", "'stale'"), ("self.start", "'draws_anew'")]


# functions


def long_functions(source):
    """The functions of more than 60 lines whose docstring does not say why."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if lines > MOST_LINES and "is long because" not in " ".join((ast.get_docstring(node) or "").split()):
                yield node.name, lines


@pytest.mark.parametrize("path", FILES, ids=str)
def test_functions_are_short_or_say_why_not(path):
    assert list(long_functions((PACKAGE / path).read_text())) == []


@pytest.mark.parametrize(
    ("head", "lines", "found"),
    [
        ("def f():", 59, []),
        ("def f():", 60, [("f", 61)]),
        ("async def f():", 60, [("f", 61)]),
        ('def f():\n    """This function is long because it has to be."""', 60, []),
        ('def f():\n    """This function is long\n    because it has to be."""', 60, []),
        ("class A:\n  def f(self):", 60, [("f", 61)]),
        ("def g():\n  def f():", 59, [("g", 61)]),
    ],
)
def test_the_search_for_long_functions_finds_them(head, lines, found):
    assert list(long_functions(head + lines * "\n    pass")) == found
